"""Runs an executor on the broker's loop, as a worker with a session.

The session is the session of the Python SDK, which has no I/O. Function calls carry messages between the session and
the broker. The same rules as for workers therefore decide when a step may start, and an executor need not know them.
There are no sockets and no threads: runs are tasks of the loop.
"""

import asyncio
import inspect
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog
from stepwire.actions import Action, CancelRun, Log, Quit, Run, RunEnd, Send
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

CAPACITY_CHECK_MS: Final = 100  # for an executor without capacity
PAUSE_MS: Final = 100  # after an executor reported capacity and then refused a step; doubled with each refusal in a row
PAUSE_MAX_MS: Final = 5_000
ACCEPT_DELAY_MS: Final = 5
EXPEL_S: Final = 5.0  # the time in which cancelled runs must end


class BadExecutor(BrokerError):
    """An object that cannot be an executor. The message names what it lacks."""


class Host:
    """Hosts one executor: `prepare`, `start`, `drain`, `close`, in this order, on the broker's loop."""

    def __init__(self, key: str, executor: Executor) -> None:
        check(key, executor)
        self.key = key
        self.executor = executor
        self.slots = executor.metrics().max_concurrent
        self._many: Callable[[Sequence[StepReady]], Awaitable[Any]] | None = getattr(executor, "execute_many", None)
        self._canceller: Callable[[StepReady, RunEnd], Any] | None = getattr(executor, "cancel", None)
        self._runs: dict[Item, _Running] = {}
        self._begun: list[_Running] = []
        self._tasks: set[asyncio.Task[list[Any]]] = set()
        self._cancelling: set[asyncio.Future[Any]] = set()
        self._is_full = False
        self._pause_ms = PAUSE_MS
        self._paused_until_ms = 0.0
        self._capacity_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._detach: Callable[[], None] | None = None
        self._has_quit = asyncio.Event()
        self._is_prepared = False
        self._is_closed = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Await the executor's own `start`, before the broker loads any task. Its exceptions pass through."""
        begin = getattr(self.executor, "start", None)
        if begin is not None:
            await begin()
        self._is_prepared = True

    def start(self, broker: Engine) -> None:
        """Connect the executor to the broker, which can now dispatch steps to it."""
        self._broker = broker
        self._bus = broker.settings.bus
        self._loop = asyncio.get_running_loop()
        self.worker = own_worker(self.key, broker.broker_id, broker.epoch, secrets.randbits(32))
        self._session = Session(self._config(), random.Random().random)  # noqa: S311 - spreads retries; no id
        self._detach = broker.attach(self.worker, self.key, self._receive)
        now = now_ms()
        self._session.start(now)
        # The announcement makes the broker known to the session, so that the first hello opens the session.
        self._session.receive(topics.BROKERS, codec.encode(letters.here(broker.state.identity)), now)
        self._turn()

    async def drain(self, drain_ms: float) -> None:
        """Return steps that have not started, and wait for runs. After `drain_ms`, cancel the runs and wait for at most
        EXPEL_S."""
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
        """Disconnect from the broker. Runs are cancelled, and their results are discarded."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._timer, self._capacity_timer):
            if timer is not None:
                timer.cancel()
        ending = (*self._tasks, *self._cancelling)
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
        metrics = self.executor.metrics()
        if not isinstance(metrics, ExecutorMetrics):
            raise TypeError(f"metrics() returned {type(metrics).__name__}; return ExecutorMetrics")
        return metrics

    # -- session ------------------------------------------------------------------------------------------------------

    def _config(self) -> Config:
        executor = self.executor
        safe = tuple(getattr(executor, "shadow_safe", ()))
        handlers = tuple(h for h in getattr(executor, "handlers", EVERYTHING) if h not in safe)
        return Config(
            worker=self.worker,
            offers=(*(Offer(h, shadow_safe=True) for h in safe), *(Offer(h) for h in handlers)),
            slots=self.slots,
            prefetch=0,  # a step that cannot run now stays ready, for another worker
            labels=dict(getattr(executor, "labels", {})),
            heartbeat_ms=self._bus.heartbeat_ms,
            accept_delay_ms=ACCEPT_DELAY_MS,
            max_message_bytes=self._bus.max_message_bytes,
            sdk="stepwire-executor",
            pid=os.getpid(),
        )

    def _receive(self, topic: bytes, body: bytes) -> None:
        if not self._is_closed:
            self._session.receive(topic, body, now_ms())
            self._turn_soon()

    def _turn_soon(self) -> None:
        """Run `_turn` once for everything that arrives during this turn of the loop."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if self._is_closed:
            return
        self._check_capacity()
        for action in self._session.actions(now_ms()):
            match action:
                case Send(topic, body):
                    self._send(topic, body)
                case Run():
                    self._begin(action)
                case CancelRun(item, reason):
                    self._cancel(item, reason)
                case Quit():
                    self._has_quit.set()
                case _:
                    self._perform(action)
        if self._begun:
            self._run_begun()
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = min(max(0.0, self._wake_at() - now_ms()), 60_000.0)
        self._timer = self._loop.call_later(wait_ms / 1000, self._turn)

    def _send(self, topic: bytes, body: bytes) -> None:
        self._broker.hear(topic, body)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Log):
            getattr(log, action.level)(action.event, executor=self.key, **action.facts)
        # There are no connections to act on, and a result that is too large is in the task.

    def _wake_at(self) -> float:
        return self._session.wake_at()

    # -- capacity -----------------------------------------------------------------------------------------------------

    def _check_capacity(self) -> None:
        """Report a full executor, so that the broker dispatches no step that could not run."""
        now = now_ms()
        # The session knows the number of slots, so an executor that uses all of them need not be reported.
        is_full = len(self._runs) < self.slots and (now < self._paused_until_ms or not self._has_capacity())
        if is_full != self._is_full:
            self._is_full = is_full
            self._session.full(is_full, now)
        if is_full and self._capacity_timer is None:
            wait_ms = max(CAPACITY_CHECK_MS, self._paused_until_ms - now)
            self._capacity_timer = self._loop.call_later(wait_ms / 1000, self._recheck_capacity)

    def _recheck_capacity(self) -> None:
        self._capacity_timer = None
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
        # No step is handed over ahead of a free slot, because the prefetch is 0. So every run begins at once.
        started_ms = now_ms()
        run.begin(started_ms)
        running = _Running(run, self._ready(run, started_ms), started_ms)
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
            raise NoCapacity("the lease has expired, so another worker may have the step")
        if not self._has_capacity():
            raise NoCapacity
        steps = [running.step for running in runs]
        if self._many is None:
            return [await self.executor.execute(steps[0])]
        results = await self._many(steps)
        if isinstance(results, list) and len(results) == len(steps):
            return results
        return [results] * len(steps)  # which result belongs to which step is unknown

    def _ended(self, task: "asyncio.Task[list[Any]]") -> None:
        """Report the results of a task's runs. Also called for a task that was cancelled before it began."""
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._is_closed:
            return
        now = now_ms()
        runs = [running for running in self._runs.values() if running.task is task]
        outcomes: list[Result | None]
        if error is None:
            pairs = zip(runs, task.result(), strict=True)
            outcomes = [run_outcome.of_result(r.run.step, result, now - r.started_ms) for r, result in pairs]
        else:
            outcomes = [run_outcome.of_exception(r.run.step, error, r.reason, now - r.started_ms) for r in runs]
            self._log_fault(runs, error)
        self._pause(now if isinstance(error, NoCapacity) else None)
        for running, result in zip(runs, outcomes, strict=True):
            del self._runs[running.run.item]
            running.together = []  # breaks a cycle that only the cyclic collector would free
            if result is None:
                self._session.give_back(running.run.item, now)
            else:
                self._session.finished(running.run.item, result, now)
        self._turn_soon()

    def _pause(self, refused_ms: float | None) -> None:
        """Pause after a refusal despite reported capacity. The pause doubles while refusals continue."""
        if refused_ms is None:
            self._pause_ms = PAUSE_MS
        elif refused_ms >= self._paused_until_ms:
            self._paused_until_ms = refused_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)

    def _log_fault(self, runs: "list[_Running]", error: BaseException) -> None:
        """Log an exception that is a fault of the executor. An ExecutorError is an outcome of the step."""
        if not isinstance(error, ExecutorError) and any(running.reason is None for running in runs):
            steps = [running.run.item[0] for running in runs]
            log.error("executor_broke", executor=self.key, what="execute", steps=steps, error=repr(error))

    def _cancel(self, item: Item, reason: RunEnd) -> None:
        """Cancel a run, at most once, so that its clean-up is not interrupted. A lost lease does not cancel a run."""
        running = self._runs.get(item)
        if running is None or running.reason is not None or reason == "lease_lost":
            return
        running.reason = reason
        if self._canceller is not None:
            self._call_canceller(self._canceller, running.step, reason)
        elif running.task is not None and all(other.reason is not None for other in running.together):
            running.task.cancel()

    def _call_canceller(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            answer = function(*arguments)
        except Exception as error:
            log.error("executor_broke", executor=self.key, what="cancel", error=repr(error))
            return
        if inspect.isawaitable(answer):
            future = asyncio.ensure_future(answer)
            self._cancelling.add(future)
            future.add_done_callback(self._canceller_ended)

    def _canceller_ended(self, future: "asyncio.Future[Any]") -> None:
        self._cancelling.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("executor_broke", executor=self.key, what="cancel", error=repr(error))

    def _ready(self, run: Run, started_ms: float) -> StepReady:
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
            timeout_ms=None if run.timeout_at_ms == NEVER else int(run.timeout_at_ms - started_ms),
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
    """One run. Runs of a batch executor may share a task."""

    __slots__ = ("reason", "run", "started_ms", "step", "task", "together")

    def __init__(self, run: Run, step: StepReady, started_ms: float) -> None:
        self.run = run
        self.step = step
        self.started_ms = started_ms
        self.reason: RunEnd | None = None
        self.task: asyncio.Task[list[Any]] | None = None
        self.together: list[_Running] = [self]


def check(key: str, executor: Any) -> None:
    """Check an executor when the broker starts, rather than at the first step. Raises BadExecutor."""
    if not isinstance(executor, Executor):
        missing = [name for name in ("name", "has_capacity", "metrics", "execute") if not hasattr(executor, name)]
        raise BadExecutor(f"executor {key}: {type(executor).__name__} lacks {', '.join(missing)}")
    if getattr(executor, "survives_broker", False):
        raise BadExecutor(
            f"executor {key}: `survives_broker` is True, but this version does not store handles of runs, so it would "
            "deliver their steps again after a restart; set it to False, and end earlier runs in `start`"
        )
    for name in ("execute", "execute_many", "reattach", "start", "stop"):
        if hasattr(executor, name) and not inspect.iscoroutinefunction(getattr(executor, name)):
            raise BadExecutor(f"executor {key}: `{name}` must be an async function")
    try:
        slots = getattr(executor.metrics(), "max_concurrent", None)
    except Exception as error:
        raise BadExecutor(f"executor {key}: metrics() raised {error!r}") from error
    if not isinstance(slots, int) or slots < 1:
        raise BadExecutor(f"executor {key}: metrics().max_concurrent is {slots!r}; it must be 1 or more")
    for name, kind in (("handlers", _patterns), ("shadow_safe", _patterns), ("labels", _labels)):
        value = getattr(executor, name, None)
        try:
            if value is not None:
                kind(value)
        except msgspec.ValidationError as error:
            raise BadExecutor(f"executor {key}: `{name}` is {value!r}: {error}") from None


def _patterns(value: Any) -> None:
    msgspec.convert(value, tuple[HandlerPattern, ...])


def _labels(value: Any) -> None:
    msgspec.convert(value, dict[str, str])


async def _within(awaited: Awaitable[Any], timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await awaited
    except TimeoutError:
        return False
    return True
