"""Where graphs are lowered to: one room for each graph format."""
