"""What an observer of the frames and actions knows: of each delivery, each results message, and each broker."""

from typing import Any

from stepwire_protocol.messages import Item, StepRequest

NEVER = float("inf")


class Delivery:
    """One delivery, from its first receipt to its end."""

    def __init__(self, item: Item, step: StepRequest, broker: str, received_ms: float) -> None:
        self.item = item
        self.step = step
        self.received_ms = received_ms
        self.brokers = {broker}  # that sent it, or have adopted it
        self.batches: set[str] = set()
        self.is_ambiguous = False  # was received in several versions: its timeout is not certain
        self.begun_ms: float | None = None
        self.ended_ms: float | None = None
        self.stop_reason: str | None = None
        self.is_interrupted = False  # also by `lease_lost`
        self.was_interrupted_at_end = False
        self.is_granted = False
        self.has_asked = False
        self.is_orphan = False  # its broker's database was replaced
        self.was_held = False  # was accepted: a receipt after the end of a session is none
        self.is_timed_out_by_broker = False
        self.never: str | None = None  # the reason for which it must never begin
        self.is_owed = False  # ended, and in no results message yet

    @property
    def is_running(self) -> bool:
        return self.begun_ms is not None and self.ended_ms is None

    @property
    def is_at_most_once(self) -> bool:
        return self.step.delivery_mode == "at_most_once"


class SentResults:
    """One results message that no broker has acknowledged."""

    def __init__(self, message: Any, broker: str, sent_ms: float) -> None:
        self.items: list[Item] = [(result.step_id, result.delivery) for result in message.results]
        self.n = message.n
        self.broker = broker
        self.sent_ms = sent_ms
        self.results = [(result.status, bytes(result.output)) for result in message.results]


class KnownBroker:
    """What the worker was sent by one broker, and what the worker claims about it."""

    def __init__(self) -> None:
        self.deployment: str | None = None
        self.next = 1
        self.claimed: str | None = None  # the session in the worker's last hello or heartbeat
        self.lease_ms: dict[str, int] = {}  # by session
        self.lease_until_ms: dict[str, float] = {}  # by session
        self.dropped_ms = 0.0  # when the worker's claims showed the last drop
        self.is_known = False
        self.is_doubtful = False  # has named another database, so any of them may be the worker's

    def lease_end_ms(self) -> float:
        return max(self.lease_until_ms.values(), default=0.0)


class Unanswered:
    """A steps message that must be answered, unless its session ends before."""

    def __init__(self, broker: str, session: str, batch_id: str, items: set[Item], received_ms: float) -> None:
        self.broker = broker
        self.session = session
        self.batch_id = batch_id
        self.items = items
        self.received_ms = received_ms
