"""Lockstep: the same ops to Python's session and to another one. Every reply must be equal."""
