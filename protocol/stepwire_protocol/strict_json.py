"""Parses JSON strictly, before a body is decoded into a type.

msgspec does not check `Raw` members. Duplicate keys, U+0000, a depth of 200 or integers of 5,000 digits in a context or
an output would be accepted, and break the database or a reader later. This module therefore checks every byte.

The common case takes less than a microsecond per kilobyte, all in C: a decode, an encode that must produce the same
text (a duplicate key would be missing), and a few searches. Other texts are checked more closely, in linear time,
because a hostile message must not stop the broker.
"""

import gc
import json
import re
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Final, NoReturn

import msgspec

from .errors import InvalidMessage
from .limits import (
    CONTAINERS_MAX,
    DEPTH_MAX,
    EXPONENTS_MAX,
    EXTREME_NUMBERS_MAX,
    INTEGER_MAX,
    MESSAGE_BYTES_MAX,
)

_LARGE_BYTES: Final = 65_536
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def parse(body: bytes, bytes_max: int = MESSAGE_BYTES_MAX, containers_max: int = CONTAINERS_MAX) -> dict[str, Any]:
    """Decode one JSON object that every language can read and every database can store. Raises InvalidMessage."""
    if len(body) > bytes_max:
        raise InvalidMessage("too_large", f"{len(body)} bytes, at most {bytes_max}")
    if not body:
        raise InvalidMessage("empty")
    if len(body) < _LARGE_BYTES or not gc.isenabled():
        return _parse(body, containers_max)
    # Many new lists would start the collector many times, and plain JSON has no cycles to collect.
    gc.disable()
    try:
        return _parse(body, containers_max)
    finally:
        gc.enable()


def _parse(body: bytes, containers_max: int) -> dict[str, Any]:
    text = _Text(body)
    if len(body) > containers_max and _opened(body) > containers_max:
        _check_containers(text, containers_max)
    numbers = body.translate(_NUMBER_SHAPES, b"+-")
    if len(body) > EXTREME_NUMBERS_MAX and numbers.count(_EXPONENT) > EXTREME_NUMBERS_MAX:
        _check_exponents(text)
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        _raise_invalid(body, error)
    if type(value) is not dict:
        raise InvalidMessage("not_an_object", f"the JSON is {_kind(value)}, not an object")
    if not _is_plainly_shallow(body):
        _check_depth(text)
    if b"\\u0000" in body and b"\\u0000" in body.replace(b"\\\\", b""):
        raise InvalidMessage("nul_character")
    if _RUN in numbers:
        _check_integers(text)
    encoded = _encode(value)
    if encoded != body and encoded != msgspec.json.format(body, indent=-1):
        _check_keys(text, encoded)
    return value


class _Text:
    """A body. The costly part of the closer checks is done once for all of them."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    @cached_property
    def outside_strings(self) -> bytes:
        return _outside_strings(self.body)


def _outside_strings(body: bytes) -> bytes:
    """The text without its strings. Without the escapes, every remaining quotation mark starts or ends a string."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b" ".join(body.split(b'"')[::2])


# -- depth ------------------------------------------------------------------------------------------------------------

_INDENTED: Final = b"\n" + b" " * DEPTH_MAX
_NOT_BRACKETS: Final = bytes(c for c in range(256) if c not in b"[]{}")
_STEPS: Final = bytes(1 if c in b"[{" else 255 for c in range(256))  # read as signed bytes: one down, one up


def _is_plainly_shallow(body: bytes) -> bool:
    """True if no line of the indented text is indented as deep as the limit. Strings contain no line ends."""
    if len(body) < _LARGE_BYTES:
        return _INDENTED not in msgspec.json.format(body, indent=1)
    # Indentation could make a deep, long text a thousand times longer.
    return _opened(body) <= DEPTH_MAX


def _opened(body: bytes) -> int:
    """An upper bound of the number of arrays and objects: brackets in strings are counted as well."""
    return body.count(b"[") + body.count(b"{")


def _check_depth(text: _Text) -> None:
    """Check the depth. Removes innermost pairs while the text becomes much shorter, then counts the depth of the
    rest."""
    brackets = text.outside_strings.translate(None, _NOT_BRACKETS)
    peeled = 0
    while brackets:
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if 2 * len(rest) > len(brackets):
            peeled += max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")))
            break
        brackets, peeled = rest, peeled + 1
    if peeled > DEPTH_MAX:
        raise InvalidMessage("too_deep", f"the nesting is {peeled} deep, at most {DEPTH_MAX}")


def _check_containers(text: _Text, containers_max: int) -> None:
    containers = _opened(text.outside_strings)
    if containers > containers_max:
        raise InvalidMessage("too_large", f"{containers} arrays and objects, at most {containers_max}")


# -- numbers and keys -------------------------------------------------------------------------------------------------

# Each digit as 0 and each exponent as e, to search for shapes of numbers. The signs are removed.
_NUMBER_SHAPES: Final = bytes(0x30 if 0x30 <= c <= 0x39 else 0x65 if c in b"eE" else 0x20 for c in range(256))
_EXPONENT: Final = b"0e00"
_RUN: Final = b"0" * len(str(INTEGER_MAX))
_NUMBERS: Final = bytes(0x30 if 0x30 <= c <= 0x39 else 0x65 if c in b".eE+" else 0x20 for c in range(256))
_EXTREME: Final = re.compile(rb"[0-9]e0*(?:2[89][0-9]|[3-9][0-9]{2}|[1-9][0-9]{3})")
_LOWER_WITHOUT_SIGNS: Final = bytes(0x65 if c == 0x45 else c for c in range(256))
_LONG_INTEGER: Final = re.compile(b" (" + _RUN + b"0*)(?= )")
_INTEGER_MAX: Final = str(INTEGER_MAX).encode()


def _check_integers(text: _Text) -> None:
    outside = text.outside_strings
    # A number with a fraction or an exponent is a float. The minus of its exponent must not begin an integer.
    numbers = outside.replace(b"e-", b"ee").replace(b"E-", b"ee").translate(_NUMBERS)
    for long_integer in _LONG_INTEGER.finditer(numbers):
        start, end = long_integer.span(1)
        if end - start > len(_INTEGER_MAX) or outside[start:end] > _INTEGER_MAX:
            raise InvalidMessage("integer_out_of_range", f"{outside[start:end][:32].decode()} is outside ±(2^53 - 1)")


def _check_exponents(text: _Text) -> None:
    """Refuse too many numbers that the decoder takes long to read: 7 µs for 1e300, 0.3 µs for 1e23, otherwise 0.03."""
    numbers = text.outside_strings.translate(_LOWER_WITHOUT_SIGNS, b"+-")
    exponents = numbers.translate(_NUMBER_SHAPES).count(_EXPONENT)
    if exponents > EXPONENTS_MAX:
        raise InvalidMessage(
            "too_large", f"{exponents} numbers with exponents of two or more digits, at most {EXPONENTS_MAX}"
        )
    if exponents > EXTREME_NUMBERS_MAX and next(islice(_EXTREME.finditer(numbers), EXTREME_NUMBERS_MAX, None), None):
        raise InvalidMessage(
            "too_large", f"more than {EXTREME_NUMBERS_MAX} numbers with exponents beyond ±279: send them as strings"
        )


def _check_keys(text: _Text, encoded: bytes) -> None:
    """Count the keys, because the text differs from msgspec's in its spelling (escapes, floats) or by a duplicate
    key."""
    if text.outside_strings.count(b":") == _outside_strings(encoded).count(b":"):
        return
    if len(text.body) < _LARGE_BYTES:
        json.loads(text.body, object_pairs_hook=_find_duplicate)
    raise InvalidMessage("duplicate_key")


def _find_duplicate(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidMessage("duplicate_key", f"the key {key[:64]!r} occurs twice in one object")
        seen.add(key)


# -- errors of the decoder --------------------------------------------------------------------------------------------

_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_HALF_A_PAIR: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]")
_FAULTS: Final = (
    ("Number out of range", "number_out_of_range"),
    ("Integer value out of range", "integer_out_of_range"),
    ("surrogate", "lone_surrogate"),
)


def _raise_invalid(body: bytes, error: Exception) -> NoReturn:
    """Raise InvalidMessage with the wire code for the decoder's error."""
    if isinstance(error, RecursionError):
        raise InvalidMessage("too_deep", f"the nesting is deeper than {DEPTH_MAX}")
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        raise InvalidMessage("not_utf8", f"byte {fault.start} is not UTF-8") from None
    reason = str(error)
    for message, code in _FAULTS:
        if message in reason:
            raise InvalidMessage(code)
    at = _BYTE.search(reason)
    if at and body.startswith((b"NaN", b"Infinity"), int(at[1])):
        raise InvalidMessage("not_a_number")
    # The decoder looks for the second half beyond the end of the text before it notices the end of the string.
    if "truncated" in reason and _HALF_A_PAIR.search(body[-16:]):
        raise InvalidMessage("lone_surrogate")
    raise InvalidMessage("not_json", reason)


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
