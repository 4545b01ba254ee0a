"""The vectors of sealed payloads: made by the SDK, and computed again from SPEC.md with the primitives of a library."""

import base64
from pathlib import Path
from typing import Any

import pytest
from conformance.vectors import load
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from stepwire import ConfigurationError
from stepwire.sealing import NotUnsealed, SealKeys, read_keys
from stepwire_protocol import sealed_payloads
from stepwire_protocol.sealed_payloads import SealedTask

from .sealed_vectors import FILE, written

VECTORS = load("sealed")
KEYS = {row["kid"]: row for row in VECTORS["keys"]}


def each(kind: str) -> Any:
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=lambda v: v["name"])


def hkdf(key: str, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(base64.b64decode(key))


def task_of(vector: dict[str, Any]) -> SealedTask:
    return SealedTask(vector["namespace"], vector["workflow"], vector["key"])


def sdk_keys() -> SealKeys:
    return SealKeys({kid: base64.b64decode(row["key"]) for kid, row in KEYS.items()})


def test_the_file_is_the_one_that_the_script_writes() -> None:
    assert FILE.read_text() == written(), "run: python -m tests.protocol.sealed_vectors"


@pytest.mark.parametrize("row", VECTORS["keys"], ids=lambda row: row["kid"])
def test_the_two_derived_keys_are_those_of_rfc_5869(row: dict[str, str]) -> None:
    assert hkdf(row["key"], b"stepwire sealed v1 encryption").hex() == row["encryption_key"]
    assert hkdf(row["key"], b"stepwire sealed v1 nonce").hex() == row["nonce_key"]


@each("sealed")
def test_a_payload_has_the_bytes_of_an_independent_computation(vector: dict[str, Any]) -> None:
    payload, plaintext = vector["payload"], vector["plaintext"].encode()
    task = [vector["namespace"], vector["workflow"], vector["key"]]
    parts = ["stepwire sealed v1", vector["kind"], payload["kid"], *task]
    parts += [vector["step"]] if vector["step"] else []
    aad = "".join(f"{len(part.encode())}:{part}" for part in parts).encode()
    assert base64.b64decode(vector["aad"]) == aad
    mac = hmac.HMAC(bytes.fromhex(KEYS[payload["kid"]]["nonce_key"]), hashes.SHA256())
    mac.update(aad + plaintext)
    nonce = mac.finalize()[:12]
    assert base64.b64decode(payload["nonce"]) == nonce
    aes = AESGCM(bytes.fromhex(KEYS[payload["kid"]]["encryption_key"]))
    assert base64.b64decode(payload["data"]) == aes.encrypt(nonce, plaintext, aad)


@each("sealed")
def test_a_payload_is_unsealed_and_has_a_form_that_a_broker_accepts(vector: dict[str, Any]) -> None:
    task = task_of(vector)
    opened = sdk_keys().unseal(vector["kind"], task, vector["step"], vector["payload"])
    assert opened.decode() == vector["plaintext"]
    assert sealed_payloads.fault(vector["payload"], task if vector["kind"] == "context" else None) is None


@each("refused")
def test_a_changed_or_foreign_payload_is_not_unsealed(vector: dict[str, Any]) -> None:
    with pytest.raises(NotUnsealed) as caught:
        sdk_keys().unseal(vector["kind"], task_of(vector), vector["step"], vector["payload"])
    assert str(caught.value) == vector["sentence"]


@each("key_files")
def test_a_file_of_keys_is_read_or_refused_in_its_sentence(vector: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "seal.keys"
    text = vector["text"]
    if text is not None:
        path.write_text("#" * text if isinstance(text, int) else text, newline="")
        path.chmod(int(vector["mode"], 8))
    if "sentence" not in vector:
        assert [*read_keys(str(path))] == vector["kids"]
        return
    with pytest.raises(ConfigurationError) as caught:
        read_keys(str(path))
    assert str(caught.value) == vector["sentence"].replace("{path}", str(path))
