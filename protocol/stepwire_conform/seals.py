"""Seals and unseals payloads as SPEC.md, section 21, describes it: the kit's own side of a sealed step."""

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any, Final, NamedTuple

from . import aes_gcm
from .case import RuleBroken

MEMBERS: Final = ("$sealed", "kid", "nonce", "data", "clear")
ERROR_MESSAGE: Final = "the error is sealed: stepwire task show --unseal prints it"


class SealedPlace(NamedTuple):
    """The place to which a payload is bound. `step` is empty for a context."""

    kind: str
    namespace: str
    workflow: str
    key: str
    step: str = ""


class SealKey:
    """One key of a run."""

    def __init__(self, kid: str, key: bytes | None = None) -> None:
        self.kid = kid
        self.key = key or secrets.token_bytes(32)

    @property
    def line(self) -> str:
        """The line of a file of keys."""
        return f"{self.kid}={base64.b64encode(self.key).decode()}\n"

    def sealed(self, place: SealedPlace, plaintext: bytes, **task: str) -> dict[str, Any]:
        """The payload of this plaintext. `task` replaces names of the task in a context."""
        aad = self._associated_data(place)
        nonce = self._nonce(aad, plaintext)
        data = aes_gcm.sealed(self._derived("encryption"), nonce, plaintext, aad)
        payload: dict[str, Any] = {"$sealed": "v1", "kid": self.kid}
        if place.kind == "context":
            payload["task"] = {"namespace": place.namespace, "workflow": place.workflow, "key": place.key} | task
        payload |= {"nonce": base64.b64encode(nonce).decode(), "data": base64.b64encode(data).decode()}
        return payload | {"clear": clear_of(plaintext) if place.kind != "error" else {}}

    def opened(self, place: SealedPlace, payload: Any) -> Any:
        """The decoded plaintext of a payload of the worker. Raises RuleBroken if any part differs from the rules."""
        if not isinstance(payload, dict) or tuple(sorted(payload)) != tuple(sorted(MEMBERS)):
            raise RuleBroken(f"the {place.kind} is not a sealed payload: {str(payload)[:300]}")
        if payload["$sealed"] != "v1" or payload["kid"] != self.kid:
            named = payload["kid"]
            raise RuleBroken(
                f"the {place.kind} is sealed with {named!r}, and the first key of the file is {self.kid!r}"
            )
        try:
            nonce, data = (base64.b64decode(payload[name], validate=True) for name in ("nonce", "data"))
        except ValueError:
            raise RuleBroken(f"`nonce` or `data` of the {place.kind} is no Base64") from None
        aad = self._associated_data(place)
        plaintext = aes_gcm.unsealed(self._derived("encryption"), nonce, data, aad)
        if plaintext is None:
            raise RuleBroken(
                f"the {place.kind} does not open with the AAD of its task and step",
                cause="the AAD has other parts, another order or other lengths, or the key is not derived",
            )
        if nonce != self._nonce(aad, plaintext):
            raise RuleBroken(
                f"the nonce of the {place.kind} does not follow from its content",
                cause="the nonce is random, or made with another key or without the AAD",
            )
        clear = clear_of(plaintext) if place.kind != "error" else {}
        if payload["clear"] != clear:
            raise RuleBroken(f"`clear` of the {place.kind} is {payload['clear']!r}, and the plaintext has {clear!r}")
        return json.loads(plaintext)

    def _derived(self, purpose: str) -> bytes:
        """HKDF-SHA-256 without salt, 32 bytes."""
        pseudorandom = hmac.digest(bytes(32), self.key, "sha256")
        return hmac.digest(pseudorandom, f"stepwire sealed v1 {purpose}".encode() + b"\x01", "sha256")

    def _nonce(self, aad: bytes, plaintext: bytes) -> bytes:
        return hmac.digest(self._derived("nonce"), aad + plaintext, hashlib.sha256)[:12]

    def _associated_data(self, place: SealedPlace) -> bytes:
        parts = ["stepwire sealed v1", place.kind, self.kid, place.namespace, place.workflow, place.key]
        parts += [place.step] if place.step else []
        return b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)


def clear_of(plaintext: bytes) -> dict[str, Any]:
    """The copy of the plaintext's member `clear` that the payload shows."""
    value = json.loads(plaintext)
    clear = value.get("clear") if isinstance(value, dict) else None
    return clear if isinstance(clear, dict) else {}
