"""Runs GE IR on the CPU, by the meaning CANN's operator definitions give each operator."""

from tests.oracles.ge_evaluator.evaluate import Order, evaluate

__all__ = ["Order", "evaluate"]
