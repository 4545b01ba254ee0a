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
from itertools import accumulate
from typing import Any, Final, NoReturn

import msgspec

from .errors import InvalidMessage
from .limits import CONTAINERS_MAX, DEPTH_MAX, INTEGER_MAX, MESSAGE_BYTES_MAX

_LARGE_BYTES: Final = 65_536
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def parse(body: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> dict[str, Any]:
    """Decode one JSON object that every language can read and every database can store. Raises InvalidMessage."""
    if len(body) > bytes_max:
        raise InvalidMessage("too_large", f"{len(body)} bytes, at most {bytes_max}")
    if not body:
        raise InvalidMessage("empty")
    if len(body) < _LARGE_BYTES or not gc.isenabled():
        return _parse(body)
    # Many new lists would start the collector many times, and plain JSON has no cycles to collect.
    gc.disable()
    try:
        return _parse(body)
    finally:
        gc.enable()


def _parse(body: bytes) -> dict[str, Any]:
    if len(body) > CONTAINERS_MAX and _opened(body) > CONTAINERS_MAX:
        _check_containers(body)
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        _raise_invalid(body, error)
    if type(value) is not dict:
        raise InvalidMessage("not_an_object", f"the JSON is {_kind(value)}, not an object")
    if not _is_plainly_shallow(body):
        _check_depth(body)
    if b"\\u0000" in body and b"\\u0000" in body.replace(b"\\\\", b""):
        raise InvalidMessage("nul_character")
    if _RUN in body.translate(_DIGITS):
        _check_integers(body)
    encoded = _encode(value)
    if encoded != body and encoded != msgspec.json.format(body, indent=-1):
        _check_keys(body, encoded)
    return value


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


def _check_depth(body: bytes) -> None:
    """Check the depth. Removes innermost pairs while the text becomes much shorter, then counts the depth of the
    rest."""
    brackets = _outside_strings(body).translate(None, _NOT_BRACKETS)
    peeled = 0
    while brackets:
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if 2 * len(rest) > len(brackets):
            peeled += max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")))
            break
        brackets, peeled = rest, peeled + 1
    if peeled > DEPTH_MAX:
        raise InvalidMessage("too_deep", f"the nesting is {peeled} deep, at most {DEPTH_MAX}")


def _check_containers(body: bytes) -> None:
    outside = _outside_strings(body)
    containers = _opened(outside)
    if containers > CONTAINERS_MAX:
        raise InvalidMessage("too_large", f"{containers} arrays and objects, at most {CONTAINERS_MAX}")


# -- numbers and keys -------------------------------------------------------------------------------------------------

_DIGITS: Final = bytes(0x30 if 0x30 <= c <= 0x39 else 0x20 for c in range(256))
_RUN: Final = b"0" * len(str(INTEGER_MAX))
_NUMBERS: Final = bytes(0x30 if 0x30 <= c <= 0x39 else 0x65 if c in b".eE+" else 0x20 for c in range(256))
_LONG_INTEGER: Final = re.compile(b" (" + _RUN + b"0*)(?= )")
_INTEGER_MAX: Final = str(INTEGER_MAX).encode()


def _check_integers(body: bytes) -> None:
    text = _outside_strings(body)
    # A number with a fraction or an exponent is a float. The minus of its exponent must not begin an integer.
    numbers = text.replace(b"e-", b"ee").replace(b"E-", b"ee").translate(_NUMBERS)
    for long_integer in _LONG_INTEGER.finditer(numbers):
        start, end = long_integer.span(1)
        if end - start > len(_INTEGER_MAX) or text[start:end] > _INTEGER_MAX:
            raise InvalidMessage("integer_out_of_range", f"{text[start:end][:32].decode()} is outside ±(2^53 - 1)")


def _check_keys(body: bytes, encoded: bytes) -> None:
    """Count the keys, because the text differs from msgspec's in its spelling (escapes, floats) or by a duplicate
    key."""
    if _outside_strings(body).count(b":") == _outside_strings(encoded).count(b":"):
        return
    if len(body) < _LARGE_BYTES:
        json.loads(body, object_pairs_hook=_find_duplicate)
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
