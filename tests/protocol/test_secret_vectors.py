"""The vectors of secret references, played against the Python SDK."""

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conformance.vectors import load
from msgspec import Raw
from stepwire import secret_values
from stepwire.redaction import Redactor
from stepwire.secret_files import SecretUnavailable, read_secret, value_of
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
        assert [fault for _, fault in secret_references.faults(vector["value"])] == [vector["sentence"]]
        return
    resolver = secret_values.resolver_of(vector["secrets"].get)
    raw = Raw(msgspec.json.encode(vector["value"]))
    if "missing" in vector:
        with pytest.raises(SecretUnavailable) as caught:
            secret_values._replaced(raw, lambda name: secret_values._value_of(name, resolver))
        assert str(caught.value) == vector["sentence"]
        return
    resolved = secret_values._replaced(raw, lambda name: secret_values._value_of(name, resolver))
    assert msgspec.json.decode(resolved) == vector["resolved"]


@cases("files")
def test_a_file_gives_its_value_or_is_refused_in_its_sentence(vector: dict[str, Any], tmp_path: Path) -> None:
    if vector.get("needs_root") and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    directory = made(vector, tmp_path)
    if "sentence" in vector:
        with pytest.raises(SecretUnavailable) as caught:
            read_secret(directory, "card")
        assert str(caught.value) == vector["sentence"].replace("{directory}", directory)
        assert caught.value.category is None
    elif "value" in vector:
        assert read_secret(directory, "card") == vector["value"]
    else:
        assert len(read_secret(directory, "card")) == vector["value_bytes"]


def made(vector: dict[str, Any], tmp_path: Path) -> str:
    """The directory of secrets that a vector describes."""
    directory = tmp_path / "secrets"
    mode = vector.get("directory", "0700")
    if mode == "file":
        directory.write_text("")
    elif mode != "none":
        directory.mkdir()
        directory.chmod(int(mode, 8))
        os.chown(directory, vector.get("directory_owner", -1), -1)
    file = vector["file"]
    if file is None:
        return str(directory)
    path = directory / file.get("link", "card")
    if "link" in file:
        (directory / "card").symlink_to(file["link"])
    if file.get("folder"):
        path.mkdir(mode=0o700)
    elif file.get("pipe"):
        os.mkfifo(path, 0o600)
    else:
        content = file["content"].encode() if "content" in file else base64.b64decode(file.get("base64", ""))
        path.write_bytes(content or b"x" * file.get("bytes", 0))
        path.chmod(int(file["mode"], 8))
        os.chown(path, file.get("owner", -1), -1)
    return str(directory)


@cases("resolver")
def test_a_resolver_without_a_value_is_named_in_a_sentence(vector: dict[str, Any]) -> None:
    def resolver(name: str) -> Any:
        if "raises" in vector:
            raise ValueError(vector["raises"])
        return vector["returns"]

    source = resolver if vector.get("source", True) else None
    with pytest.raises(SecretUnavailable) as caught:
        secret_values._value_of("card", secret_values.resolver_of(source))
    words = {"{error}": "ValueError", "{argument}": "Worker(secrets=...)"}
    sentence = vector["sentence"]
    for word, ours in words.items():
        sentence = sentence.replace(word, ours)
    assert str(caught.value) == sentence
    assert caught.value.category == vector["category"]


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
