"""The cases, in files by subject. Importing this package registers all of them."""

from . import (
    at_most_once,
    duplicates,
    errors,
    heartbeats,
    hello,
    leaving,
    level0,
    malformed,
    payload,
    results,
    sessions,
    several,
    stopping,
)

__all__ = [
    "at_most_once",
    "duplicates",
    "errors",
    "heartbeats",
    "hello",
    "leaving",
    "level0",
    "malformed",
    "payload",
    "results",
    "sessions",
    "several",
    "stopping",
]
