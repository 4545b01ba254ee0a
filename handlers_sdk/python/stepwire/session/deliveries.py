"""Records of what a worker holds: deliveries, the batches that contained them, and the messages with their results."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import HeldState, Item, Result, StepRequest

from stepwire.actions import NEVER, Run

from .brokers import BrokerPeer

# A delivery passes through these states in this order. In any of them it can end, and then becomes a tombstone.
QUEUED: Final[HeldState] = "queued"  # waits in the session
ASKING: Final[HeldState] = "asking"  # at_most_once: has a slot, and waits for the broker's go
RUNNING: Final[HeldState] = "running"  # handed to the runner: its run begins when a slot is free
DONE: Final[HeldState] = "done"  # its result is kept until a broker acknowledges it


class HeldBatch:
    """The steps of one message. Their results are reported together if possible."""

    __slots__ = ("id", "may_need_opening", "number", "open", "ready", "session", "unsent")

    def __init__(self, id: str, session: str, size: int, may_need_opening: bool = True) -> None:
        self.id = id
        self.session = session
        self.may_need_opening = may_need_opening  # False: certainly no step has secrets or is sealed
        self.number = batch_number(id)
        self.open = 0  # accepted steps that have not ended
        self.unsent = size  # steps without a sent result
        self.ready: list[tuple[HeldDelivery, Result]] = []  # finished, and in no message yet


class HeldDelivery:
    """One delivery in this process."""

    __slots__ = (
        "ask_at_ms",
        "ask_wait_ms",
        "batch",
        "is_at_most_once",
        "is_interrupted",
        "is_stopping",
        "item",
        "message",
        "offer",
        "peer",
        "received_ms",
        "run",
        "state",
        "step",
    )

    def __init__(
        self, item: Item, step: StepRequest, peer: BrokerPeer, batch: HeldBatch, offer: int, now_ms: float
    ) -> None:
        self.item = item
        self.step: StepRequest | None = step  # None after the run has ended, when only the result is needed
        self.peer = peer  # the broker that owns the delivery; changed by an adoption
        self.batch = batch
        self.offer = offer
        self.received_ms = now_ms
        self.run: Run | None = None  # since its hand-over to the runner
        self.state: HeldState | None = QUEUED  # None: no longer held
        self.is_at_most_once = step.delivery_mode == "at_most_once"
        self.is_stopping = False  # was asked to stop
        self.is_interrupted = False  # the same, or lost its broker: a failure of an at_most_once step proves nothing
        self.ask_at_ms = 0.0
        self.ask_wait_ms = 0.0
        self.message: ResultsMessage | None = None

    @property
    def timeout_at_ms(self) -> float:
        return NEVER if self.run is None else self.run.timeout_at_ms

    @property
    def reported_state(self) -> HeldState | None:
        """The state for brokers, for which a step runs from its start. A granted step counts as running at once."""
        if self.state is RUNNING and not self.is_at_most_once and (self.run is None or self.run.started_ms is None):
            return QUEUED
        return self.state

    def age_ms(self, now_ms: float) -> int:
        """Milliseconds since the start of the run, or since the receipt if the run has not started. A granted run that
        begins now has no age: the time for which it waited for its go is not part of its timeout."""
        started_ms = None if self.run is None else self.run.started_ms
        if started_ms is None and self.reported_state is RUNNING:
            return 0
        return max(0, int(now_ms - (self.received_ms if started_ms is None else started_ms)))

    def withdraw(self) -> bool:
        """True if the run has not begun, and now never will. The caller then ends the delivery."""
        if self.state is RUNNING:
            return self.run is not None and self.run.take_back()
        return self.state is QUEUED or self.state is ASKING


class ResultsMessage:
    """A results message that no broker has acknowledged yet."""

    __slots__ = ("at_ms", "batch", "body", "done", "is_replacement", "peer", "rid", "session", "tries", "wait_ms")

    def __init__(
        self,
        rid: int,
        peer: BrokerPeer,
        batch: HeldBatch,
        session: str,
        body: bytes,
        done: list[HeldDelivery],
        now_ms: float,
        is_replacement: bool,
    ) -> None:
        self.rid = rid
        self.peer = peer
        self.batch = batch
        self.session = session
        self.body = body
        self.done = done
        self.is_replacement = is_replacement  # carries an error in place of a result that no broker accepts
        self.tries = 1
        self.wait_ms = float(limits.RESULTS_RETRANSMIT_MS)
        self.at_ms = now_ms + self.wait_ms


def batch_number(batch_id: str) -> int:
    """The increasing number n of `batch_<nonce>_<n>`. An id of another form has -1, and is never refused as stale by
    its number."""
    number = batch_id.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 16 else -1
