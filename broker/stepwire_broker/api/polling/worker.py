"""One worker that comes over HTTP: its half of the protocol, which it cannot speak itself.

To the core it is a worker like any other, with a session, a lease and a credit. It takes what the core gives at once,
since it lives beside it; what the client has of that is another question. So everything given stays in `held` until
the client has said what came of it, or has said, in a later call, that it does not have it. That alone is a proof: an
answer may be on its way for any time. Nothing is ever concluded from silence here: the lease decides on that, in the
core.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Adopt,
    Adopted,
    Bye,
    Cancel,
    FromWorker,
    Go,
    Heartbeat,
    HeartbeatAck,
    HeldItem,
    HeldState,
    Hello,
    Item,
    Progress,
    ProgressItem,
    Refuse,
    Refused,
    Results,
    Start,
    Steps,
)
from stepwire_protocol.polling import CancelledItem, LeaseCall, ResultsCall

from stepwire_broker.api.engine_port import EnginePort

V: Final = limits.PROTOCOL_LEVEL_1
GIVE_BACK_S: Final = 1.0  # steps that come when no call waits are kept so long for the next one
HELD_MAX: Final = limits.BATCH_ITEMS_MAX
ACKED_REMEMBERED_MAX: Final = limits.BATCH_ITEMS_MAX
NO_BATCH: Final = "none"  # an accept of this says how much is free, and nothing else

_RANK: Final[dict[HeldState, int]] = {"queued": 0, "asking": 1, "running": 2, "done": 3}


class LeasedStep(Struct):
    """A delivery that was given to this worker, and what the client last said of it."""

    state: HeldState
    since_mono: int
    is_given: bool = True  # it has been in an answer


class Starting(Struct, eq=False):
    """A client waits to be told whether it may start these."""

    waits_for: set[Item]
    answered: "asyncio.Future[None]"
    granted: list[Item]
    refused: list[CancelledItem]


class Reporting(Struct, eq=False):
    """A client waits until its results are committed."""

    answered: "asyncio.Future[None]"
    refused: Refused | None = None


class PollWorker:
    def __init__(self, id: str, broker: EnginePort) -> None:
        self.id = id
        self.session: str | None = None
        self.last_n = 0  # of the client's calls for a lease
        self.heard_mono = broker.now().mono
        self.is_leaving = False
        self.quiet = False
        self.quit = False
        self.held: dict[Item, LeasedStep] = {}
        self.cancels: dict[Item, CancelledItem] = {}
        self.batches: dict[str, Steps] = {}  # here, and not in an answer yet
        self.waiter: asyncio.Future[None] | None = None  # of the call for a lease that waits now
        self._broker = broker
        self._starting: list[Starting] = []
        self._reporting: dict[int, Reporting] = {}
        self._acked: dict[Item, None] = {}  # a call may have left before the client knew
        self._n = 0
        self._rid = 0
        self._batch = 0  # the latest: their numbers rise within a session
        self._is_whole_truth = False  # the client has said in this session what it holds

    # -- what the client says -----------------------------------------------------------------------------------------

    @property
    def has_given(self) -> bool:
        """Is there something that the client was given, and has not said what came of it?"""
        return any(held.is_given for held in self.held.values())

    @property
    def is_alive(self) -> bool:
        """Does the core still know the session? It alone decides when a lease is over."""
        session = self._broker.state.sessions.get(self.id)
        return session is not None and session.id == self.session

    def open(self, k: int, call: LeaseCall) -> bool:
        """A new session. What the client says it holds moves into it, as far as it is still this worker's."""
        broker = self._broker
        self.session = topics.session_id(broker.epoch, k)
        self.held = {}
        self.cancels = {}
        self.batches = {}
        self._is_whole_truth = False
        self._take(call.holding)
        hello = Hello(
            v=V,
            worker=self.id,
            n=self._next_n(),
            versions=[call.v],
            next={broker.broker_id: k},
            handlers=call.handlers,
            shadow_safe=call.shadow_safe,
            labels=call.labels,
            slots=call.slots,
            free={broker.broker_id: 0},
            holding=call.holding,
            heartbeat_ms=broker.settings.bus.heartbeat_ms or limits.HEARTBEAT_MS,
            lang=call.lang,
            sdk=call.sdk,
            host=call.host,
            pid=call.pid,
            max_message_bytes=call.max_message_bytes,
        )
        self._say(topics.WORKERS, hello)
        return self.is_alive

    def beat(self, holding: Iterable[HeldItem] = (), free: int | None = None) -> bool:
        """The client lives, and holds this. What it does not name may be on its way to it. False: the lease is over."""
        self._take(holding)
        self._say(
            topics.WORKERS,
            Heartbeat(
                v=V,
                worker=self.id,
                n=self._next_n(),
                sessions={self._broker.broker_id: self.session or ""},
                free={} if free is None else {self._broker.broker_id: free},
                holding=self._holding(),
            ),
        )
        return self.is_alive

    def tell_progress(self, items: list[ProgressItem]) -> None:
        self._tell(Progress(v=V, worker=self.id, session=self.session or "", items=items))

    def keep_whole(self, holding: list[HeldItem]) -> None:
        """The client has everything that it was given, but for what is missing here: that never came to it, or it has
        dropped it. It will not start it, so somebody else may."""
        self._is_whole_truth = True
        told = {(step_id, delivery) for step_id, delivery, _, _ in holding}
        missing = [item for item, held in self.held.items() if held.is_given and item not in told]
        recovered = self._broker.state.recovered.get(self.id, {})
        missing += [item for s in recovered.values() if (item := (s.id, s.delivery)) not in told | self.held.keys()]
        for item in missing:
            self._forget(item)
        self._say_unknown(missing)

    def withdraw(self) -> None:
        """Nobody waits for steps any more. Says nothing of the client's life: it has said nothing either."""
        if self.is_alive:
            self._tell(Accept(v=V, worker=self.id, session=self.session or "", batch_id=NO_BATCH, free=0))

    def take_batch(self, free: int) -> Steps | None:
        """Steps for an answer that leaves now. A batch that was asked for when there was more room is given back."""
        for batch_id, steps in list(self.batches.items()):
            if len(steps.steps) > free:
                self.give_back(batch_id)
                continue
            del self.batches[batch_id]
            for item in _items(steps):
                self.held[item].is_given = True
            return steps
        return None

    def start(self, items: list[Item]) -> Starting:
        starting = Starting(set(items), asyncio.get_running_loop().create_future(), [], [])
        self._starting.append(starting)
        self._tell(Start(v=V, worker=self.id, session=self.session or "", items=items))
        return starting

    def report(self, call: ResultsCall) -> Reporting:
        """The ack's number is ours: two clients' results may bear the same one."""
        self._rid += 1
        reporting = self._reporting[self._rid] = Reporting(asyncio.get_running_loop().create_future())
        self._tell(
            Results(
                v=V,
                worker=self.id,
                session=self.session or call.session,
                deployment=call.deployment,
                batch_id=call.batch_id,
                protocol_version=call.protocol_version,
                rid=self._rid,
                results=call.results,
            )
        )
        return reporting

    def reported(self, call: ResultsCall) -> None:
        for result in call.results:
            assert isinstance(result.delivery, int)
            item = (result.step_id, result.delivery)
            self._forget(item)
            self._acked[item] = None
        while len(self._acked) > ACKED_REMEMBERED_MAX:
            del self._acked[next(iter(self._acked))]

    def leave(self) -> None:
        """Nothing more for it; the session ends with what it holds."""
        self.is_leaving = True
        self._say(topics.WORKERS, Bye(v=V, worker=self.id, n=self._next_n()))

    def cancelled(self) -> list[CancelledItem]:
        """What is to stop, or never to start: said again as long as the client may have it."""
        return list(self.cancels.values())

    def stop_waiting(self) -> None:
        """The call that waits for steps has waited long enough."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def break_off(self, why: Exception) -> None:
        """Nothing more is heard from the core: who waits for its word must ask again, and must not take this for it."""
        starting = [each.answered for each in self._starting]
        for answered in (*starting, *(each.answered for each in self._reporting.values())):
            if not answered.done():
                answered.set_exception(why)
                answered.exception()  # known, also when its client has gone

    # -- what the core says -------------------------------------------------------------------------------------------

    def deliver(self, topic: bytes, body: bytes) -> None:
        message = codec.decode_broker(body)
        match message:
            case Ack():
                for rid in message.rids:
                    reporting = self._reporting.pop(rid, None)
                    if reporting is not None:
                        _answer(reporting.answered)
            case Refused():
                self._on_refused(message)
            case Steps() if message.session == self.session:
                self._on_steps(message)
            case HeartbeatAck() if message.session == self.session:
                self.quiet, self.quit = message.quiet, message.quit
                if self.quit:
                    self._wake()
            case Go() if message.session == self.session:
                self._on_started(message.items, None)
            case Cancel() if message.session == self.session:
                self._on_cancel(message)
            case Adopt() if message.session == self.session:
                self._on_adopt(message)

    def _on_steps(self, message: Steps) -> None:
        """It is here, so it is accepted. One call is answered with it, so there is no credit left."""
        session, batch_id = self.session or "", message.batch_id
        number = int(batch_id.rpartition("_")[2])
        if number > self._batch:
            self._batch = number
            now = self._broker.now().mono
            for item in _items(message):
                self.held[item] = LeasedStep("queued", now, False)
            self.batches[batch_id] = message
            asyncio.get_running_loop().call_later(GIVE_BACK_S, self.give_back, batch_id)
        self._tell(Accept(v=V, worker=self.id, session=session, batch_id=batch_id, free=0))
        self._wake()

    def give_back(self, batch_id: str) -> None:
        """No call came for it, or none that has room: let somebody else run it. It was in no answer, so it is safe."""
        message = self.batches.pop(batch_id, None)
        if message is not None:
            self._refuse(batch_id, _items(message), "busy")

    def _refuse(self, batch_id: str, items: list[Item], code: str) -> None:
        for item in items:
            self._forget(item)
        if self.is_alive:
            free = self._broker.state.sessions[self.id].free  # as it is: a call may wait
            self._tell(
                Refuse(
                    v=V,
                    worker=self.id,
                    session=self.session or "",
                    batch_id=batch_id,
                    items=items,
                    code=code,  # type: ignore[arg-type]
                    free=free,
                )
            )

    def _on_cancel(self, message: Cancel) -> None:
        if message.reason == "not_granted":
            self._on_started(message.items, message.reason)
            return
        for item in message.items:
            if item in self.held:
                self.cancels[item] = (*item, message.reason)
        for batch_id, batch in list(self.batches.items()):
            if any(item in self.cancels for item in _items(batch)):
                del self.batches[batch_id]  # it was in no answer yet, so nobody needs to be asked
                self._refuse(batch_id, _items(batch), "stale")

    def _on_started(self, items: list[Item], reason: str | None) -> None:
        for starting in list(self._starting):
            for item in items:
                if item in starting.waits_for:
                    starting.waits_for.discard(item)
                    if reason is None:
                        starting.granted.append(item)
                    else:
                        starting.refused.append((*item, "not_granted"))
            if not starting.waits_for:
                self._starting.remove(starting)
                _answer(starting.answered)

    def give_up(self, starting: Starting) -> None:
        if starting in self._starting:
            self._starting.remove(starting)

    def _on_adopt(self, message: Adopt) -> None:
        now = self._broker.now().mono
        known = [
            (*item, held.state, max(0, now - held.since_mono))
            for item in message.items
            if (held := self.held.get(item))
        ]
        if known:
            self._tell(Adopted(v=V, worker=self.id, session=self.session or "", items=known))  # type: ignore[arg-type]
        if self._is_whole_truth:
            self._say_unknown([item for item in message.items if item not in self.held])

    def _on_refused(self, message: Refused) -> None:
        if message.rid is None:
            return
        reporting = self._reporting.get(message.rid)
        if reporting is not None:
            reporting.refused = message
            if message.code not in _ACKED_TOO:
                del self._reporting[message.rid]
                _answer(reporting.answered)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _take(self, holding: Iterable[HeldItem]) -> None:
        """What the client says of what it holds. A heartbeat may have been overtaken: nothing goes backwards."""
        now = self._broker.now().mono
        for step_id, delivery, state, age_ms in holding:
            held = self.held.get((step_id, delivery))
            if held is None:
                if len(self.held) < HELD_MAX and (step_id, delivery) not in self._acked:
                    self.held[step_id, delivery] = LeasedStep(state, now - age_ms)
            else:
                held.is_given = True
                if _RANK[state] > _RANK[held.state]:
                    held.state = state
                    held.since_mono = now - age_ms

    def _holding(self) -> list[HeldItem]:
        now = self._broker.now().mono
        return [(*item, held.state, max(0, now - held.since_mono)) for item, held in self.held.items()]

    def _forget(self, item: Item) -> None:
        self.held.pop(item, None)
        self.cancels.pop(item, None)

    def _say_unknown(self, items: list[Item]) -> None:
        for start in range(0, len(items), limits.BATCH_ITEMS_MAX):
            part = [(*item, "unknown", 0) for item in items[start : start + limits.BATCH_ITEMS_MAX]]
            self._tell(Adopted(v=V, worker=self.id, session=self.session or "", items=part))  # type: ignore[arg-type]

    def _wake(self) -> None:
        if self.waiter is not None:
            _answer(self.waiter)

    def _next_n(self) -> int:
        self._n += 1
        return self._n

    def _say(self, topic: bytes, message: FromWorker) -> None:
        self._broker.hear(topic, codec.encode(message))

    def _tell(self, message: FromWorker) -> None:
        self._say(topics.results_to(self._broker.broker_id), message)


_ACKED_TOO: Final = frozenset({"wrong_batch", "wrong_sender", "unknown_delivery"})  # an ack follows


def _items(message: Steps) -> list[Item]:
    return [(step.step_id, step.delivery) for step in message.steps]


def _answer(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
