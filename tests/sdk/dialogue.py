"""A worker's session and scripted brokers in simulated time. Every message crosses as bytes, in both directions."""

from typing import Any, TypeVar

from msgspec import Raw
from stepwire.actions import CancelRun, Link, Log, Run, Send
from stepwire.runners.run_slots import RunSlots
from stepwire.session import Config, Offer, Session
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import (
    Ack,
    Adopt,
    Cancel,
    ErrorDetail,
    FromBroker,
    Go,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Here,
    Refused,
    Reset,
    Result,
    StepMetadata,
    StepRequest,
    Steps,
    Welcome,
    WorkerMessage,
)

WORKER = "w:0123456789abcdef"
M = TypeVar("M")


class Dialogue:
    def __init__(self, *, offers: tuple[Offer, ...] = (Offer("**"),), slots: int = 4, **config: Any) -> None:
        settings = {"worker": WORKER, "links": (Link("tcp://h:1", "tcp://h:2"),), **config}
        self.session = Session(Config(offers=offers, slots=slots, **settings), lambda: 0.5)
        self.slots: RunSlots[Run] = RunSlots(slots, offers)
        self.handed: dict[tuple[int, int], Run] = {}  # without a report of their end
        self.begun: list[tuple[int, int]] = []
        self.now = 1000.0
        self.actions: list[Any] = []
        self.sent: list[WorkerMessage] = []
        self.topics: list[bytes] = []
        self.session.start(self.now)
        self.act()

    # -- the world ----------------------------------------------------------------------------------------------------

    def act(self) -> list[Any]:
        """Take the actions that are due. Sent messages go to `sent`, decoded as a broker decodes them."""
        actions = self.session.actions(self.now)
        self.actions += actions
        for action in actions:
            if isinstance(action, Send):
                self.sent.append(codec.decode_worker(action.body))
                self.topics.append(action.topic)
            elif isinstance(action, Run):
                self.handed[action.item] = action
                self.begin(*self.slots.add([action]))
        return actions

    def begin(self, *runs: Run) -> None:
        """Begin runs that have a slot, as a runner does. A run that must not begin is given back."""
        for run in runs:
            if run.begin(self.now):
                self.begun.append(run.item)
            else:
                self.release(run.item)
                self.session.give_back(run.item, self.now)

    def release(self, item: tuple[int, int]) -> None:
        """Release the slot of a run that has begun, which begins the next one."""
        run = self.handed.pop(item, None)
        following = None if run is None else self.slots.release(run)
        if following is not None:
            self.begin(following)

    def give_back(self, step_id: int, delivery: int = 1) -> None:
        self.release((step_id, delivery))
        self.session.give_back((step_id, delivery), self.now)
        self.act()

    def pass_time(self, ms: float) -> None:
        """Let time pass, and wake the session exactly at its `wake_at`."""
        until = self.now + ms
        idle_rounds = 0
        while self.session.wake_at() <= until:
            before = self.now
            self.now = max(self.now, self.session.wake_at())
            idle_rounds = 0 if self.act() or self.now > before else idle_rounds + 1
            assert idle_rounds < 100, "the session asks to be woken again and again for nothing"
        self.now = until

    def freeze(self, ms: float) -> None:
        """Let time pass while the process is frozen."""
        self.now += ms

    def send(self, message: FromBroker, topic: bytes | None = None) -> None:
        self.session.receive(topic or topics.to_worker(WORKER), codec.encode(message), self.now)
        self.act()

    def finish(self, step_id: int, delivery: int = 1, output: bytes = b"null") -> None:
        self.finish_with(Result(step_id=step_id, delivery=delivery, status="completed", output=Raw(output)))

    def fail(self, step_id: int, delivery: int = 1, **detail: Any) -> None:
        error = ErrorDetail(**{"message": "no", **detail})
        self.finish_with(Result(step_id=step_id, delivery=delivery, status="failed", error=error))

    def finish_with(self, *results: Result) -> None:
        for result in results:
            assert isinstance(result.delivery, int)
            self.release((result.step_id, result.delivery))
            self.session.finished((result.step_id, result.delivery), result, self.now)
        self.act()

    # -- records -----------------------------------------------------------------------------------------------------

    def take(self, kind: type[M]) -> list[M]:
        """The messages of this kind that were sent since the last call."""
        messages = [m for m in self.sent if isinstance(m, kind)]
        self.sent = [m for m in self.sent if not isinstance(m, kind)]
        return messages

    def runs(self) -> list[tuple[int, int]]:
        """The runs that have begun, in their order."""
        return self.begun.copy()

    def cancels(self) -> list[tuple[tuple[int, int], str]]:
        return [(a.item, a.reason) for a in self.actions if isinstance(a, CancelRun)]

    def logs(self) -> list[str]:
        return [a.event for a in self.actions if isinstance(a, Log)]

    def of(self, kind: type[M]) -> list[M]:
        return [a for a in self.actions if isinstance(a, kind)]

    def states(self) -> dict[tuple[int, int], str]:
        return {(i, d): state for i, d, state, _ in self.session.holding(self.now)}


class Broker:
    """Sends the messages of a broker, as the test calls for them."""

    def __init__(self, dialogue: Dialogue, id: str = "b1", epoch: int = 7, deployment: str = "dep") -> None:
        self.dialogue = dialogue
        self.id = id
        self.epoch = epoch
        self.deployment = deployment
        self.k = 1
        self.batches = 0
        self.bytes_max = 4 * 1024 * 1024
        self.lease_ms = 10_000
        self.brokers: list[Any] = []

    @property
    def session(self) -> str:
        return f"{self.epoch}.{self.k}"

    def send(self, kind: type[FromBroker], **members: Any) -> None:
        self.dialogue.send(kind(v="2.0", broker=self.id, epoch=self.epoch, **members))

    def here(self) -> None:
        message = Here(v="2.0", broker=self.id, epoch=self.epoch, deployment=self.deployment, versions=["2.0"])
        self.dialogue.send(message, topics.BROKERS)

    def welcome(self, n: int | None = None) -> "Broker":
        """Answer the latest hello, with its k."""
        hellos = [m for m in self.dialogue.sent if isinstance(m, Hello)]
        if hellos:
            self.k = hellos[-1].next.get(self.id, 1)
        self.send(
            Welcome,
            session=self.session,
            deployment=self.deployment,
            n=hellos[-1].n if n is None else n,
            lease_ms=self.lease_ms,
            heartbeat_ms=2000,
            max_message_bytes=self.bytes_max,
            brokers=self.brokers,
        )
        return self

    def beat(self, **flags: Any) -> None:
        """Ack the latest heartbeat."""
        n = [m.n for m in self.dialogue.sent if isinstance(m, Heartbeat)][-1]
        self.send(HeartbeatAck, session=self.session, n=n, **flags)

    def steps(self, *steps: StepRequest, batch_id: str | None = None) -> str:
        if batch_id is None:
            self.batches += 1
            batch_id = f"batch_{self.id}{self.epoch}_{self.batches}"
        self.send(Steps, session=self.session, batch_id=batch_id, protocol_version="2.0", steps=list(steps))
        return batch_id

    def go(self, *items: tuple[int, int]) -> None:
        self.send(Go, session=self.session, items=list(items))

    def cancel(self, *items: tuple[int, int], reason: str = "task_cancelled") -> None:
        self.send(Cancel, session=self.session, items=list(items), reason=reason)

    def adopt(self, *items: tuple[int, int]) -> None:
        self.send(Adopt, session=self.session, items=list(items))

    def ack(self, *rids: int) -> None:
        self.send(Ack, rids=list(rids))

    def reset(self, code: str = "expired", next: int | None = None) -> None:
        self.send(Reset, next=self.k if next is None else next, code=code)

    def refused(self, rid: int, code: str) -> None:
        self.send(Refused, code=code, message="no", refused="results", rid=rid)


def welcomed(**config: Any) -> tuple[Dialogue, Broker]:
    """A worker with a session, after its first heartbeat."""
    dialogue = Dialogue(**config)
    broker = Broker(dialogue).welcome()
    broker.beat()
    dialogue.sent.clear()
    dialogue.topics.clear()
    return dialogue, broker


def step(step_id: int, delivery: int = 1, *, handler: str = "h", timeout_ms: int = 30_000, **rest: Any) -> StepRequest:
    return StepRequest(
        step_id=step_id,
        task_id=1_000_000 + step_id,
        step_name=f"s{step_id}",
        handler_class=handler,
        delivery=delivery,
        metadata=StepMetadata(attempt=0, retry_limit=3, timeout_ms=timeout_ms, idempotency_key=f"k/{step_id}"),
        **rest,
    )


def once(step_id: int, delivery: int = 1, **rest: Any) -> StepRequest:
    return step(step_id, delivery, delivery_mode="at_most_once", **rest)
