"""Replays golden runs on the artifact's device and reports."""
