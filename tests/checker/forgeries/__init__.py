"""Good evidence, forged in one place at a time. A rule that has no forgery fails the suite.

The import of the modules fills `FORGERIES`.
"""

from . import commits, history, level0, results, rows, runs, submissions  # noqa: F401
from .commits import FAILURE, SOONER, SUCCESS, retry_undelivered, send_late
from .forger import FORGERIES, MS_NS, SECOND_NS, Forger, Forgery, Line, encode, later, twice

__all__ = [
    "FAILURE",
    "FORGERIES",
    "MS_NS",
    "SECOND_NS",
    "SOONER",
    "SUCCESS",
    "Forger",
    "Forgery",
    "Line",
    "encode",
    "later",
    "retry_undelivered",
    "send_late",
    "twice",
]
