"""What a worker remembers: the deliveries it holds, the brokers it talks to, the results it must not lose."""

from collections import OrderedDict
from typing import Final

from stepwire_protocol import limits, topics
from stepwire_protocol.messages import HeldState, Item, Result, StepRequest

from .actions import Lease

# A delivery goes through these in order, and leaves from any of them: to the tombstones.
QUEUED: Final[HeldState] = "queued"  # waits for a slot
ASKING: Final[HeldState] = "asking"  # at_most_once: has a slot, and waits for the broker's go
RUNNING: Final[HeldState] = "running"  # handed to its handler
DONE: Final[HeldState] = "done"  # its result is kept until a broker acks it

TOMBSTONES_MAX: Final = 20_000


class Peer:
    """One broker as the worker knows it: which session, until when, and what it may still be owed."""

    __slots__ = (
        "bytes_max",
        "deployment",
        "epoch",
        "floor",
        "heard_ms",
        "heartbeat_ms",
        "id",
        "is_quiet",
        "lease",
        "lease_ms",
        "load",
        "n_after",
        "next",
        "session",
        "steps_ms",
        "topic",
    )

    def __init__(self, id: str, now_ms: float) -> None:
        self.id = id
        self.topic = topics.results_to(id)
        self.next = 1  # the k of the current or next session; rises whenever a session is dropped
        self.epoch = -1
        self.session: str | None = None
        self.deployment: str | None = None
        self.n_after = -1  # only a welcome that echoes a later n counts
        self.lease = Lease()
        self.lease_ms = limits.LEASE_MS
        self.heartbeat_ms = limits.HEARTBEAT_MS
        self.bytes_max = limits.MESSAGE_BYTES_MAX
        self.floor = -1  # unknown batches of this session up to this number are stale
        self.load = 0  # deliveries of this broker that still need a slot or have one
        self.heard_ms = now_ms
        self.steps_ms = float("-inf")  # when it last sent work
        self.is_quiet = False


class Batch:
    """The steps of one message, of which results are to be reported together."""

    __slots__ = ("id", "number", "ready", "session", "size")

    def __init__(self, id: str, session: str, size: int) -> None:
        self.id = id
        self.session = session
        self.number = batch_number(id)
        self.size = size
        self.ready: list[tuple[Held, Result]] = []


class Held:
    """One delivery in this process."""

    __slots__ = (
        "ask_at_ms",
        "ask_wait_ms",
        "batch",
        "is_at_most_once",
        "is_interrupted",
        "is_overdue",
        "item",
        "message",
        "offer",
        "peer",
        "received_ms",
        "started_ms",
        "state",
        "step",
        "timeout_at_ms",
    )

    def __init__(self, item: Item, step: StepRequest, peer: Peer, batch: Batch, offer: int, now_ms: float) -> None:
        self.item = item
        self.step: StepRequest | None = step  # dropped with the result: nothing needs it then
        self.peer = peer
        self.batch = batch
        self.offer = offer
        self.received_ms = self.started_ms = now_ms
        self.state: HeldState | None = QUEUED  # None: forgotten
        self.is_at_most_once = step.delivery_mode == "at_most_once"
        self.is_overdue = False
        self.is_interrupted = False  # told to stop: what an at_most_once step then calls a failure is no verdict
        self.timeout_at_ms = float("inf")
        self.ask_at_ms = 0.0
        self.ask_wait_ms = 0.0
        self.message: Message | None = None


class Message:
    """A results message in the outbox."""

    __slots__ = ("at_ms", "batch", "body", "done", "is_replacement", "peer", "rid", "session", "tries", "wait_ms")

    def __init__(
        self, rid: int, peer: Peer, batch: Batch, session: str, body: bytes, done: list[Held], now_ms: float
    ) -> None:
        self.rid = rid
        self.peer = peer
        self.batch = batch
        self.session = session
        self.body = body
        self.done = done
        self.tries = 1
        self.wait_ms = float(limits.RESULTS_RETRANSMIT_MS)
        self.at_ms = now_ms + self.wait_ms
        self.is_replacement = False


class Tombstones:
    """Deliveries that must not start (again) in this process.

    The memory may be short because batch numbers rise within a session: when a tombstone is forgotten, its session's
    floor rises over it, and what is unknown below the floor is refused as stale. Only deliveries that were disowned
    without ever being seen have no batch number, and are kept for their full time.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Item, tuple[float, Peer, Batch]] = OrderedDict()
        self._disowned: OrderedDict[Item, tuple[float, Peer]] = OrderedDict()

    def __contains__(self, item: Item) -> bool:
        return item in self._seen or item in self._disowned

    def add(self, item: Item, peer: Peer, batch: Batch, now_ms: float) -> None:
        self._seen[item] = (now_ms, peer, batch)
        if len(self._seen) > TOMBSTONES_MAX:
            self._forget_oldest()

    def disown(self, item: Item, peer: Peer, now_ms: float) -> None:
        if item not in self._seen:
            self._disowned[item] = (now_ms, peer)

    def sweep(self, now_ms: float) -> None:
        before = now_ms - limits.TOMBSTONE_MS
        while self._seen and next(iter(self._seen.values()))[0] < before:
            self._forget_oldest()
        while self._disowned and next(iter(self._disowned.values()))[0] < before:
            self._disowned.popitem(last=False)

    def forget_broker(self, peer: Peer) -> None:
        """Its database was replaced: its numbers mean something else now."""
        for item in [item for item, entry in self._seen.items() if entry[1] is peer]:
            del self._seen[item]
        for item in [item for item, (_, owner) in self._disowned.items() if owner is peer]:
            del self._disowned[item]

    def _forget_oldest(self) -> None:
        _, (_, peer, batch) = self._seen.popitem(last=False)
        if batch.session == peer.session and batch.number > peer.floor:
            peer.floor = batch.number


def batch_number(batch_id: str) -> int:
    """The rising number of `batch_<nonce>_<n>`; -1 for an id of another form, which no floor can cover."""
    number = batch_id.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 16 else -1
