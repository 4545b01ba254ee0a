"""Drives an executor inside the broker's loop, as a worker with a session.

The session is the one that the Python SDK ships, pure as it is: what it wants to send is given to the broker by a call,
and what the broker sends to its inbox comes back by one. So there is one set of rules for who may start what and when,
and an executor has to know none of them. No sockets and no threads: its runs are tasks of the loop.
"""

import asyncio
import inspect
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog
from stepwire.actions import CancelRun, Log, Quit, Run, RunEnd, Send
from stepwire.identity import now_ms
from stepwire.session import Config, Offer, Session
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import HandlerPattern, Item, Result, StepRequest

from stepwire_broker.core import letters
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.engine import Engine
from stepwire_broker.errors import BrokerError

from . import run_outcome
from .contract import EVERYTHING, Executor, ExecutorError, ExecutorMetrics, NoCapacity, StepReady

log = structlog.get_logger("stepwire.executor")

LOOK_AGAIN_MS: Final = 100  # is there capacity again?
PAUSE_MS: Final = 100  # after it said that there was, and then had none; doubled each time in a row
PAUSE_MAX_MS: Final = 5_000
ACCEPT_DELAY_MS: Final = 5
EXPEL_S: Final = 5.0  # how long runs that were asked to stop may take to do so


class BadExecutor(BrokerError):
    """An object does not implement the executor contract. The message names what it lacks."""


class Host:
    """`prepare`, `start`, `drain`, `close`. Everything happens on the broker's loop."""

    def __init__(self, key: str, executor: Executor, number: int) -> None:
        """`number`: one of its own for every host in this process."""
        check(key, executor)
        self.key = key
        self.executor = executor
        self.slots = executor.metrics().max_concurrent
        self._number = number
        self._many: Callable[[Sequence[StepReady]], Awaitable[Any]] | None = getattr(executor, "execute_many", None)
        self._canceller: Callable[[StepReady, RunEnd], Any] | None = getattr(executor, "cancel", None)
        self._runs: dict[Item, _Running] = {}
        self._begun: list[_Running] = []
        self._tasks: set[asyncio.Task[list[Any]]] = set()
        self._asides: set[asyncio.Future[Any]] = set()
        self._is_full = False
        self._pause_ms = PAUSE_MS
        self._paused_until_ms = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._detach: Callable[[], None] | None = None
        self._has_quit = asyncio.Event()
        self._is_prepared = False
        self._is_closed = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """The executor's own start, before the broker takes anything up. What that raises is raised here."""
        begin = getattr(self.executor, "start", None)
        if begin is not None:
            await begin()
        self._is_prepared = True

    def start(self, broker: Engine) -> None:
        """From here on it is given steps."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.worker = own_worker(self.key, broker.broker_id, broker.epoch, self._number)
        self._session = Session(self._config(), random.Random().random)
        self._detach = broker.attach(self.worker, self.key, self._hear)
        now = now_ms()
        self._session.start(now)
        # It need not ask who is there: with this its first hello opens the session.
        self._session.receive(topics.BROKERS, codec.encode(letters.here(broker.state.identity)), now)
        self._turn()

    async def drain(self, drain_ms: float) -> None:
        """Give back what has not started, wait for what runs, then ask it to stop and wait a little more."""
        if self._detach is None or self._is_closed:
            return
        self._session.drain(now_ms())
        self._turn()
        if await _within(self._has_quit.wait(), drain_ms / 1000):
            return
        if self._session.expel():
            self._turn()
            await _within(self._has_quit.wait(), EXPEL_S)

    async def close(self) -> None:
        """Let go of the broker. What still runs is cancelled, and what it would have said is not heard any more."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        ending = (*self._tasks, *self._asides)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=EXPEL_S)
        if self._detach is not None:
            self._detach()
        end = getattr(self.executor, "stop", None)
        if end is not None and self._is_prepared:
            await end()

    def metrics(self) -> ExecutorMetrics:
        found = self.executor.metrics()
        if not isinstance(found, ExecutorMetrics):
            raise TypeError(f"metrics() returned {type(found).__name__}: it has to be ExecutorMetrics")
        return found

    # -- session ------------------------------------------------------------------------------------------------------

    def _config(self) -> Config:
        executor = self.executor
        safe = tuple(getattr(executor, "shadow_safe", ()))
        handlers = tuple(h for h in getattr(executor, "handlers", EVERYTHING) if h not in safe)
        return Config(
            worker=self.worker,
            offers=(*(Offer(h, shadow_safe=True) for h in safe), *(Offer(h) for h in handlers)),
            slots=self.slots,
            prefetch=0,  # what it cannot run now stays ready, for whoever can
            labels=dict(getattr(executor, "labels", {})),
            heartbeat_ms=self._broker.settings.bus.heartbeat_ms,
            accept_delay_ms=ACCEPT_DELAY_MS,
            max_message_bytes=self._broker.settings.bus.max_message_bytes,
            sdk="stepwire-executor",
            pid=os.getpid(),
        )

    def _hear(self, topic: bytes, body: bytes) -> None:
        if not self._is_closed:
            self._session.receive(topic, body, now_ms())
            self._turn_soon()

    def _turn_soon(self) -> None:
        """Once for all that this turn of the loop brings."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if self._is_closed:
            return
        self._look()
        for action in self._session.actions(now_ms()):
            match action:
                case Send(topic, body):
                    self._broker.hear(topic, body)
                case Run():
                    self._begin(action)
                case CancelRun(item, reason):
                    self._cancel(item, reason)
                case Quit():
                    self._has_quit.set()
                case Log(level, event, facts):
                    getattr(log, level)(event, executor=self.key, **facts)
                case _:
                    pass  # of connections: there are none
        if self._begun:
            self._run_begun()
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = min(max(0.0, self._session.wake_at() - now_ms()), 60_000.0)
        self._timer = self._loop.call_later(wait_ms / 1000, self._turn)

    # -- capacity -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What it could not take now is not to be handed over: the broker hears of it before."""
        now = now_ms()
        # Its own limit is the session's, too, and needs no further word.
        is_full = len(self._runs) < self.slots and (now < self._paused_until_ms or not self._has_capacity())
        if is_full != self._is_full:
            self._is_full = is_full
            self._session.full(is_full, now)
        if is_full and self._looking is None:
            wait_ms = max(LOOK_AGAIN_MS, self._paused_until_ms - now)
            self._looking = self._loop.call_later(wait_ms / 1000, self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self._turn()

    def _has_capacity(self) -> bool:
        try:
            return bool(self.executor.has_capacity())
        except Exception as error:
            if not self._is_full:
                log.error("executor_broke", executor=self.key, what="has_capacity", error=repr(error))
            return False

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        running = _Running(run, self._ready(run))
        self._runs[run.item] = running
        self._begun.append(running)

    def _run_begun(self) -> None:
        begun, self._begun = self._begun, []
        together = [begun] if self._many is not None else [[running] for running in begun]
        for runs in together:
            task = self._loop.create_task(self._execute(runs), name=f"stepwire-{self.key}")
            for running in runs:
                running.together = runs
                running.task = task
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _execute(self, runs: "list[_Running]") -> list[Any]:
        if now_ms() >= min(running.run.lease.until_ms for running in runs):
            raise NoCapacity("the lease is over, so somebody else may have it")
        if not self._has_capacity():
            raise NoCapacity
        steps = [running.step for running in runs]
        if self._many is None:
            return [await self.executor.execute(steps[0])]
        results = await self._many(steps)
        if isinstance(results, list) and len(results) == len(steps):
            return results
        return [results] * len(steps)  # whatever it says: nobody knows of which step

    def _ended(self, task: "asyncio.Task[list[Any]]") -> None:
        """Also for a task that was cancelled before it had begun."""
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._is_closed:
            return
        now = now_ms()
        runs = [running for running in self._runs.values() if running.task is task]
        outcomes: list[Result | None]
        if error is None:
            pairs = zip(runs, task.result(), strict=True)
            outcomes = [run_outcome.said(r.run.step, result, now - r.run.started_ms) for r, result in pairs]
        else:
            outcomes = [run_outcome.raised(r.run.step, error, r.reason, now - r.run.started_ms) for r in runs]
            self._complain(runs, error)
        self._pause(now if isinstance(error, NoCapacity) else None)
        for running, result in zip(runs, outcomes, strict=True):
            del self._runs[running.run.item]
            running.together = []  # which names it, too: only the cyclic collector would ever find the two
            if result is None:
                self._session.give_back(running.run.item, now)
            else:
                self._session.finished(running.run.item, result, now)
        self._turn_soon()

    def _pause(self, refused_ms: float | None) -> None:
        """It had said that it could, and then could not: it is asked again later, and ever later while that goes on."""
        if refused_ms is None:
            self._pause_ms = PAUSE_MS
        elif refused_ms >= self._paused_until_ms:
            self._paused_until_ms = refused_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)

    def _complain(self, runs: "list[_Running]", error: BaseException) -> None:
        """What an executor is meant to raise is the step's to tell of; anything else is a fault of the executor."""
        if not isinstance(error, ExecutorError) and any(running.reason is None for running in runs):
            steps = [running.run.item[0] for running in runs]
            log.error("executor_broke", executor=self.key, what="execute", steps=steps, error=repr(error))

    def _cancel(self, item: Item, reason: RunEnd) -> None:
        """Once a run: what it does when it is told to stop must not be interrupted, too. A lost lease stops nothing."""
        running = self._runs.get(item)
        if running is None or running.reason is not None or reason == "lease_lost":
            return
        running.reason = reason
        if self._canceller is not None:
            self._call_aside(self._canceller, running.step, reason)
        elif running.task is not None and all(other.reason is not None for other in running.together):
            running.task.cancel()

    def _call_aside(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            answer = function(*arguments)
        except Exception as error:
            log.error("executor_broke", executor=self.key, what="cancel", error=repr(error))
            return
        if inspect.isawaitable(answer):
            future = asyncio.ensure_future(answer)
            self._asides.add(future)
            future.add_done_callback(self._ended_aside)

    def _ended_aside(self, future: "asyncio.Future[Any]") -> None:
        self._asides.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("executor_broke", executor=self.key, what="cancel", error=repr(error))

    def _ready(self, run: Run) -> StepReady:
        request, metadata = run.step, run.step.metadata

        async def load() -> StepRequest:
            return request

        return StepReady(
            task_id=request.task_id,
            step_id=request.step_id,
            path=self._path(request),
            handler_class=request.handler_class,
            delivery=request.delivery,
            attempt=metadata.attempt + 1,
            max_attempts=metadata.retry_limit + 1,
            timeout_ms=None if run.timeout_at_ms == NEVER else int(run.timeout_at_ms - run.started_ms),
            idempotency_key=metadata.idempotency_key,
            delivery_mode=request.delivery_mode,
            is_shadow=metadata.shadow,
            load=load,
        )

    def _path(self, request: StepRequest) -> str:
        step = self._broker.state.steps.get(request.step_id)
        if step is None:
            return request.step_name
        return f"{step.task.namespace}::{step.task.workflow.name}::{request.step_name}"


NEVER: Final = float("inf")


class _Running:
    """One run. With a batch executor several share a task."""

    __slots__ = ("reason", "run", "step", "task", "together")

    def __init__(self, run: Run, step: StepReady) -> None:
        self.run = run
        self.step = step
        self.reason: RunEnd | None = None
        self.task: asyncio.Task[list[Any]] | None = None
        self.together: list[_Running] = [self]


def check(key: str, executor: Any) -> None:
    """Raises BadExecutor: better at the start than at its first step."""
    if not isinstance(executor, Executor):
        lacks = [name for name in ("name", "has_capacity", "metrics", "execute") if not hasattr(executor, name)]
        raise BadExecutor(f"executor {key}: {type(executor).__name__} lacks {', '.join(lacks)}")
    for name in ("execute", "execute_many", "start", "stop"):
        if hasattr(executor, name) and not inspect.iscoroutinefunction(getattr(executor, name)):
            raise BadExecutor(f"executor {key}: `{name}` has to be an async function")
    try:
        slots = getattr(executor.metrics(), "max_concurrent", None)
    except Exception as error:
        raise BadExecutor(f"executor {key}: metrics() raised {error!r}") from error
    if not isinstance(slots, int) or slots < 1:
        raise BadExecutor(f"executor {key}: metrics().max_concurrent is {slots!r}, it needs to be 1 or more")
    for name, kind in (("handlers", _patterns), ("shadow_safe", _patterns), ("labels", _labels)):
        found = getattr(executor, name, None)
        try:
            if found is not None:
                kind(found)
        except msgspec.ValidationError as error:
            raise BadExecutor(f"executor {key}: `{name}` is {found!r}: {error}") from None


def _patterns(found: Any) -> None:
    msgspec.convert(found, tuple[HandlerPattern, ...])


def _labels(found: Any) -> None:
    msgspec.convert(found, dict[str, str])


async def _within(awaited: Awaitable[Any], timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await awaited
    except TimeoutError:
        return False
    return True
