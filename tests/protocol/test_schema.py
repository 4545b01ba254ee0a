"""The schema files are generated from the types, and agree with the codec."""

import json
from typing import Any

import jsonschema
import pytest
from conformance.vectors import load
from stepwire_protocol import schema

FILES = schema.files()
BUNDLE = json.loads(FILES["bundle.json"])


def test_the_schema_files_are_up_to_date() -> None:
    """`python -m stepwire_protocol.schema` writes them."""
    written = {path.name: path.read_text() for path in schema.DIRECTORY.glob("*.json")}
    assert written == FILES


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_schema_is_valid_and_described(name: str) -> None:
    text = json.loads(FILES[name])
    jsonschema.Draft202012Validator.check_schema(text)
    for entry in (text, *text.get("$defs", {}).values()):
        assert entry["title"]
        assert len(entry["description"]) > 20, entry["title"]


def file_of(vector: dict[str, Any]) -> str:
    if vector["level"] == 0:
        return "level0_steps.json" if vector["sender"] == "broker" else "level0_results.json"
    return f"{vector['value']['type']}.json"


@pytest.mark.parametrize("vector", load("accepted")["messages"], ids=lambda v: v["name"])
def test_the_schema_accepts_every_message_that_the_codec_accepts(vector: dict[str, Any]) -> None:
    message = json.loads(vector["text"])
    jsonschema.Draft202012Validator(json.loads(FILES[file_of(vector)])).validate(message)
    assert jsonschema.Draft202012Validator(BUNDLE).is_valid(message)


def is_beyond_schema(vector: dict[str, Any]) -> bool:
    """JSON Schema accepts 8127.0 as an integer, and Python's `$` matches before a final line end."""
    floats: list[float] = []
    json.loads(vector["text"], parse_float=lambda text: floats.append(float(text)))
    return any(number.is_integer() for number in floats) or "line end" in vector["name"]


@pytest.mark.parametrize(
    "vector",
    [v for v in load("refused")["messages"] if v["code"] == "bad_field" and "text" in v and not is_beyond_schema(v)],
    ids=lambda v: v["name"],
)
def test_the_schema_refuses_every_bad_field_that_the_codec_refuses(vector: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(BUNDLE).is_valid(json.loads(vector["text"]))
