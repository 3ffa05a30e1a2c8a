"""Replays an artifact: Python face over libnextn, text, metrics and the `nextn-run` command."""
