"""Checkpoint to artifact: plan, trace, lower, write; the command `nextn-compile`."""
