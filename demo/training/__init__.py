"""Training, evaluation and export of the demo checkpoint."""
