"""YAML and JSON, strictly: what is read, what is refused and how that is said, and on which line."""

import json
import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker import definition_files
from stepwire_broker.definition_files import DocumentError, read_document, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("NO", "NO"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("'~'", "~"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("-12", -12),
        ("9007199254740991", 9007199254740991),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("0.1", 0.1),
        ("1.2.3", "1.2.3"),
        ("30s", "30s"),
        ("'012'", "012"),
        ('"a\\tb"', "a\tb"),
        ("=", "="),
        ("|\n  a\n  b\n", "a\nb\n"),
        (">\n  a\n  b\n", "a b\n"),
        ("grün", "grün"),
        ('"\\U0001F600"', "😀"),
        ("[a, {b: c}, []]", ["a", {"b": "c"}, []]),
        ("{'<<': 1}", {"<<": 1}),
        ('{"": 1}', {"": 1}),
        ("---\na: 1\n...\n", {"a": 1}),
        ("\ufeffa: 1", {"a": 1}),
        ("a:", {"a": None}),
        ("a: b # c", {"a": "b"}),
    ],
)
def test_yaml_values_are_read_as_yaml_1_2(text: str, value: Any) -> None:
    read = read_yaml(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is empty"),
        ("# nothing\n", "the document is empty"),
        ("a: &x 1", "line 1: &x: anchors are not supported; remove it"),
        ("&x a: 1", "line 1: &x: anchors are not supported; remove it"),
        ("a: &x [1]", "line 1: &x: anchors are not supported; remove it"),
        ("a: 1\nb: *x", "line 2: *x: aliases are not supported; write the value out"),
        ("*x : 1", "line 1: *x: aliases are not supported; write the value out"),
        ("a: !!str 1", "line 1: tag:yaml.org,2002:str: tags are not supported; remove it"),
        ("a: !local 1", "line 1: !local: tags are not supported; remove it"),
        ("!!python/object/apply:os.system [x]", "line 1: tag:yaml.org,2002:python/object/apply:os.system: tags are"),
        ("a: 1\n<<: {b: 1}", "line 2: <<: merges are not supported; write the members out"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' occurs twice; the first is on line 1"),
        ("b:\n  - {a: 1,\n     a: 2}", "line 3: the key 'a' occurs twice; the first is on line 2"),
        ('"": 1\n"": 2', "line 2: the key '' occurs twice; the first is on line 1"),
        ("a: 012", "line 1: 012 is a different number in different versions of YAML; quote it, or write it in decimal"),
        ("a: 0x1F", "line 1: 0x1F is a different number"),
        ("a: 0o17", "line 1: 0o17 is a different number"),
        ("a: -07", "line 1: -07 is a different number"),
        ("a: .inf", "line 1: .inf is not a number in JSON; quote it"),
        ("a: -.INF", "line 1: -.INF is not a number in JSON; quote it"),
        ("a: .nan", "line 1: .nan is not a number in JSON; quote it"),
        ("a: 1e999", "line 1: 1e999 is too large for a double; quote it"),
        ("a: 9007199254740992", "line 1: 9007199254740992 is outside ±(2^53 - 1); quote it"),
        ("a: " + "9" * 5000, "line 1: 99999999999999999999999999999999 is outside ±(2^53 - 1); quote it"),
        ("1: x", "line 1: the key 1 is not a string; quote it"),
        ("true: x", "line 1: the key true is not a string; quote it"),
        ("? [a]\n: b", "line 1: a key is a string, not a list or a map"),
        ("? {a: b}\n: c", "line 1: a key is a string, not a list or a map"),
        ("a: 1\n---\nb: 2", "line 2: a second document begins here; a file contains one document"),
        ("%YAML 1.1\n---\na: 1", "directives (%YAML, %TAG) are not supported; remove them"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "directives (%YAML, %TAG) are not supported; remove them"),
        ("a:\n\t- b", "line 2: a tab; indent YAML with spaces"),
        ("a: b: c", "line 1: mapping values are not allowed in this context; quote a value that contains a colon"),
        ("a: @b", "line 1: found character that cannot start any token; quote the value"),
        ("a: [1, 2", "did not find expected ',' or ']'"),
        ('a: "\\0"', "line 1: a string contains U+0000, which databases cannot store"),
        ("a: \x01", "control characters are not allowed"),
        ("[" * 17 + "]" * 17, "line 1: the nesting is deeper than 16"),
        ("a: 1\n" + "".join(f"{' ' * i}k{i}:\n" for i in range(20)), "line 18: the nesting is deeper than 16"),
    ],
)
def test_yaml_beyond_json_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_yaml(text)
    assert message in str(caught.value)


def test_a_surrogate_half_is_refused_by_both_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError):
        read_yaml('a: "\\ud800"')
    monkeypatch.setattr(definition_files, "_PARSER", yaml.SafeLoader)
    with pytest.raises(DocumentError, match="line 1: a string contains half of a surrogate pair"):
        read_yaml('a: "\\ud800"')


def test_an_alias_bomb_is_refused_at_its_first_anchor() -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    rows += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    with pytest.raises(DocumentError, match="line 1: &a: anchors are not supported"):
        read_yaml("\n".join(rows))


def test_too_deep_nesting_is_refused_before_the_rest_is_read() -> None:
    with pytest.raises(DocumentError, match="deeper than 16"):
        read_yaml("[" * 100_000)


def test_nesting_of_sixteen_levels_is_read() -> None:
    assert json.dumps(read_yaml("[" * 16 + "]" * 16)) == "[" * 16 + "]" * 16


@pytest.mark.parametrize("text", [b"\xff\xfea", b"a: \xe9", "a: \ud800"])
def test_other_encodings_are_refused(text: str | bytes) -> None:
    with pytest.raises(DocumentError, match="the text is not UTF-8; save it as UTF-8"):
        read_document(text)


def test_the_refusal_of_a_large_yaml_document_suggests_json() -> None:
    with pytest.raises(
        DocumentError, match=r"has 262145 bytes; YAML may have at most 262144. Write a generated document as JSON"
    ):
        read_document("a: " + "x" * (definition_files.YAML_BYTES_MAX - 2))
    assert (
        len(read_document("a: " + "x" * (definition_files.YAML_BYTES_MAX - 3)).value["a"])
        == definition_files.YAML_BYTES_MAX - 3
    )
    assert (
        len(read_document('{"a":"' + "x" * definition_files.YAML_BYTES_MAX + '"}').value["a"])
        == definition_files.YAML_BYTES_MAX
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1,\n"a":2}', "line 2: the key 'a' occurs twice in one object"),
        ('{"b":[{"a":1},\n{"c":1,\n"c":2}]}', "line 3: the key 'c' occurs twice in one object"),
        ('{"a":\n01}', "line 2: JSON is malformed"),
        ('{"a":1', "line 1: Input data was truncated"),
        ('{"a": NaN}', "NaN and Infinity are not JSON"),
        ('{"a": 9007199254740992}', "9007199254740992 is outside"),
        ('{"a": "\\u0000"}', "a string holds U"),
        ('["a"]', "the JSON is an array, not an object"),
    ],
)
def test_bad_json_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read_document(text)


@pytest.mark.parametrize("text", ["{name: x}", " { name: x }", "[a]", "name: x", '"name": x'])
def test_yaml_that_looks_a_little_like_json_is_yaml(text: str) -> None:
    assert read_document(text).value in ({"name": "x"}, ["a"])


YAML_LINES = """\
name: order
steps:
  - name: a
    depends_on:
      - b
  - {name: b,
     retry_limit: 5}
"""
JSON_LINES = """\
{"name": "or{d[e,r:", "x": "\\"",
 "steps": [
  {"name": "a",
   "depends_on": ["b"]},
  {"name": "b",
   "retry_limit": 5, "empty": {},
   "more": [[], [1,
   2]]}]}
"""


@pytest.mark.parametrize(
    ("text", "path", "where"),
    [
        (YAML_LINES, (), "f:1"),
        (YAML_LINES, ("name",), "f:1"),
        (YAML_LINES, ("steps", 0, "name"), "f:3"),
        (YAML_LINES, ("steps", 0, "depends_on", 0), "f:5"),
        (YAML_LINES, ("steps", 1), "f:6"),
        (YAML_LINES, ("steps", 1, "retry_limit"), "f:7"),
        (YAML_LINES, ("steps", 1, "handler_class"), "f:6"),
        (YAML_LINES, ("steps", 0, "depends_on", 7), "f:4"),
        (JSON_LINES, ("name",), "f:1"),
        (JSON_LINES, ("x",), "f:1"),
        (JSON_LINES, ("steps", 0, "name"), "f:3"),
        (JSON_LINES, ("steps", 0, "depends_on", 0), "f:4"),
        (JSON_LINES, ("steps", 1, "name"), "f:5"),
        (JSON_LINES, ("steps", 1, "empty"), "f:6"),
        (JSON_LINES, ("steps", 1, "more", 1), "f:7"),
        (JSON_LINES, ("steps", 1, "more", 1, 1), "f:7"),
        (JSON_LINES, ("gone",), "f:1"),
    ],
)
def test_where_returns_the_line_of_a_part(text: str, path: tuple[str | int, ...], where: str) -> None:
    assert read_document(text, "f").where(path) == where


def test_where_returns_a_line_without_a_file_name() -> None:
    assert read_document("a: 1\nb: 2").where(("b",)) == "line 2"


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab<~0", max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), _plain, max_size=4))
def test_json_is_read_the_same_as_json_and_as_yaml(value: dict[str, Any]) -> None:
    text = msgspec.json.encode(value).decode()
    assert read_document(text).value == value
    if not any(number in text for number in ("E", "e+")):
        assert read_yaml(text) == value


@given(_plain)
def test_yaml_of_another_writer_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    # It writes for readers of YAML 1.1, to whom 0E0 is a word; since 1.2 it is a number.
    if "!!" not in text and "&id" not in text and not re.search(r"[0-9][eE][0-9]", text):
        try:
            assert read_yaml(text) == value
        except DocumentError as error:
            assert "different numbers" in str(error) or "deeper" in str(error)  # noqa: PT017
