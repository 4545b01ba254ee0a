"""The kit's own sealing, compared with the vectors: a fault of the kit must not be found in the workers."""

import base64
from typing import Any

import pytest
from conformance.vectors import load
from stepwire_conform import aes_gcm
from stepwire_conform.case import RuleBroken
from stepwire_conform.seals import ERROR_MESSAGE, SealedPlace, SealKey
from stepwire_protocol import sealed_payloads

VECTORS = load("sealed")
KEYS = {row["kid"]: SealKey(row["kid"], base64.b64decode(row["key"])) for row in VECTORS["keys"]}


def place_of(vector: dict[str, Any]) -> SealedPlace:
    return SealedPlace(vector["kind"], vector["namespace"], vector["workflow"], vector["key"], vector["step"] or "")


@pytest.mark.parametrize("vector", VECTORS["sealed"], ids=lambda v: v["name"])
def test_the_kit_seals_the_vectors(vector: dict[str, Any]) -> None:
    key = KEYS[vector["payload"]["kid"]]
    assert key.sealed(place_of(vector), vector["plaintext"].encode()) == vector["payload"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda v: v["name"])
def test_the_kit_opens_no_refused_vector(vector: dict[str, Any]) -> None:
    with pytest.raises(RuleBroken):
        KEYS["2026-11"].opened(place_of(vector), vector["payload"])


def test_the_cipher_gives_the_result_of_the_published_test_case() -> None:
    """Case 16 of the GCM specification: 60 bytes, with 20 bytes of associated data."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    plaintext = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    aad = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    data = aes_gcm.sealed(key, nonce, plaintext, aad)
    assert data[-16:].hex() == "76fc6ece0f4e1768cddf8853bb2d551b"
    assert data[:4].hex() == "522dc1f0"
    assert aes_gcm.unsealed(key, nonce, data, aad) == plaintext
    assert aes_gcm.unsealed(key, nonce, data, aad + b"x") is None


def test_the_sentence_of_a_sealed_error_is_that_of_the_broker() -> None:
    assert ERROR_MESSAGE == sealed_payloads.ERROR_MESSAGE
