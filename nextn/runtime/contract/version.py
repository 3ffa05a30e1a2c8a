"""The one place that holds the version; packaging, the manifest and both tools read it from here."""

VERSION = "0.1.0"

TORCH_VERSION = "2.13.0"
"""Graphs are compiled with this torch and replay only on its libtorch."""
