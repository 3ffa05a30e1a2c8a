"""Builds an artifact: plan, trace, golden runs, workers, publication."""
