"""The worker's half of the protocol, on behalf of a client that leases steps over HTTP.

For the core, a PollWorker is a worker like any other, with a session, a lease and a credit. It runs in the same process
and therefore accepts every batch at once, but the client may not have received the batch. A delivery stays in
`holdings` until the client reports its result, or a later call shows that the client does not have it. Only such a
call is a proof, because an answer may be under way for any time. Silence is no proof: the lease decides, in the core.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Adopt,
    Adopted,
    AdoptedItem,
    Bye,
    Cancel,
    FromWorker,
    Go,
    Heartbeat,
    HeartbeatAck,
    HeldItem,
    Hello,
    Item,
    Progress,
    ProgressItem,
    Refuse,
    RefuseCode,
    Refused,
    Results,
    Start,
    Steps,
)
from stepwire_protocol.polling import CancelledItem, LeaseCall, ResultsCall

from stepwire_broker.api import core_views
from stepwire_broker.api.engine_port import EnginePort
from stepwire_broker.api.http_problems import HttpProblem
from stepwire_broker.core.model.principal import Grant

from .holdings import PolledSteps

V: Final = limits.PROTOCOL_LEVEL_1
GIVE_BACK_S: Final = 1.0  # steps that arrive while no call waits are kept for the next call for this time
NO_BATCH: Final = "none"  # an accept of this batch only announces the credit


class Starting(Struct, eq=False):
    """A client waits for the permission to start these steps."""

    waits_for: set[Item]
    answered: "asyncio.Future[None]"
    granted: list[Item]
    refused: list[CancelledItem]


class Reporting(Struct, eq=False):
    """A client waits until its results are committed."""

    answered: "asyncio.Future[None]"
    refused: Refused | None = None


class PollWorker:
    def __init__(self, id: str, broker: EnginePort, grant: Grant, rids: Iterator[int]) -> None:
        """`rids`: never the same for two workers, also not for one that was detached and comes back. An ack for it may
        be under way."""
        self.id = id
        self._rids = rids
        self.grant = grant  # of the token that opened it
        self.session: str | None = None
        self.last_n = 0  # of the client's lease calls
        self.heard_mono = broker.now().mono
        self.is_leaving = False
        self.quiet = False
        self.quit = False
        self.holdings = PolledSteps()
        self.batches: dict[str, Steps] = {}  # received, and not yet part of an answer
        self.waiter: asyncio.Future[None] | None = None  # of the lease call that waits now
        self._broker = broker
        self._starting: list[Starting] = []
        self._reporting: dict[int, Reporting] = {}
        self._n = 0
        self._batch = 0  # the number of the latest batch: numbers rise within a session
        self._has_reported_all = False  # the client has reported in this session everything that it holds

    # -- from the client ----------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """True if the core still has the session. Only the core decides when a lease is over."""
        session = core_views.session(self._broker, self.id)
        return session is not None and session.id == self.session

    def open(self, k: int, call: LeaseCall) -> bool:
        """Open a new session. The deliveries that the client holds move into it, if this worker still owns them. Raises
        HttpProblem for an offer that the token does not allow."""
        broker = self._broker
        self.session = topics.session_id(broker.epoch, k)
        self.holdings.clear()
        self.batches = {}
        self._has_reported_all = False
        self._update(call.holding)
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
        violation = core_views.outside_grant(broker, self.grant, hello)
        if violation is not None:
            hint = "offer only what the token allows, or ask an operator for a token with a wider grant"
            raise HttpProblem(403, "outside_grant", violation, hint)
        self._send(hello, topics.WORKERS)
        return self.is_alive

    def beat(self, holding: Iterable[HeldItem] = (), free: int | None = None) -> bool:
        """Renew the lease. Deliveries that are missing in `holding` are kept: they may be under way to the client.
        False: the lease is over."""
        self._update(holding)
        heartbeat = Heartbeat(
            v=V,
            worker=self.id,
            n=self._next_n(),
            sessions={self._broker.broker_id: self.session or ""},
            free={} if free is None else {self._broker.broker_id: free},
            holding=self.holdings.report(self._broker.now().mono),
        )
        self._send(heartbeat, topics.WORKERS)
        return self.is_alive

    def report_progress(self, items: list[ProgressItem]) -> None:
        self._send(Progress(v=V, worker=self.id, session=self.session or "", items=items))

    def drop_missing(self, holding: list[HeldItem]) -> None:
        """Drop all deliveries that are not in `holding`, the complete list of the client's deliveries. The client will
        not start the others, so the core may send them to another worker."""
        self._has_reported_all = True
        reported = {(step_id, delivery) for step_id, delivery, _, _ in holding}
        missing = self.holdings.missing(reported)
        recovered = core_views.recovered_items(self._broker, self.id)
        missing += [item for item in recovered if item not in reported and item not in self.holdings]
        for item in missing:
            self.holdings.remove(item)
        self._send_unknown(missing)

    def withdraw(self) -> None:
        """The long poll ended, so offer no capacity. Does not renew the lease: the client sent nothing."""
        if self.is_alive:
            self._send(Accept(v=V, worker=self.id, session=self.session or "", batch_id=NO_BATCH, free=0))

    def take_batch(self, free: int) -> Steps | None:
        """Take a batch for an answer that is sent now. A batch that has become too large for `free` is given back."""
        for batch_id, steps in list(self.batches.items()):
            if len(steps.steps) > free:
                self.give_back(batch_id)
                continue
            del self.batches[batch_id]
            self.holdings.mark_given(_items(steps))
            return steps
        return None

    def start(self, items: list[Item]) -> Starting:
        starting = Starting(set(items), asyncio.get_running_loop().create_future(), [], [])
        self._starting.append(starting)
        self._send(Start(v=V, worker=self.id, session=self.session or "", items=items))
        return starting

    def stop_starting(self, starting: Starting) -> None:
        if starting in self._starting:
            self._starting.remove(starting)

    def report(self, call: ResultsCall) -> Reporting:
        """Pass results to the core with a new `rid`, because two calls may have the same one."""
        rid = next(self._rids)
        reporting = self._reporting[rid] = Reporting(asyncio.get_running_loop().create_future())
        self._send(
            Results(
                v=V,
                worker=self.id,
                session=self.session or call.session,
                deployment=call.deployment,
                batch_id=call.batch_id,
                protocol_version=call.protocol_version,
                rid=rid,
                results=call.results,
            )
        )
        return reporting

    def leave(self) -> None:
        """Receive no further steps. The session ends when the worker holds no step."""
        self.is_leaving = True
        self._send(Bye(v=V, worker=self.id, n=self._next_n()), topics.WORKERS)

    def stop_waiting(self) -> None:
        """End the wait of the lease call that waits for steps."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail_waiting(self, why: Exception) -> None:
        """Fail the calls that wait for an answer of the core, because the core sends nothing more to this worker."""
        starting = [each.answered for each in self._starting]
        for answered in (*starting, *(each.answered for each in self._reporting.values())):
            if not answered.done():
                answered.set_exception(why)
                answered.exception()  # mark it as retrieved, in case the client has disconnected

    # -- from the core ------------------------------------------------------------------------------------------------

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
                self._on_started(message.items, is_granted=True)
            case Cancel() if message.session == self.session:
                self._on_cancel(message)
            case Adopt() if message.session == self.session:
                self._on_adopt(message)

    def _on_steps(self, message: Steps) -> None:
        """Accept the batch. A call is answered with one batch, so the credit is now 0."""
        session, batch_id = self.session or "", message.batch_id
        number = int(batch_id.rpartition("_")[2])
        if number > self._batch:
            self._batch = number
            self.holdings.add(_items(message), self._broker.now().mono)
            self.batches[batch_id] = message
            asyncio.get_running_loop().call_later(GIVE_BACK_S, self.give_back, batch_id)
        self._send(Accept(v=V, worker=self.id, session=session, batch_id=batch_id, free=0))
        self._wake()

    def give_back(self, batch_id: str) -> None:
        """Return a batch to the core, because no call with room for it came. This is safe: the batch was in no
        answer."""
        message = self.batches.pop(batch_id, None)
        if message is not None:
            self._refuse(batch_id, _items(message), "busy")

    def _refuse(self, batch_id: str, items: list[Item], code: RefuseCode) -> None:
        for item in items:
            self.holdings.remove(item)
        session = core_views.session(self._broker, self.id)
        if session is not None and session.id == self.session:
            self._send(
                Refuse(
                    v=V,
                    worker=self.id,
                    session=session.id,
                    batch_id=batch_id,
                    items=items,
                    code=code,
                    free=session.free,  # unchanged, because a call may wait
                )
            )

    def _on_cancel(self, message: Cancel) -> None:
        if message.reason == "not_granted":
            self._on_started(message.items, is_granted=False)
            return
        self.holdings.cancel(message.items, message.reason)
        for batch_id, batch in list(self.batches.items()):
            if any(item in self.holdings.cancels for item in _items(batch)):
                del self.batches[batch_id]  # the batch was in no answer yet, so the client cannot have it
                self._refuse(batch_id, _items(batch), "stale")

    def _on_started(self, items: list[Item], *, is_granted: bool) -> None:
        for starting in list(self._starting):
            for item in items:
                if item in starting.waits_for:
                    starting.waits_for.discard(item)
                    if is_granted:
                        starting.granted.append(item)
                    else:
                        starting.refused.append((*item, "not_granted"))
            if not starting.waits_for:
                self._starting.remove(starting)
                _answer(starting.answered)

    def _on_adopt(self, message: Adopt) -> None:
        known = self.holdings.report(self._broker.now().mono, message.items)
        if known:
            self._send(Adopted(v=V, worker=self.id, session=self.session or "", items=[*known]))
        if self._has_reported_all:
            self._send_unknown([item for item in message.items if item not in self.holdings])

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

    def _update(self, holding: Iterable[HeldItem]) -> None:
        self.holdings.update(holding, self._broker.now().mono)

    def _send_unknown(self, items: list[Item]) -> None:
        for start in range(0, len(items), limits.BATCH_ITEMS_MAX):
            part = items[start : start + limits.BATCH_ITEMS_MAX]
            unknown: list[AdoptedItem] = [(*item, "unknown", 0) for item in part]
            self._send(Adopted(v=V, worker=self.id, session=self.session or "", items=unknown))

    def _wake(self) -> None:
        if self.waiter is not None:
            _answer(self.waiter)

    def _next_n(self) -> int:
        self._n += 1
        return self._n

    def _send(self, message: FromWorker, topic: bytes | None = None) -> None:
        """Send a message to the broker, by default on the broker's results topic."""
        self._broker.hear(
            topic or topics.results_to(self._broker.broker_id), codec.encode(message), self.grant.principal
        )


_ACKED_TOO: Final = frozenset({"wrong_batch", "wrong_sender", "unknown_delivery"})  # an ack follows


def _items(message: Steps) -> list[Item]:
    return [(step.step_id, step.delivery) for step in message.steps]


def _answer(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
