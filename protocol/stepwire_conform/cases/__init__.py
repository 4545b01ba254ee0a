"""The cases, in files by subject. Importing this package registers all of them."""

from . import (
    at_most_once,
    curve,
    duplicates,
    errors,
    heartbeats,
    hello,
    hostile,
    leaving,
    level0,
    malformed,
    payload,
    results,
    sessions,
    several,
    stopping,
    transports,
)

__all__ = [
    "at_most_once",
    "curve",
    "duplicates",
    "errors",
    "heartbeats",
    "hello",
    "hostile",
    "leaving",
    "level0",
    "malformed",
    "payload",
    "results",
    "sessions",
    "several",
    "stopping",
    "transports",
]
