"""What any JSON must pass before it is decoded into a type.

msgspec skips over `Raw` members without looking inside, so duplicate keys, U+0000, depth 200, 2^64 and 5,000-digit
integers would ride through in a context or an output and break whoever stores or reads them later. Everything is
looked at once, here. The common case costs less than a microsecond a kilobyte, all of it in C: a decode, an encode
that must give the same text again (a key that stood twice would be gone from it), and a few searches. What that
cannot vouch for is looked at more closely, in time linear in its length: a hostile message must not stop the broker.
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
    """Raise InvalidMessage unless `body` is one JSON object that every language can read and every database can store.

    Returns the plainly decoded object, which had to be made anyway.
    """
    if len(body) > bytes_max:
        raise InvalidMessage("too_large", f"{len(body)} bytes, at most {bytes_max}")
    if not body:
        raise InvalidMessage("empty")
    if len(body) < _LARGE_BYTES or not gc.isenabled():
        return _parse(body)
    # A hundred thousand new lists make the collector look at the whole heap again and again, for cycles that plain
    # JSON cannot have.
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
        _name_the_fault(body, error)
    if type(value) is not dict:
        raise InvalidMessage("not_an_object", f"the JSON is {_kind(value)}, not an object")
    if not _is_plainly_shallow(body):
        _check_depth(body)
    if b"\\u0000" in body and b"\\u0000" in body.replace(b"\\\\", b""):
        raise InvalidMessage("nul_character")
    if _RUN in body.translate(_DIGITS):
        _check_integers(body)
    again = _encode(value)
    if again != body and again != msgspec.json.format(body, indent=-1):
        _check_keys(body, again)
    return value


def _outside_strings(body: bytes) -> bytes:
    """The text without its strings. Once the escapes are gone, every quotation mark that is left bounds a string."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b" ".join(body.split(b'"')[::2])


# -- depth ------------------------------------------------------------------------------------------------------------

_INDENTED: Final = b"\n" + b" " * DEPTH_MAX
_NOT_BRACKETS: Final = bytes(c for c in range(256) if c not in b"[]{}")
_STEPS: Final = bytes(1 if c in b"[{" else 255 for c in range(256))  # read as signed bytes: one down, one up


def _is_plainly_shallow(body: bytes) -> bool:
    """True when no line of the indented text is as deep as the limit. A string cannot pretend: it has no line ends."""
    if len(body) < _LARGE_BYTES:
        return _INDENTED not in msgspec.json.format(body, indent=1)
    # Indenting a text that is deep and long would make it a thousand times longer.
    return _opened(body) <= DEPTH_MAX


def _opened(body: bytes) -> int:
    """Arrays and objects, at the most: a string may hold brackets, too."""
    return body.count(b"[") + body.count(b"{")


def _check_depth(body: bytes) -> None:
    """Peel innermost pairs while that makes the text much shorter, then count what is left."""
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
    # A fraction or an exponent makes it a float; the minus of an exponent must not look like that of an integer.
    numbers = text.replace(b"e-", b"ee").replace(b"E-", b"ee").translate(_NUMBERS)
    for found in _LONG_INTEGER.finditer(numbers):
        start, end = found.span(1)
        if end - start > len(_INTEGER_MAX) or text[start:end] > _INTEGER_MAX:
            raise InvalidMessage("integer_out_of_range", f"{text[start:end][:32].decode()} is outside ±(2^53 - 1)")


def _check_keys(body: bytes, again: bytes) -> None:
    """Spelled otherwise than msgspec spells it (escapes, floats), or with a key that stands twice? Count the keys."""
    if _outside_strings(body).count(b":") == _outside_strings(again).count(b":"):
        return
    if len(body) < _LARGE_BYTES:
        json.loads(body, object_pairs_hook=_name_the_twin)
    raise InvalidMessage("duplicate_key")


def _name_the_twin(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidMessage("duplicate_key", f"the key {key[:64]!r} stands twice in one object")
        seen.add(key)


# -- what the decoder would not read ----------------------------------------------------------------------------------

_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_HALF_A_PAIR: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]")
_FAULTS: Final = (
    ("Number out of range", "number_out_of_range"),
    ("Integer value out of range", "integer_out_of_range"),
    ("surrogate", "lone_surrogate"),
)


def _name_the_fault(body: bytes, error: Exception) -> NoReturn:
    """Find out which of our names the decoder's reason has. Whatever the name, the message is refused."""
    if isinstance(error, RecursionError):
        raise InvalidMessage("too_deep", f"the nesting is deeper than {DEPTH_MAX}")
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        raise InvalidMessage("not_utf8", f"byte {fault.start} is not UTF-8") from None
    reason = str(error)
    for words, code in _FAULTS:
        if words in reason:
            raise InvalidMessage(code)
    at = _BYTE.search(reason)
    if at and body.startswith((b"NaN", b"Infinity"), int(at[1])):
        raise InvalidMessage("not_a_number")
    # The decoder looks for the other half beyond the end of the text before it sees that the string has ended.
    if "truncated" in reason and _HALF_A_PAIR.search(body[-16:]):
        raise InvalidMessage("lone_surrogate")
    raise InvalidMessage("not_json", reason)


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
