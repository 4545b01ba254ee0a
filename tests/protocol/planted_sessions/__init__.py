"""Faults planted in a copy of Python's session: each must be noticed by a dialogue, a rule or lockstep."""
