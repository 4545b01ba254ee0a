"""Random outcomes of handlers."""

from random import Random
from typing import Any

from .traits import Traits

TEXT = 'abcdefghij ÄöÜ €漢字😀 "quoted" \\ back\n\tslash/<&>\u2028'


def output(rng: Random, traits: Traits) -> Any:
    """A JSON value that every language writes in the same way: no float without a fraction, no integer above 2^53."""
    size = rng.randrange(traits.output_bytes_max)
    match rng.randrange(8):
        case 0:
            return None
        case 1:
            return rng.choice((0, 1, -1, 2**53 - 1, 12345))
        case 2:
            return rng.choice((True, False, 0.5, -2.25, "", [], {}))
        case 3:
            return {"nested": [{"a": [1, [2, [3]]]}, None], "n": size}
        case 4:
            return [rng.randrange(1000) for _ in range(size // 8)]
        case _:
            return {"text": "".join(rng.choice(TEXT) for _ in range(min(size, 60))) + "x" * max(0, size - 60)}


def failure(rng: Random) -> dict[str, Any]:
    """The members of an op `fail` that describe the error."""
    error: dict[str, Any] = {"message": rng.choice(("boom", "", "KeyError: 'größe'", "x" * 300))}
    if rng.random() < 0.2:
        error["status"] = rng.choice(("failed", "error"))
    if rng.random() < 0.3:
        error["code"] = rng.choice(("boom", "outcome_unknown", "timeout", "cancelled"))
    if rng.random() < 0.1:
        error["category"] = "unavailable"
    if rng.random() < 0.3:
        error["retryable"] = rng.choice((True, False, None))
    if rng.random() < 0.1:
        error["retry_after_ms"] = rng.choice((0, 1500))
    return error


def metadata(rng: Random) -> dict[str, Any] | None:
    if rng.random() < 0.85:
        return None
    return rng.choice(
        (
            {"execution_time_ms": 12},
            {"execution_time_ms": 0.25, "handler_version": "7"},
            {"stderr": "line\n" * rng.choice((1, 60, 600))},
            {"retryable": True},
        )
    )
