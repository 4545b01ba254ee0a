"""Mutations of JSON documents and of bytes."""

import json
import random
from collections.abc import Callable
from typing import Any, Final

POISON: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 - 1, 2**53, 2**63, -(2**63), 2**64, 10**40, 1.5, -0.0, 1e308, 5e-324,
    "", " ", "x" * 300, "x" * 5_000, "\x00", "\ud800", "\u202e", "ÿ", "🙂" * 50, "a::b::c", "**", "*",
    "../../etc/passwd", "'; --",    "2026-11-20T00:00:00Z", "0", "-1", "[", [], [[]], {}, {"": ""}, [None] * 200,
     {"a": {"a": {"a": {}}}}, {"$secret": "x"},
)  # fmt: skip
RAW: Final = (
    b"NaN", b"Infinity", b"-", b"1e99999", b"1" * 400, b"0.1" * 30, b'"\\ud800"', b'"\\u0000"', b'"\xff\xfe"',
    b"\x00", b"\xef\xbb\xbf",
    b"[" * 2_000, b'{"a":' * 1_500, b'{"a":1,"a":2}', b"//", b"'x'", b",", b"}", b"]", b'"', b"\\", b"tru",
)  # fmt: skip
INSERTED_BYTES_MAX: Final = 8


def mutated(rng: random.Random, document: Any) -> bytes:
    """The document as JSON, with one to four mutations of its structure, its text or both."""
    count = rng.choice((0, 1, 1, 1, 2, 4))
    for _ in range(count):
        document = _in_structure(rng, document)
    data = json.dumps(document).encode("utf-8", "surrogatepass")
    if rng.random() < 0.35:
        for _ in range(rng.choice((1, 1, 2, 6))):
            data = of_bytes(rng, data)
    return data


def of_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.randrange(1, 12))
    return rng.choice(_OF_BYTES)(rng, data, at, to)


_OF_BYTES: Final[tuple[Callable[[random.Random, bytes, int, int], bytes], ...]] = (
    lambda rng, data, at, to: data[:at],
    lambda rng, data, at, to: data[:at] + data[to:],
    lambda rng, data, at, to: data[:at] + rng.randbytes(rng.randrange(1, INSERTED_BYTES_MAX)) + data[at:],
    lambda rng, data, at, to: data[:at] + rng.choice(RAW) + data[to:],
    lambda rng, data, at, to: data[:at] + data[at:to] * rng.choice((2, 50)) + data[to:],
    lambda rng, data, at, to: data[:at] + bytes(each ^ (1 << rng.randrange(8)) for each in data[at:to]) + data[to:],
)  # fmt: skip


def _in_structure(rng: random.Random, value: Any) -> Any:
    """The value with one place replaced, removed, renamed or repeated."""
    if rng.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return rng.choice(POISON)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + [value[at]] * rng.choice((1, 30))
            case _:
                return [*value[:at], _in_structure(rng, value[at]), *value[at + 1 :]]
    name = rng.choice(list(value))
    match rng.randrange(6):
        case 0:
            return {key: each for key, each in value.items() if key != name}
        case 1:
            return {**value, str(rng.choice(POISON))[:400]: rng.choice(POISON)}
        case 2:
            return {(key + "x" if key == name else key): each for key, each in value.items()}
        case _:
            return {**value, name: _in_structure(rng, value[name])}
