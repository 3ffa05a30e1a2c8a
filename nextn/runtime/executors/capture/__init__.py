"""Capture of exported programs as graphs of a device. What is here imports torch, and nothing else does."""
