"""The budgets of the bus: how much one connection and one principal may use, and the arithmetic that decides it.

Pure: the time is an argument. `connections.py` applies the budgets to real connections.
"""

from typing import Final, Literal, TypeAlias

from msgspec import Struct
from stepwire_protocol import limits

UNAUTHENTICATED_MAX: Final = 64  # connections that have not finished their handshake
HANDSHAKE_MS: Final = 2_000
SUBSCRIPTIONS_MAX: Final = 8  # topics of one connection; a worker needs two
SUBSCRIPTION_CHANGES_MAX: Final = 64  # of one connection in REFUSED_WITHIN_S
SUBSCRIPTIONS_QUEUED: Final = 64
REFUSED_MAX: Final = 32  # refused frames of one connection in REFUSED_WITHIN_S
REFUSED_WITHIN_S: Final = 10.0
MESSAGES_PER_S: Final = 20_000  # of one principal
BYTES_PER_S: Final = 64 * 1024 * 1024
BURST_S: Final = 2.0
QUEUED_BYTES_MAX: Final = 128 * 1024 * 1024  # of one connection
STEPS_RECEIVE_BUFFER: Final = 2_048  # of a connection that only subscribes, in the kernel
UNREAD_BYTES_MAX: Final = 96 * 1024 * 1024  # of all tcp connections together, unfinished messages included
GROWTH_BYTES_MAX: Final = 96 * 1024 * 1024  # of the process, by messages of which some were not read
CROWD: Final = 256  # connections of which most have ended: their memory is returned to the system
CROWD_EVERY_S: Final = 5.0
LIGHT_USE_S: Final = 0.01  # of a connection in about 0.2 s, in seconds of its principal's rates: 1,000 messages/s
REFUSED_BYTES_EACH: Final = 1024 * 1024  # a refused frame counts once more for each
HOLD_BACK_BLAMED_S: Final = 0.1  # of a handshake soon after a connection has ended as no correct program's would
BLAMED_S: Final = 1.0  # the time for which such an end delays the handshakes
HOLD_BACK_S: Final = 0.25  # the time for which a handshake waits at most for the others' messages to be read
BLOCK_S: Final = 10.0  # a principal that repeats its offence is blocked for this time, doubled with each repetition
BLOCK_MAX_S: Final = 3_600.0
FORGIVE_S: Final = 60.0  # without an offence

MAX_MESSAGE_FACTOR: Final = limits.FRAME_BYTES_MAX // limits.MESSAGE_BYTES_MAX

Verdict: TypeAlias = Literal["pass", "drop", "disconnect"]


def results_queued(results_hwm: int, max_message_bytes: int) -> int:
    """Return the number of messages of one connection that may wait unread, in the setting and the budget of bytes."""
    return max(1, min(results_hwm, QUEUED_BYTES_MAX // (max_message_bytes * MAX_MESSAGE_FACTOR)))


def unread_bytes_max(max_message_bytes: int) -> int:
    """Return how many bytes of all connections may wait unread. Two of the largest frames always fit."""
    return max(UNREAD_BYTES_MAX, 2 * max_message_bytes * MAX_MESSAGE_FACTOR)


class Window(Struct):
    """Counts events, and starts again once REFUSED_WITHIN_S have passed since the first."""

    since_s: float = 0.0
    count: int = 0

    def add(self, now_s: float, weight: int = 1) -> int:
        """Count one event. Return the number of events in the current window."""
        if not self.count or now_s - self.since_s > REFUSED_WITHIN_S:
            self.since_s, self.count = now_s, 0
        self.count += weight
        return self.count


class Bucket(Struct):
    """A rate with a burst of BURST_S. What exceeds the rate is dropped; what exceeds twice the rate disconnects."""

    per_s: float
    passing: float  # how much may pass now
    dropping: float  # how much may be dropped now before a connection must end
    filled_s: float

    @classmethod
    def full(cls, per_s: float, now_s: float) -> "Bucket":
        return cls(per_s, per_s * BURST_S, per_s * BURST_S, now_s)

    def take(self, amount: float, now_s: float) -> Verdict:
        """Use `amount`. A message larger than the rest of the bucket passes once, so that every message can pass."""
        if now_s > self.filled_s:
            full, gained = self.per_s * BURST_S, (now_s - self.filled_s) * self.per_s
            self.passing = min(full, self.passing + gained)
            self.dropping = min(full, self.dropping + gained)
            self.filled_s = now_s
        if self.passing > 0:
            self.passing -= amount
            return "pass"
        if self.dropping > 0:
            self.dropping -= amount
            return "drop"
        self.dropping = self.per_s * BURST_S  # one connection ends; the others get the time to show their own rate
        return "disconnect"


class PrincipalUsage(Struct):
    """The messages and bytes of one principal."""

    messages: Bucket
    bytes: Bucket

    @classmethod
    def unused(cls, messages_per_s: float | None, bytes_per_s: float | None, now_s: float) -> "PrincipalUsage":
        return cls(
            Bucket.full(messages_per_s or MESSAGES_PER_S, now_s),
            Bucket.full(bytes_per_s or BYTES_PER_S, now_s),
        )

    def take(self, size: int, now_s: float) -> Verdict:
        verdict = self.messages.take(1, now_s)
        return verdict if verdict != "pass" else self.bytes.take(size, now_s)


class Offences(Struct):
    """How often connections of one principal were ended for refused frames, and until when it is blocked."""

    count: int = 0
    last_s: float = 0.0
    blocked_until_s: float = 0.0

    def add(self, now_s: float) -> bool:
        """Record one. The first only disconnects. Return True if the principal is blocked from now on."""
        if now_s - max(self.last_s, self.blocked_until_s) > FORGIVE_S:
            self.count = 0
        self.count += 1
        self.last_s = now_s
        if self.count == 1:
            return False
        self.blocked_until_s = now_s + min(BLOCK_MAX_S, BLOCK_S * 2.0 ** min(self.count - 2, 16))
        return True
