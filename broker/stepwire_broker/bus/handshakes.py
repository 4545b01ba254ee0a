"""How many bytes a handshake has, by which the kernel's counts show how far it is.

A peer may send messages only after the broker has sent more than its own part: a PUB waits for the broker's
subscriptions. Encrypted handshakes are longer.
"""

from typing import Final, NamedTuple

from .kernel_counts import KernelCounts

READ_BYTES_MAX: Final = 16 * 1024  # that libzmq has read before the end of a handshake

_GREETING: Final = 64


class HandshakeBytes(NamedTuple):
    """The size of a handshake on tcp."""

    sent: int  # by the broker, at most
    received: int  # from an honest peer, at least

    def has_spoken(self, counts: KernelCounts | None) -> bool:
        """True if the peer has sent its part, or the kernel does not tell."""
        return counts is None or counts.received >= self.received

    def has_ended(self, counts: KernelCounts | None) -> bool:
        return counts is None or counts.sent > self.sent


PLAIN: Final = HandshakeBytes(sent=_GREETING + 28, received=_GREETING + 25)  # READY with the socket's type
ENCRYPTED: Final = HandshakeBytes(
    sent=_GREETING + 170 + 52, received=_GREETING + 202 + 259
)  # WELCOME, READY; HELLO, INITIATE
