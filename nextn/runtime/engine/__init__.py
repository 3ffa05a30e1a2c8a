"""Requests in, completions out: text, stops and metrics around a session."""
