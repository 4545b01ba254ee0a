"""Sealed payloads: the form of a context, output or error that only workers and clients can read.

    {"$sealed":"v1","kid":"2026-11","task":{"namespace":…,"workflow":…,"key":…},"nonce":"…","data":"…","clear":{}}

`task` is present in contexts only: the task for which the context was sealed. `clear` is what the broker may read.
"""

import base64
import binascii
import re
from typing import Any, Final

import msgspec
from msgspec import Struct

MEMBER: Final = "$sealed"
VERSION: Final = "v1"
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KID_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"
ERROR_MESSAGE: Final = "the error is sealed: stepwire task show --unseal prints it"
ERROR_NOT_SEALED: Final = "the text of the error was dropped, because its worker did not seal it"

_KID: Final = re.compile(KID_PATTERN)
_MEMBERS: Final = frozenset({MEMBER, "kid", "nonce", "data", "clear"})
_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_decode: Final = msgspec.json.Decoder().decode


class SealedTask(Struct, frozen=True):
    """The task to which a sealed payload belongs: its namespace, workflow and idempotency key."""

    namespace: str
    workflow: str
    key: str


def may_be(raw: bytes) -> bool:
    """False if this JSON is certainly no sealed payload. A key may also be written with escapes."""
    return raw[:1] == b"{" and (b"$sealed" in raw or b"\\u00" in raw)


def is_sealed(value: object) -> bool:
    """True if the value is meant as a sealed payload, whether its form is right or not."""
    return isinstance(value, dict) and MEMBER in value


def fault(value: Any, task: SealedTask | None = None) -> str | None:
    """The fault in the form of a sealed payload, or None. `task`: the task of a context."""
    if value.get(MEMBER) != VERSION:
        return f"{MEMBER} is not {VERSION!r}, the only version that this broker knows"
    members = _MEMBERS if task is None else _MEMBERS | {"task"}
    if value.keys() != members:
        return f"a sealed payload has exactly the members {', '.join(sorted(members))}"  # others may hold plaintext
    if not isinstance(value["kid"], str) or not _KID.fullmatch(value["kid"]):
        return "`kid` is not the name of a key: 1 to 64 letters, digits, . _ -"
    if not isinstance(value["clear"], dict):
        return "`clear` is not an object"
    if not _has_bytes(value["nonce"], NONCE_BYTES, NONCE_BYTES):
        return f"`nonce` is not Base64 of {NONCE_BYTES} bytes"
    if not _has_bytes(value["data"], TAG_BYTES, None):
        return f"`data` is not Base64 of at least {TAG_BYTES} bytes"
    wanted = None if task is None else {"namespace": task.namespace, "workflow": task.workflow, "key": task.key}
    if wanted is not None and value["task"] != wanted:
        return "`task` names another task: a context is sealed for one namespace, workflow and idempotency key"
    return None


def output_fault(raw: bytes) -> str | None:
    """The fault of an output of a sealed workflow, or None: such an output is sealed, or null."""
    if raw.strip() == b"null":
        return None
    value = _decode(raw) if may_be(raw) else None
    return fault(value) if is_sealed(value) else "it is not sealed"


def is_sealed_error(message: str, backtrace: object) -> bool:
    """True if an error has a sealed text: a fixed message, and the sealed payload as the only line of the backtrace."""
    if message != ERROR_MESSAGE or not isinstance(backtrace, list) or len(backtrace) != 1:
        return False
    try:
        value = _decode(backtrace[0])
    except (msgspec.DecodeError, TypeError):
        return False
    return is_sealed(value) and fault(value) is None and value["clear"] == {}


def plain_word(text: str | None) -> str | None:
    """A code or a category that is a word; None for any other text, which could hold data."""
    return text if text is not None and _CODE.fullmatch(text) else None


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _has_bytes(text: object, least: int, most: int | None) -> bool:
    try:
        size = len(base64.b64decode(text, validate=True)) if isinstance(text, str) else -1
    except (binascii.Error, ValueError):
        return False
    return least <= size and (most is None or size <= most)
