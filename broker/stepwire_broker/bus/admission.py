"""The admission: which connections the authenticator admits, as an immutable value that the loop replaces."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct

from stepwire_broker.last_uses import DIGITS

from .user_id import user_id_of


class ZapVerdict(NamedTuple):
    """The answer to one request. Without a reason the connection is admitted as this principal."""

    principal: str = ""  # of a refused connection: the owner of its key, if known
    reason: str = ""  # one of REASONS
    proof: str = ""  # what proved the identity, as `proof_of_key` and `proof_of_user` name it


class Admission(Struct, frozen=True):
    """Which connections are admitted, and as which principal. Keys are the 32 bytes of public keys."""

    keys: Mapping[bytes, str] = {}
    uids: Mapping[int, str] = {}
    anonymous: str | None = None  # the principal of tcp connections without CURVE; None: they are refused
    refused_keys: Mapping[bytes, ZapVerdict] = {}  # known keys without access: expired or revoked
    refused_uids: Mapping[int, ZapVerdict] = {}  # the same for users of this host
    blocked: frozenset[str] = frozenset()  # principals that are refused for a while
    withdrawals: Mapping[str, int] = {}  # by proof: how often it has lost its access

    def user_id(self, principal: str, proof: str) -> str:
        """The User-Id of a connection that is admitted now."""
        return user_id_of(principal, proof, self.withdrawals.get(proof, 0))

    @property
    def principals(self) -> dict[str, str]:
        """The principals of the connections that may be open, by User-Id."""
        by_key = {self.user_id(name, proof_of_key(key)): name for key, name in self.keys.items()}
        return by_key | {self.user_id(name, proof_of_user(uid)): name for uid, name in self.uids.items()}


def proof_of_key(key: bytes) -> str:
    """The name of a public key in the file of last uses."""
    return sha256(key).hexdigest()[:DIGITS]


def proof_of_user(uid: int) -> str:
    return f"{_USER}{uid}"


def is_user(proof: str) -> bool:
    """True if this proof is a user of the host, and not a key."""
    return proof.startswith(_USER)


_USER: Final = "unix="
