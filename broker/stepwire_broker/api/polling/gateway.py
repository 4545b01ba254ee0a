"""`/v1/worker/…`: workers that lease steps over HTTP, by long poll. Who they are, and what each of their calls does.

A worker is known from its first call until it has said good-bye or was silent for a lease. SPEC.md, "Over HTTP", says
what its client may rely on; worker.py is its half of the protocol.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from stepwire_protocol import limits, polling
from stepwire_protocol.messages import Steps
from stepwire_protocol.polling import (
    ByeAnswer,
    ByeCall,
    HeartbeatAnswer,
    HeartbeatCall,
    LeaseCall,
    Leased,
    ResultsAnswer,
    ResultsCall,
    StartAnswer,
    StartCall,
)

from stepwire_broker.api.engine_port import EnginePort
from stepwire_broker.api.http import HttpCall
from stepwire_broker.api.http_problems import HttpProblem
from stepwire_broker.api.replies import Reply, encode
from stepwire_broker.api.waiting import LongPoll, long_poll
from stepwire_broker.core.model.targets import POLL

from .worker import HELD_MAX, PollWorker

WORKERS_MAX: Final = 512  # each may have a call that waits, and the gate lets in twice as many calls
CALL_BYTES_MAX: Final = 512 * 1024
WAIT_MS_LEAST: Final = 100  # what is ready must be committed before it is given
COMMIT_WAIT_S: Final = 15.0  # then the client is told to ask again
LOOK_AGAIN_S: Final = 1.0


class Known(NamedTuple):
    worker: PollWorker
    let_go: Callable[[], None]


class Gateway:
    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._known: dict[str, Known] = {}
        # Of sessions, over all workers: so none has a number twice, however often it is forgotten.
        self._numbers = 0
        self._sweep: asyncio.TimerHandle | None = None

    # -- the calls ----------------------------------------------------------------------------------------------------

    async def lease(self, call: HttpCall) -> Reply:
        said = await self._read(call, LeaseCall, CALL_BYTES_MAX)
        if self._broker.state.draining:
            raise _stopping()
        worker = self._worker(said.worker)
        self._take_turn(worker, said.n)
        if said.session is None or said.session != worker.session or not worker.is_alive:
            # Nothing is given yet, and nothing given back: what a call says outside of the session may be old.
            if said.session is None and worker.is_alive and worker.has_given:
                _taken(said.worker)
            self._open(worker, said)
            await self._broker.handled()
            return self._leased(worker, said, None)
        worker.keep_whole(said.holding)
        free = self._free(worker, said)
        if not worker.beat(said.holding, 0 if worker.batches else free):
            _no_session()
        async with long_poll(call) as client:
            return self._leased(worker, said, await self._steps(call, client, worker, said, free))

    async def heartbeat(self, call: HttpCall) -> Reply:
        said = await self._read(call, HeartbeatCall, CALL_BYTES_MAX)
        worker = self._in_session(said.worker, said.session)
        if not worker.beat(said.holding):
            _no_session()
        if said.progress:
            worker.tell_progress(said.progress)
        await self._broker.handled()
        answer = HeartbeatAnswer(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=said.session,
            n=said.n,
            lease_ms=self._broker.settings.bus.lease_ms,
            quiet=worker.quiet,
            quit=worker.quit,
            cancel=worker.cancelled(),
        )
        return Reply(200, encode(answer))

    async def start(self, call: HttpCall) -> Reply:
        said = await self._read(call, StartCall, CALL_BYTES_MAX)
        worker = self._in_session(said.worker, said.session)
        async with long_poll(call) as client:
            starting = worker.start(said.items)
            try:
                await self._until(call, client, starting.answered, lambda: self._in_session(said.worker, said.session))
            finally:
                worker.give_up(starting)
        if not starting.granted:
            raise HttpProblem(
                409,
                "not_granted",
                "none of these may start: they are not this worker's any more, or are to stop",
                "drop them; the next lease call, without them in `holding`, gives back what is left",
            )
        answer = StartAnswer(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=said.session,
            items=starting.granted,
            cancel=starting.refused,
        )
        return Reply(200, encode(answer))

    async def results(self, call: HttpCall) -> Reply:
        """Whatever the session: what was done is done."""
        broker = self._broker
        said = await self._read(call, ResultsCall, broker.settings.bus.max_message_bytes)
        if said.deployment != broker.deployment:
            raise HttpProblem(
                409,
                "other_deployment",
                "these steps are of another database: it was replaced or restored since",
                "log what was done, and forget it here: nobody asks for it any more",
            )
        if broker.state.outbox.bytes_waiting > broker.settings.limits.uncommitted_bytes:
            raise HttpProblem(429, "overloaded", "the database is behind", "send it again", retry_after_ms=1_000)
        worker = self._worker(said.worker)
        async with long_poll(call) as client:
            reporting = worker.report(said)
            await self._until(call, client, reporting.answered)
        if reporting.refused is not None:
            status = 413 if reporting.refused.code == "too_large" else 409
            raise HttpProblem(
                status,
                reporting.refused.code,
                f"{reporting.refused.message}: not taken; what else this message held, is",
                "do not send it again: it would be refused again",
            )
        worker.reported(said)
        if worker.is_leaving and not worker.held:
            self._let_go(worker)
        return Reply(200, encode(ResultsAnswer(broker=broker.broker_id, epoch=broker.epoch, rids=[said.rid])))

    async def bye(self, call: HttpCall) -> Reply:
        """A good-bye that is said again, because its answer was lost, finds the session over: that is an answer too."""
        said = await self._read(call, ByeCall, CALL_BYTES_MAX)
        known = self._known.get(said.worker)
        ended = known is None or known.worker.session != said.session or not known.worker.is_alive
        if known is not None and not ended:
            worker = known.worker
            self._take_turn(worker, said.n)
            worker.keep_whole(said.holding)
            if said.drain and said.holding:
                worker.beat(said.holding, 0)
                worker.leave()
            else:
                self._let_go(worker)
                ended = True
        return Reply(200, encode(ByeAnswer(broker=self._broker.broker_id, epoch=self._broker.epoch, ended=ended)))

    # -- life ---------------------------------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """The broker hands out nothing more: whoever waits need not."""
        for known in self._known.values():
            known.worker.stop_waiting()

    def close(self) -> None:
        """Whoever waits is told by `closing`: nothing is said to be done that is not."""
        if self._sweep is not None:
            self._sweep.cancel()

    # -- a lease ------------------------------------------------------------------------------------------------------

    async def _steps(
        self, call: HttpCall, client: LongPoll, worker: PollWorker, said: LeaseCall, free: int
    ) -> Steps | None:
        """The next batch for this worker, or None when the time is over, or another call of it came."""
        loop = asyncio.get_running_loop()
        mine = worker.waiter = loop.create_future()
        until = loop.time() + max(said.wait_ms, WAIT_MS_LEAST) / 1000
        beat_s = max(0.1, (self._broker.settings.bus.heartbeat_ms or limits.HEARTBEAT_MS) / 1000)
        try:
            while True:
                if self._broker.state.draining or call.closing.is_set():
                    raise _stopping()
                if worker.waiter is not mine:
                    return None
                if (steps := worker.take_batch(free)) is not None:
                    return steps
                if mine.done():
                    mine = worker.waiter = loop.create_future()
                if not worker.is_alive:
                    _no_session()
                left_s = until - loop.time()
                if left_s <= 0 or free <= 0 or worker.quit:
                    return None
                await client.wait(mine, min(left_s, beat_s))
                if worker.waiter is mine and not worker.held:
                    worker.beat()  # it waits and has nothing that could be lost: the call itself is its word
        finally:
            if worker.waiter is mine:
                worker.waiter = None
                worker.withdraw()

    def _free(self, worker: PollWorker, said: LeaseCall) -> int:
        """How many steps may come: one answer is one batch."""
        free = said.free
        if free is None:
            free = said.slots + said.prefetch - sum(state != "done" for _, _, state, _ in said.holding)
        return max(0, min(free, self._broker.settings.bus.batch.max_steps, HELD_MAX - len(worker.held)))

    def _open(self, worker: PollWorker, said: LeaseCall) -> None:
        if worker.is_alive:
            worker.beat(said.holding)
            return
        self._numbers += 1
        if not worker.open(self._numbers, said):
            raise HttpProblem(503, "overloaded", "no session could be opened", retry_after_ms=1_000)

    def _leased(self, worker: PollWorker, said: LeaseCall, steps: Steps | None) -> Reply:
        bus = self._broker.settings.bus
        answer = Leased(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=worker.session or "",
            deployment=self._broker.deployment,
            n=said.n,
            lease_ms=bus.lease_ms,
            heartbeat_ms=bus.heartbeat_ms,
            max_message_bytes=bus.max_message_bytes,
            quiet=worker.quiet,
            quit=worker.quit,
            cancel=worker.cancelled(),
            batch_id=None if steps is None else steps.batch_id,
            protocol_version=limits.PROTOCOL_LEVEL_1,
            steps=[] if steps is None else steps.steps,
        )
        return Reply(200, encode(answer))

    # -- who is there -------------------------------------------------------------------------------------------------

    async def _read(self, call: HttpCall, kind: type[polling.C], bytes_max: int) -> polling.C:
        call.query()
        if not self._broker.settings.executors.poll.enabled:
            raise HttpProblem(404, "not_enabled", "this broker leases no steps over HTTP", "see executors.poll.enabled")
        body = await call.body(bytes_max)
        said = polling.read(kind, body, bytes_max)
        known = self._known.get(said.worker)
        if known is not None:
            known.worker.heard_mono = self._broker.now().mono
        return said

    def _worker(self, id: str) -> PollWorker:
        """This worker. One that is new is attached: the core can speak to it from here on."""
        known = self._known.get(id)
        if known is not None:
            return known.worker
        broker = self._broker
        if id in broker.state.sessions or id in broker.state.attached:
            _taken(id)
        if len(self._known) >= WORKERS_MAX:
            raise HttpProblem(
                429,
                "too_many_workers",
                f"{WORKERS_MAX} workers lease steps over HTTP already",
                "give each more slots, or let them come over the bus",
                retry_after_ms=broker.settings.bus.lease_ms,
            )
        worker = PollWorker(id, broker)
        self._known[id] = Known(worker, broker.attach(id, POLL, worker.deliver))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look)
        return worker

    def _in_session(self, id: str, session: str) -> PollWorker:
        known = self._known.get(id)
        if known is None or known.worker.session != session or not known.worker.is_alive:
            _no_session()
        return known.worker

    def _take_turn(self, worker: PollWorker, n: int) -> None:
        """What a call says that holds only while it is the latest. Whatever waited before it is answered."""
        if n <= worker.last_n:
            raise HttpProblem(
                409,
                "stale_call",
                f"n is {n}, and this worker has said {worker.last_n} already: what this call says may be old",
                "count n up with each call, also with one that is repeated; a new process needs a new id",
            )
        worker.last_n = n
        worker.stop_waiting()

    def _let_go(self, worker: PollWorker) -> None:
        known = self._known.pop(worker.id, None)
        if known is not None:
            for batch_id in list(worker.batches):
                worker.give_back(batch_id)
            worker.stop_waiting()
            worker.break_off(HttpProblem(503, "overloaded", "the worker's session ended meanwhile", "send it again"))
            known.let_go()

    def _look(self) -> None:
        """Forget who is silent for more than a lease, so that what it said cannot matter any more."""
        self._sweep = None
        state = self._broker.state
        now = self._broker.now().mono
        silent_ms = int(state.settings.bus.lease_ms * limits.LEASE_BROKER_FACTOR)
        for id, (worker, _) in list(self._known.items()):
            if worker.waiter is not None or id in state.sessions or now < worker.heard_mono + silent_ms:
                continue
            if id in state.recovered and now < state.safe_at_mono:
                continue  # it may still run what it was given before our start
            self._let_go(worker)
        if self._known:
            self._sweep = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _until(
        self,
        call: HttpCall,
        client: LongPoll,
        answered: "asyncio.Future[None]",
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Until it is committed. A client that is told 503 asks again: all of these may be said twice."""
        loop = asyncio.get_running_loop()
        until = loop.time() + COMMIT_WAIT_S
        while not answered.done():
            if call.closing.is_set():
                raise _stopping()
            if loop.time() > until:
                raise HttpProblem(
                    503, "database_unavailable", "this could not be stored yet", "send it again", retry_after_ms=1_000
                )
            await client.wait(answered, LOOK_AGAIN_S)
            look()


def _no_session() -> NoReturn:
    raise HttpProblem(
        409,
        "unknown_session",
        "this session is over, or was never opened: the lease ran out, or the broker started anew",
        "start nothing that was given in it; lease again, with what runs or is done in `holding`",
    )


def _taken(id: str) -> NoReturn:
    raise HttpProblem(
        409,
        "worker_taken",
        f"{id} is a worker already, and holds steps or comes another way",
        "each process needs an id of its own, with 16 random hex digits",
    )


def _stopping() -> HttpProblem:
    return HttpProblem(503, "draining", "this broker is stopping", retry_after_ms=1_000)
