"""Predicted traces: ``cost`` says what a plan takes on a topology."""

from d2lps.simulate import cost

__all__ = ["cost"]
