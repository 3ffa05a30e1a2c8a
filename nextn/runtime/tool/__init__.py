"""What both command-line tools share around their commands."""
