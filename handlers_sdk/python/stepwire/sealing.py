"""Seals and unseals payloads: AES-256-GCM with a nonce that follows from the content, so a repeated submission has the
same bytes and its idempotency key holds.

protocol/SPEC.md §21 has the format, and protocol/vectors/sealed.json examples. Needs the extra `sealed`.
"""

import base64
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from stepwire_protocol import sealed_payloads
from stepwire_protocol.sealed_payloads import MEMBER, NONCE_BYTES, VERSION, SealedTask

from .errors import ConfigurationError, StepwireError

FILE: Final = "STEPWIRE_SEAL_KEYS_FILE"
FILE_BYTES_MAX: Final = 64 * 1024
KEY_BYTES: Final = 32
KEYS_MAX: Final = 100
ENCRYPTION: Final = b"stepwire sealed v1 encryption"
NONCE: Final = b"stepwire sealed v1 nonce"

Kind: TypeAlias = Literal["context", "output", "error"]

_LINE: Final = re.compile(rf"({sealed_payloads.KID_PATTERN})=([A-Za-z0-9+/]{{43}}=)")
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_encode_as_is: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_ROOT: Final = 0


class NotUnsealed(StepwireError):
    """The payload cannot be unsealed: its key is missing, or it was changed or belongs to another task or step."""


class SealKeys:
    """Keys by their `kid`. The first seals, all of them unseal."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers: dict[str, tuple[Any, bytes]] = {}
        for kid, key in keys.items():
            self._ciphers[kid] = (_aes_gcm(derived(key, ENCRYPTION)), derived(key, NONCE))
        self.kid = next(iter(keys))

    @classmethod
    def of_file(cls, path: str) -> "SealKeys":
        """The keys of a file with lines `KID=BASE64`. Raises ConfigurationError."""
        return cls(read_keys(path))

    def seal(self, kind: Kind, task: SealedTask, step: str | None, plaintext: bytes) -> bytes:
        """The sealed payload as JSON. Its `clear` is the member `clear` of the plaintext, if that is an object."""
        aes, nonce_key = self._ciphers[self.kid]
        aad = associated_data(kind, self.kid, task, step)
        nonce = hmac.digest(nonce_key, aad + plaintext, hashlib.sha256)[:NONCE_BYTES]
        payload: dict[str, Any] = {MEMBER: VERSION, "kid": self.kid}
        if kind == "context":
            payload["task"] = task
        payload["nonce"] = base64.b64encode(nonce).decode()
        payload["data"] = base64.b64encode(aes.encrypt(nonce, plaintext, aad)).decode()
        payload["clear"] = {} if kind == "error" else clear_part(plaintext)
        return _encode_as_is(payload)

    def unseal(self, kind: Kind, task: SealedTask, step: str | None, payload: Any) -> bytes:
        """The plaintext of a decoded payload. Raises NotUnsealed, whose text holds nothing of the payload."""
        try:
            kid, nonce, data = (payload[name] for name in ("kid", "nonce", "data"))
            cipher = self._ciphers.get(kid)
            if payload[MEMBER] != VERSION:
                raise NotUnsealed(f"the {kind} is sealed in a version that this program does not know")
            if cipher is None:
                raise NotUnsealed(
                    f"the {kind} is sealed with the key {str(kid)[:64]!r}, which is not in the file of keys"
                )
            aad = associated_data(kind, kid, task, step)
            plaintext: bytes = cipher[0].decrypt(sealed_payloads.decoded(nonce), sealed_payloads.decoded(data), aad)
            return plaintext
        except NotUnsealed:
            raise
        except Exception:  # of base64, of the members, or InvalidTag, which has no text
            where = "another task" if step is None else "another task or step"
            raise NotUnsealed(f"the {kind} was changed after it was sealed, or it belongs to {where}") from None


def clear_part(plaintext: bytes) -> dict[str, Any]:
    value = _decode(plaintext) if b'"clear"' in plaintext or b"\\u00" in plaintext else None
    clear = value.get("clear") if isinstance(value, dict) else None
    return clear if isinstance(clear, dict) else {}


def context(keys: SealKeys, task: SealedTask, value: Any) -> Any:
    """A context, sealed for this task. Keys are sorted, so equal contexts give equal bytes."""
    plain = _decode(_encode(value))  # the value may be JSON already, whose keys have any order
    return msgspec.Raw(keys.seal("context", task, None, _encode(plain)))


def associated_data(kind: Kind, kid: str, task: SealedTask, step: str | None) -> bytes:
    """The bytes to which a payload is bound. Each part follows its length, so no two lists give the same bytes."""
    parts = [
        "stepwire sealed v1",
        kind,
        kid,
        task.namespace,
        task.workflow,
        task.key,
        *([] if step is None else [step]),
    ]
    return b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)


def derived(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes."""
    pseudorandom = hmac.digest(bytes(32), key, hashlib.sha256)
    return hmac.digest(pseudorandom, purpose + b"\x01", hashlib.sha256)


def read_keys(path: str) -> dict[str, bytes]:
    """The keys of a file, by `kid`, in its order. Raises ConfigurationError, which names no key."""
    try:
        with open(path, encoding="utf-8", opener=_opened) as file:
            status = os.fstat(file.fileno())
            _check_file(path, status)
            text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"{FILE} is {path!r}: it cannot be read: {reason}") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        key = base64.b64decode(match[2]) if match else b""
        if match is None or len(key) != KEY_BYTES:
            raise ConfigurationError(
                f"{FILE}: line {number} of {path!r} is not KID=KEY, with a key of 32 random bytes in Base64, as "
                "made by: openssl rand -base64 32"
            )
        if match[1] in keys:
            raise ConfigurationError(f"{FILE}: {path!r} has two keys with the name {match[1]!r}")
        keys[match[1]] = key
    if not keys or len(keys) > KEYS_MAX:
        raise ConfigurationError(f"{FILE} is {path!r}: it needs 1 to {KEYS_MAX} keys, and has {len(keys)}")
    return keys


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{FILE} is {path!r}: it is no regular file")
    if status.st_uid not in (os.geteuid(), _ROOT):
        raise ConfigurationError(f"{FILE} is {path!r}: it belongs to another user")
    if status.st_mode & 0o077:
        raise ConfigurationError(f"{FILE} is {path!r}: its group or others may use it: chmod 600 {path}")
    if status.st_size > FILE_BYTES_MAX:
        raise ConfigurationError(f"{FILE} is {path!r}: it has more than {FILE_BYTES_MAX} bytes")


def _aes_gcm(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "sealed payloads need the package cryptography: pip install 'stepwire[sealed]'"
        ) from None
    return AESGCM(key)
