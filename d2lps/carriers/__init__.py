"""Carriers: each decides, in one method, how the bytes of a step travel."""
