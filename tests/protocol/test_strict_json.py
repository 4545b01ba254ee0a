"""strict_json against a slow and obvious reference: the standard library parser with every rule added."""

import gc
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stepwire_protocol import limits, strict_json
from stepwire_protocol.errors import InvalidMessage

SURROGATES = range(0xD800, 0xE000)


class Refuse(Exception):
    pass


def reference(body: bytes) -> Any:
    """Return the object or raise Refuse(code). With several faults, the code may be that of any of them."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise Refuse("duplicate_key")
        return dict(pairs)

    def integer(text: str) -> int:
        if len(text) > 17 or abs(int(text)) > limits.INTEGER_MAX:
            raise Refuse("integer_out_of_range")
        return int(text)

    def number(text: str) -> float:
        if float(text) in (float("inf"), float("-inf")):
            raise Refuse("number_out_of_range")
        return float(text)

    def constant(text: str) -> Any:
        raise Refuse("not_a_number")

    def check(value: Any, depth: int) -> None:
        if isinstance(value, str):
            if "\0" in value:
                raise Refuse("nul_character")
            if any(ord(c) in SURROGATES for c in value):
                raise Refuse("lone_surrogate")
        elif isinstance(value, dict | list):
            if depth == limits.DEPTH_MAX:
                raise Refuse("too_deep")
            for member in value:
                check(member, depth + 1)
            for member in value.values() if isinstance(value, dict) else ():
                check(member, depth + 1)

    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Refuse("not_utf8") from None
    try:
        value = json.loads(
            text, object_pairs_hook=unique, parse_int=integer, parse_float=number, parse_constant=constant
        )
    except RecursionError:
        raise Refuse("too_deep") from None
    except ValueError:
        raise Refuse("not_json") from None
    if not isinstance(value, dict):
        raise Refuse("not_an_object")
    check(value, 0)
    return value


def agree(body: bytes) -> None:
    try:
        expected = reference(body)
    except Refuse:
        with pytest.raises(InvalidMessage):
            strict_json.parse(body)
    else:
        assert strict_json.parse(body) == expected


STRINGS = st.text(max_size=8) | st.sampled_from(
    ["", "a", "b", "\0", "[[[[", "]]", '":', "\\", '"', "é", "\U0001f600", "u0000"]
)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 10**16, 2**63, 2**64, 10**40, 1e16, 1.5e300, -0.0])
)
JSONS = st.recursive(
    st.none() | st.booleans() | NUMBERS | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=24,
)
# Pieces of text that are difficult for a parser, combined at random inside an object.
PIECES = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", ",", '"', "\\", " ", "\n", "\0", "\x7f", "\ufeff"),
        *('"a"', '"a":', '"\\u0061":', '"b":1', '"":', '{"a":1}', "[]", "{}", '"[', ']"'),
        *("0", "1", "-", "01", "1.5", "1e5", "1E-7", "-0", "1e999", "9007199254740991", "9007199254740992"),
        *("-9007199254740992", "99999999999999999999", "0.12345678901234567", "1e-1234567890123456789", "1."),
        *("NaN", "Infinity", "-Infinity", "null", "true", "false", "nul"),
        *("\\u0000", "\\\\u0000", "\\ud800", "\\udc00", "\\ud83d\\ude00", "\\n", "\\x", '\\"', "\\\\"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(JSONS, st.booleans(), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_the_parser_agrees_with_the_reference_on_any_document(value: Any, ascii_only: bool, separators: Any) -> None:
    text = json.dumps({"a": value, "b": [value]}, ensure_ascii=ascii_only, separators=separators)
    agree(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES, max_size=12))
@example(['"a":1,"a":"\\u003a"'])
@example(['"a":["]",["]",["]",1,"["],"["],"["]'])
def test_the_parser_agrees_with_the_reference_on_any_text(pieces: list[str]) -> None:
    inside = "".join(pieces)
    for text in (
        inside,
        "{" + inside + "}",
        '{"a":' + inside + "}",
        '{"a":"' + inside + '"}',
        '{"a":[' + inside + "]}",
    ):
        agree(text.encode())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(STRINGS, NUMBERS), min_size=1, max_size=6), st.data())
def test_a_duplicate_key_is_found_in_any_spelling(members: list[tuple[str, Any]], data: Any) -> None:
    key, value = data.draw(st.sampled_from(members))
    spelled = "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in key)
    text = ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in members)
    body = ('{"x":[{' + text + ',"' + spelled + '":' + json.dumps(value) + "}]}").encode("utf-8", "surrogatepass")
    with pytest.raises(InvalidMessage):
        strict_json.parse(body)


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 34, 100, 500])
@pytest.mark.parametrize("filler", ["", "1", '"]"', '"[[[["', '"{}"', "[],[],[]"])
@pytest.mark.parametrize("length", [0, 70_000])
def test_the_depth_is_counted_exactly(depth: int, filler: str, length: int) -> None:
    """Beyond 64 KiB the depth is counted by another algorithm."""
    inner = depth - 1 - ("[]" in filler and '"' not in filler)
    long = '"' + "x" * length + '",'
    for opened, closed in (("[", "]"), ('{"k":', "}")):
        value = opened * inner + (filler or "null") + closed * inner
        if inner < 0 or ("," in filler and opened != "["):
            continue
        agree(("{" + f'"long":{long}"a":{value}' + "}").encode())


@pytest.mark.parametrize("depth", [30, 31, 32, 40])
def test_brackets_in_strings_neither_deepen_nor_flatten(depth: int) -> None:
    for length in (0, 70_000):
        text = '["]",' * depth + "1" + ',"["]' * depth
        agree(('{"long":"' + "x" * length + '","a":' + text + "}").encode())


LARGE = 4 * 1024 * 1024 - 200


def filled(unit: str, around: str = '{"a":[%s]}') -> bytes:
    return (around % ",".join([unit] * (LARGE // (len(unit) + 1)))).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (filled("1"), None),
        (filled("1234567890123456"), None),
        (filled("0.1234567890123456789"), None),
        (filled("1e5"), None),
        (filled('"\\u00e9"'), None),
        (filled("-9007199254740992"), "integer_out_of_range"),
        (filled('"k":1', "{%s}"), "duplicate_key"),
        (filled("[]"), "too_large"),
        (filled("[" * 31 + "]" * 31), "too_large"),
        (filled("[" * 12 + '"' + "." * 400 + '"' + "]" * 12), None),
        (b'{"a":"' + b"\\\\" * (LARGE // 2) + b'\\\\u0000"}', None),
        (b'{"a":"' + b"[" * LARGE + b'"}', None),
        (b"[" * LARGE, "too_large"),
        (b'{"a":' * (LARGE // 5), "too_large"),
        (b'{"a":' + b"]" * LARGE, "not_json"),
        (b'{"a":' + b"7" * LARGE + b"}", "integer_out_of_range"),
        (b'{"a":0.' + b"7" * LARGE + b"}", None),
        (b'{"' + b'"' * LARGE, "not_json"),
        (filled("1.5")[:-2] + b",NaN]}", "not_a_number"),
    ],
    ids=range(19),
)
def test_a_large_document_is_checked_as_well(body: bytes, code: str | None) -> None:
    assert len(body) <= limits.MESSAGE_BYTES_MAX
    if code is None:
        strict_json.parse(body)
    else:
        with pytest.raises(InvalidMessage) as refused:
            strict_json.parse(body)
        assert refused.value.code == code


def test_the_garbage_collector_is_enabled_again_after_a_large_document() -> None:
    assert gc.isenabled()
    for body in (b'{"a":"' + b"x" * 100_000 + b'"}', b'{"a":"' + b"x" * 100_000):
        try:
            strict_json.parse(body)
        except InvalidMessage:
            pass
        assert gc.isenabled()


EXTREMES, EXPONENTS = limits.EXTREME_NUMBERS_MAX, limits.EXPONENTS_MAX


@pytest.mark.parametrize(
    ("number", "count", "is_refused"),
    [
        ("1e300", EXTREMES, False),
        ("1e300", EXTREMES + 1, True),
        ("-5E-324", EXTREMES + 1, True),
        ("1e+0000280", EXTREMES + 1, True),
        ("1e-1000", EXTREMES + 1, True),
        ("1e279", EXTREMES + 1, False),
        ('"1e300"', EXTREMES + 1, False),
        ('"\\"1e300"', EXTREMES + 1, False),
        ("1e23", EXPONENTS, False),
        ("1e23", EXPONENTS + 1, True),
        ("1e9", EXPONENTS + 1, False),
    ],
)
def test_numbers_that_are_slow_to_read_are_counted_before_they_are_read(
    number: str, count: int, is_refused: bool
) -> None:
    body = f'{{"a":[{",".join([number] * count)}]}}'.encode()
    assert len(body) <= limits.MESSAGE_BYTES_MAX
    if not is_refused:
        assert len(strict_json.parse(body)["a"]) == count
        return
    with pytest.raises(InvalidMessage, match="exponents") as refused:
        strict_json.parse(body + b" not JSON")  # the rest is not read
    assert refused.value.code == "too_large"
