"""The promises as executable checks: one module for each group of promises, one function for each check.

A check is named for the promise of README.md that it would falsify (P1 to P10), for an operator's command (C), or for
a worker's duty in protocol/SPEC.md (W). tests/checker judges ledgers of real processes and uses the same names for the
same promises.

The checks are independent of the core. They observe every commit at the instant it happens, every message at the
instant it leaves the broker, and every action of a handler. They never query the core about those.
"""

from .books import Books, Violation
from .observer import Checks

__all__ = ["Books", "Checks", "Violation"]
