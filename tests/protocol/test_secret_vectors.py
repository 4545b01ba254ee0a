"""The vectors of secret references, played against the Python SDK."""

from typing import Any

import msgspec
import pytest
from conformance.vectors import load
from msgspec import Raw
from stepwire import secret_values
from stepwire.redaction import Redactor
from stepwire.secret_files import SecretUnavailable, value_of
from stepwire_protocol import secret_references

VECTORS = load("secrets")


def cases(kind: str) -> Any:
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=lambda v: str(v.get("name", v.get("content")))[:40])


@cases("names")
def test_a_name_is_valid_or_not(vector: dict[str, Any]) -> None:
    assert secret_references.is_name(vector["name"]) == vector["valid"]


@cases("contents")
def test_the_content_of_a_file_is_its_value(vector: dict[str, Any]) -> None:
    if vector["value"] is None:
        with pytest.raises(SecretUnavailable):
            value_of("s", vector["content"].encode())
    else:
        assert value_of("s", vector["content"].encode()) == vector["value"]


@cases("resolve")
def test_references_are_replaced(vector: dict[str, Any]) -> None:
    if vector.get("fault"):
        assert list(secret_references.faults(vector["value"]))
        return
    resolver = secret_values.resolver_of(vector["secrets"].get)
    raw = Raw(msgspec.json.encode(vector["value"]))
    if "missing" in vector:
        with pytest.raises(SecretUnavailable, match=repr(vector["missing"])):
            secret_values._replaced(raw, lambda name: secret_values._value_of(name, resolver))
        return
    resolved = secret_values._replaced(raw, lambda name: secret_values._value_of(name, resolver))
    assert msgspec.json.decode(resolved) == vector["resolved"]


@cases("redact")
def test_a_text_loses_the_values(vector: dict[str, Any]) -> None:
    redactor = Redactor()
    for name, value in vector["secrets"].items():
        redactor.add(name, value)
    assert redactor.redact(vector["text"]) == vector["redacted"]


@cases("output")
def test_an_output_loses_the_values(vector: dict[str, Any]) -> None:
    output = secret_values.without_values(Raw(msgspec.json.encode(vector["output"])), vector["secrets"])
    assert msgspec.json.decode(output) == vector["redacted"]
