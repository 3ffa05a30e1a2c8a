"""Lowering to Ascend: graphs as GE IR, the language of CANN's graph engine."""
