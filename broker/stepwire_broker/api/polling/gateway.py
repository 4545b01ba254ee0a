"""`/v1/worker/…`: workers that lease steps over HTTP by long poll.

A worker is attached with its first call, and detached after its bye call or after a silence longer than a lease.
SPEC.md, "Over HTTP", specifies the guarantees for clients; worker.py is the worker's half of the protocol.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
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

from stepwire_broker.api import core_views
from stepwire_broker.api.engine_port import EnginePort
from stepwire_broker.api.http import HttpCall
from stepwire_broker.api.http_problems import HttpProblem
from stepwire_broker.api.replies import Reply, encode
from stepwire_broker.api.waiting import LongPoll, long_poll
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.model.targets import POLL

from .holdings import HELD_MAX
from .worker import PollWorker

WORKERS_MAX: Final = 512  # each may have one waiting call
CALL_BYTES_MAX: Final = 512 * 1024
WAIT_MS_MIN: Final = 100  # so that ready steps can be committed before the answer
COMMIT_WAIT_S: Final = 15.0  # after this time the client must send the call again
LOOK_AGAIN_S: Final = 1.0


class AttachedWorker(NamedTuple):
    worker: PollWorker
    detach: Callable[[], None]


class Gateway:
    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._attached: dict[str, AttachedWorker] = {}
        # Session numbers are unique over all workers, so that a worker that was detached never gets the same number.
        self._session_numbers = 0
        self._rids = itertools.count(1)
        self._sweep: asyncio.TimerHandle | None = None

    def named(self, handle: Callable[[HttpCall], Awaitable[Reply]]) -> Callable[[HttpCall], Awaitable[Reply]]:
        """Name the broker in each answer of this call, also in a refusal: a client may have several URLs."""
        header = (b"stepwire-broker", self._broker.broker_id.encode())

        async def handle_named(call: HttpCall) -> Reply:
            try:
                reply = await handle(call)
            except HttpProblem as problem:
                problem.headers = (*problem.headers, header)
                raise
            return reply._replace(headers=(*reply.headers, header))

        return handle_named

    # -- the calls ----------------------------------------------------------------------------------------------------

    async def lease(self, call: HttpCall) -> Reply:
        request = await self._read(call, LeaseCall, CALL_BYTES_MAX)
        self._check_broker(request.session)
        call.open_request.wait()
        if core_views.is_draining(self._broker):
            raise _draining()
        worker = self._worker(call, request.worker)
        self._supersede(worker, request.n)
        if request.session is None or request.session != worker.session or not worker.is_alive:
            self._check_lit()
            # Send no steps and take none back yet, because a call without the current session may be old.
            if request.session is None and worker.is_alive and worker.holdings.has_given:
                _raise_taken(request.worker)
            self._open(worker, request)
            await self._broker.handled()
            self._check_lit()
            return self._leased(worker, request, None)
        worker.drop_missing(request.holding)
        free = self._free(worker, request)
        if not worker.beat(request.holding, 0 if worker.batches else free):
            _raise_no_session()
        async with long_poll(call) as client:
            return self._leased(worker, request, await self._steps(call, client, worker, request, free))

    async def heartbeat(self, call: HttpCall) -> Reply:
        request = await self._read(call, HeartbeatCall, CALL_BYTES_MAX)
        worker = self._in_session(request.worker, request.session)
        if not worker.beat(request.holding):
            _raise_no_session()
        if request.progress:
            worker.report_progress(request.progress)
        await self._broker.handled()
        self._check_lit()
        answer = HeartbeatAnswer(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=request.session,
            n=request.n,
            lease_ms=self._broker.settings.bus.lease_ms,
            quiet=worker.quiet,
            quit=worker.quit,
            cancel=list(worker.holdings.cancels.values()),
        )
        return Reply(200, encode(answer))

    async def start(self, call: HttpCall) -> Reply:
        request = await self._read(call, StartCall, CALL_BYTES_MAX)
        worker = self._in_session(request.worker, request.session)
        async with long_poll(call) as client:
            starting = worker.start(request.items)
            try:
                await self._until(
                    call, client, starting.answered, lambda: self._in_session(request.worker, request.session)
                )
            finally:
                worker.stop_starting(starting)
        if not starting.granted:
            raise HttpProblem(
                409,
                "not_granted",
                "none of these steps may start: each was reassigned or cancelled",
                "drop them; the next lease call, without them in `holding`, returns the others",
            )
        answer = StartAnswer(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=request.session,
            items=starting.granted,
            cancel=starting.refused,
        )
        return Reply(200, encode(answer))

    async def results(self, call: HttpCall) -> Reply:
        """Results are accepted in any session, because the steps have run."""
        broker = self._broker
        request = await self._read(call, ResultsCall, broker.settings.bus.max_message_bytes)
        if request.deployment != broker.deployment:
            raise HttpProblem(
                409,
                "other_deployment",
                "the steps belong to another database: the broker's database was replaced or restored meanwhile",
                "log these results and discard them: this broker does not need them",
            )
        if core_views.is_behind(broker):
            raise HttpProblem(
                429, "overloaded", "the database is behind", Hint(HintCode.SEND_AGAIN), retry_after_ms=1_000
            )
        worker = self._worker(call, request.worker)
        own = [result.step_id for result in request.results if not core_views.is_foreign(broker, result.step_id)]
        async with long_poll(call) as client:
            reporting = worker.report(request)
            await self._until(call, client, reporting.answered, lambda: self._check_owned(own))
        if reporting.refused is not None:
            status = 413 if reporting.refused.code == "too_large" else 409
            raise HttpProblem(
                status,
                reporting.refused.code,
                f"{reporting.refused.message}: this result was rejected; the other results in the message were"
                " accepted",
                "do not send it again: it would be rejected again",
            )
        worker.holdings.acknowledge(_items(request))
        if worker.is_leaving and not worker.holdings:
            self._detach(worker)
        return Reply(200, encode(ResultsAnswer(broker=broker.broker_id, epoch=broker.epoch, rids=[request.rid])))

    async def bye(self, call: HttpCall) -> Reply:
        """End the session. A repeated call, sent because its answer was lost, is answered too: the session has
        ended."""
        request = await self._read(call, ByeCall, CALL_BYTES_MAX)
        self._check_broker(request.session)
        attached = self._attached.get(request.worker)
        ended = attached is None or attached.worker.session != request.session or not attached.worker.is_alive
        if attached is not None and not ended:
            worker = attached.worker
            self._supersede(worker, request.n)
            worker.drop_missing(request.holding)
            if request.drain and request.holding:
                worker.beat(request.holding, 0)
                worker.leave()
            else:
                self._detach(worker)
                ended = True
        return Reply(200, encode(ByeAnswer(broker=self._broker.broker_id, epoch=self._broker.epoch, ended=ended)))

    # -- life ---------------------------------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """End all long polls, because the broker dispatches no further steps."""
        for attached in self._attached.values():
            attached.worker.stop_waiting()

    def close(self) -> None:
        """Stop detaching silent workers. Waiting calls are ended by `HttpCall.closing`."""
        if self._sweep is not None:
            self._sweep.cancel()

    # -- a lease ------------------------------------------------------------------------------------------------------

    async def _steps(
        self, call: HttpCall, client: LongPoll, worker: PollWorker, request: LeaseCall, free: int
    ) -> Steps | None:
        """The next batch for this worker. None if the time is over, or the worker has sent another call."""
        loop = asyncio.get_running_loop()
        mine = worker.waiter = loop.create_future()
        until = loop.time() + max(request.wait_ms, WAIT_MS_MIN) / 1000
        beat_s = max(0.1, (self._broker.settings.bus.heartbeat_ms or limits.HEARTBEAT_MS) / 1000)
        try:
            while True:
                if core_views.is_draining(self._broker) or call.closing.is_set():
                    raise _draining()
                if worker.waiter is not mine:
                    return None
                self._check_lit()
                if (steps := worker.take_batch(free)) is not None:
                    return steps
                if mine.done():
                    mine = worker.waiter = loop.create_future()
                if not worker.is_alive:
                    _raise_no_session()
                left_s = until - loop.time()
                if left_s <= 0 or free <= 0 or worker.quit:
                    return None
                await client.wait(mine, min(left_s, beat_s))
                if worker.waiter is mine and not worker.holdings:
                    worker.beat()  # the worker holds nothing, so its waiting call counts as a heartbeat
        finally:
            if worker.waiter is mine:
                worker.waiter = None
                worker.withdraw()

    def _free(self, worker: PollWorker, request: LeaseCall) -> int:
        """The number of steps that the answer may contain. An answer contains at most one batch."""
        free = request.free
        if free is None:
            free = request.slots + request.prefetch - sum(state != "done" for _, _, state, _ in request.holding)
        return max(0, min(free, self._broker.settings.bus.batch.max_steps, HELD_MAX - len(worker.holdings)))

    def _open(self, worker: PollWorker, request: LeaseCall) -> None:
        if worker.is_alive:
            worker.beat(request.holding)
            return
        self._session_numbers += 1
        if not worker.open(self._session_numbers, request):
            raise HttpProblem(
                503, "overloaded", "no session could be opened", Hint(HintCode.SEND_AGAIN), retry_after_ms=1_000
            )

    def _leased(self, worker: PollWorker, request: LeaseCall, steps: Steps | None) -> Reply:
        bus = self._broker.settings.bus
        answer = Leased(
            broker=self._broker.broker_id,
            epoch=self._broker.epoch,
            session=worker.session or "",
            deployment=self._broker.deployment,
            n=request.n,
            lease_ms=bus.lease_ms,
            heartbeat_ms=bus.heartbeat_ms,
            max_message_bytes=bus.max_message_bytes,
            quiet=worker.quiet,
            quit=worker.quit,
            cancel=list(worker.holdings.cancels.values()),
            batch_id=None if steps is None else steps.batch_id,
            protocol_version=limits.PROTOCOL_LEVEL_1,
            steps=[] if steps is None else steps.steps,
        )
        return Reply(200, encode(answer))

    # -- attached workers ---------------------------------------------------------------------------------------------

    async def _read(self, call: HttpCall, kind: type[polling.C], bytes_max: int) -> polling.C:
        call.query()
        if not self._broker.settings.executors.poll.enabled:
            raise HttpProblem(
                404,
                "not_enabled",
                "leasing steps over HTTP is disabled at this broker",
                "set executors.poll.enabled: true",
            )
        body = await call.body(bytes_max)
        request = polling.read(kind, body, bytes_max)
        attached = self._attached.get(request.worker)
        if attached is not None:
            self._check_owner(call, attached.worker)
            attached.worker.heard_mono = self._broker.now().mono
        return request

    def _check_owner(self, call: HttpCall, worker: PollWorker) -> None:
        """Raise HttpProblem unless the caller's token is the one that opened the worker."""
        grant = call.worker_grant
        if grant.principal != worker.grant.principal:
            raise HttpProblem(
                403,
                "not_yours",
                f"the worker {worker.id} belongs to another token",
                "use the token that opened the worker, or another worker id",
            )
        if grant != worker.grant:  # an operator has changed the token
            worker.grant = grant
            self._broker.regrant(worker.id, POLL, grant)

    def _worker(self, call: HttpCall, id: str) -> PollWorker:
        """The worker with this id. A new worker is attached, so that the core can send messages to it."""
        attached = self._attached.get(id)
        if attached is not None:
            return attached.worker
        broker = self._broker
        if core_views.is_worker(broker, id):
            _raise_taken(id)
        if len(self._attached) >= WORKERS_MAX:
            raise HttpProblem(
                429,
                "too_many_workers",
                f"{WORKERS_MAX} workers lease steps over HTTP already",
                "give each worker more slots, or connect workers to the bus",
                retry_after_ms=broker.settings.bus.lease_ms,
            )
        grant = call.worker_grant
        count = sum(attached.worker.grant.principal == grant.principal for attached in self._attached.values())
        if count >= grant.sessions:
            raise HttpProblem(
                429,
                "too_many_workers",
                f"{count} workers of this token lease steps already",
                "give each worker more slots, or the token a higher `sessions`",
                retry_after_ms=broker.settings.bus.lease_ms,
            )
        worker = PollWorker(id, broker, grant, self._rids)
        self._attached[id] = AttachedWorker(worker, broker.attach(id, POLL, worker.deliver, grant))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._detach_silent)
        return worker

    def _check_broker(self, session: str | None) -> None:
        """Raise HttpProblem for a session with another live broker: it has the lease, and knows what the worker holds.
        Results are accepted from any session."""
        other = None if session is None else core_views.broker_of_session(self._broker, session)
        if other is not None:
            raise HttpProblem(
                421,
                "other_broker",
                f"the session {session} is with the broker {other.broker}",
                f"send the call to {other.http or other.broker}; if it fails for a lease, lease without a session",
                url=other.http or "",
            )

    def _check_lit(self) -> None:
        """Raise HttpProblem while this broker is dark. A call proves that its worker lives, but the broker renews no
        lease: another broker may own the steps, and does not know of such a lease."""
        if core_views.is_dark(self._broker):
            raise HttpProblem(
                503,
                "broker_dark",
                "the broker could not renew its lease in the database, so another broker may own its lanes",
                Hint(HintCode.SEND_AGAIN),
                retry_after_ms=1_000,
            )

    def _check_owned(self, steps: list[int]) -> None:
        """Raise HttpProblem if one of these steps has another owner now: this broker will not acknowledge its result,
        and passes a repeated one on."""
        if any(core_views.is_foreign(self._broker, step_id) for step_id in steps):
            moved = "another broker has taken a step before its result was stored"
            raise HttpProblem(503, "overloaded", moved, Hint(HintCode.SEND_AGAIN), retry_after_ms=100)

    def _in_session(self, id: str, session: str) -> PollWorker:
        self._check_broker(session)
        attached = self._attached.get(id)
        if attached is None or attached.worker.session != session or not attached.worker.is_alive:
            _raise_no_session()
        return attached.worker

    def _supersede(self, worker: PollWorker, n: int) -> None:
        """Record this call as the worker's latest, and end the wait of the previous one. Raises HttpProblem for an
        older call."""
        if n <= worker.last_n:
            raise HttpProblem(
                409,
                "stale_call",
                f"n is {n}, and this worker has sent {worker.last_n} already: the call may be out of date",
                "increase n with each call, also with a repeated one; a new process needs a new worker id",
            )
        worker.last_n = n
        worker.stop_waiting()

    def _detach(self, worker: PollWorker) -> None:
        attached = self._attached.pop(worker.id, None)
        if attached is not None:
            for batch_id in list(worker.batches):
                worker.give_back(batch_id)
            worker.stop_waiting()
            ended = "the worker's session ended before the answer"
            worker.fail_waiting(HttpProblem(503, "overloaded", ended, Hint(HintCode.SEND_AGAIN)))
            attached.detach()

    def _detach_silent(self) -> None:
        """Detach workers that were silent for longer than a lease: their earlier calls can have no effect now."""
        self._sweep = None
        now = self._broker.now().mono
        silent_ms = int(self._broker.settings.bus.lease_ms * limits.LEASE_BROKER_FACTOR)
        for id, (worker, _) in list(self._attached.items()):
            is_silent = worker.waiter is None and now >= worker.heard_mono + silent_ms
            if is_silent and not core_views.may_hold_steps(self._broker, id):
                self._detach(worker)
        if self._attached:
            self._sweep = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._detach_silent)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _until(
        self,
        call: HttpCall,
        client: LongPoll,
        answered: "asyncio.Future[None]",
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for the commit. A client that receives a 503 sends the call again, which is safe for all these calls."""
        loop = asyncio.get_running_loop()
        until = loop.time() + COMMIT_WAIT_S
        while not answered.done():
            if call.closing.is_set():
                raise _draining()
            self._check_lit()
            if loop.time() > until:
                raise HttpProblem(
                    503,
                    "database_unavailable",
                    f"the call was not stored within {COMMIT_WAIT_S:.0f} s",
                    Hint(HintCode.SEND_AGAIN),
                    retry_after_ms=1_000,
                )
            await client.wait(answered, LOOK_AGAIN_S)
            check()


def _items(request: ResultsCall) -> list[tuple[int, int]]:
    return [(result.step_id, result.delivery) for result in request.results if isinstance(result.delivery, int)]


def _raise_no_session() -> NoReturn:
    raise HttpProblem(
        409,
        "unknown_session",
        "the session is over or was never opened: its lease ran out, or the broker restarted",
        "start no step of that session; lease again, with running and finished steps in `holding`",
    )


def _raise_taken(id: str) -> NoReturn:
    raise HttpProblem(
        409,
        "worker_taken",
        f"the worker id {id} is in use: a worker with this id holds steps or is connected in another way",
        "give each process an id of its own, with 16 random hex digits",
    )


def _draining() -> HttpProblem:
    return HttpProblem(503, "draining", "the broker is stopping", Hint(HintCode.WAIT_FOR_BROKER), retry_after_ms=1_000)
