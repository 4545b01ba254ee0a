"""CURVE keys as text: 40 characters of Z85, 32 bytes on the wire. Commands import this file, and ZeroMQ only late."""

import re
from typing import Final, NamedTuple

from stepwire_protocol import topics

from stepwire_broker.errors import BrokerError

_KEY: Final = re.compile(topics.CURVE_KEY_PATTERN)


class KeyFileError(BrokerError):
    """A key file cannot be read, trusted or written. The message names the file, the fault and the remedy."""


class KeyPair(NamedTuple):
    """The two keys of one CURVE identity, in Z85."""

    public: str
    secret: str


def new_pair() -> KeyPair:
    """A pair whose public key can be an argument of a command: it does not look like an option."""
    import zmq

    while True:
        public, secret = zmq.curve_keypair()
        if not public.startswith(b"-"):
            return KeyPair(public.decode(), secret.decode())


def is_key(text: str) -> bool:
    """True for 40 characters of Z85 that stand for 32 bytes. Some texts of the right form exceed that range."""
    return _KEY.fullmatch(text) is not None and raw(text) is not None


def raw(text: str) -> bytes | None:
    """The 32 bytes of a key; None for a text that is no key."""
    from zmq.utils import z85

    try:
        data: bytes = z85.decode(text)
    except Exception:  # pyzmq raises struct.error, KeyError or ValueError for a text out of range
        return None
    return data if len(data) == 32 else None


def public_of(secret: str) -> str:
    import zmq

    return zmq.curve_public(secret.encode()).decode()
