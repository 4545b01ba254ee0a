"""The contract of an executor: it takes ready steps and returns their results.

    class Shouting(BaseExecutor):
        async def run(self, step: StepReady) -> ExecutionResult:
            return completed({"text": (await step.input())["text"].upper()})

The broker does everything else in the same way for every executor (see `host.py`). It chooses the steps by routing
rules, and grants, leases, fences, retries, holds, cancels and drains them. An executor runs in the broker's process and
on the broker's loop, so blocking work must go to a thread or a process.
"""

import abc
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import UNSET, Struct
from stepwire.actions import RunEnd
from stepwire_protocol.messages import DeliveryMode, StepRequest

from stepwire_broker.core.model.figures import ExecutorMetrics, Figures
from stepwire_broker.errors import BrokerError

Status: TypeAlias = Literal["completed", "failed", "retry", "held"]

EVERYTHING: Final = ("**",)


class StepReady(Struct, frozen=True, kw_only=True, eq=False):
    """A step to run now. `request` and `input` load the task's context, which is not a member."""

    task_id: int
    step_id: int
    path: str  # namespace::workflow::step, as routes match it
    handler_class: str
    delivery: int  # increases with every delivery of this step: a fence against its earlier runs
    attempt: int  # 1 for the first: one more than the `attempt` of the request, which counts failed ones
    max_attempts: int
    timeout_ms: int | None  # for this run, counted from now; the host cancels the run at its timeout
    idempotency_key: str  # the same for every attempt and delivery, so that no effect happens twice
    delivery_mode: DeliveryMode
    is_shadow: bool = False  # a rehearsal: its result is only compared, so it must have no effects
    load: Callable[[], Awaitable[StepRequest]]

    async def request(self) -> StepRequest:
        """The step as a worker on the bus receives it: context, earlier results, configuration, input.

        `stepwire_protocol.codec.encode(request)` makes it JSON.
        """
        return await self.load()

    async def input(self) -> Any:
        """The argument of a handler: the step's `input` if its workflow maps one, otherwise the task's context."""
        request = await self.load()
        return msgspec.json.decode(request.task_context if request.input is UNSET else request.input)


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of a run. The four functions below make one.

    completed  `output` is the step's output: anything that is JSON, or `msgspec.Raw`.
    failed     The work is not done. The failure is final, unless `should_retry=True`: then the step's policy applies.
    retry      The work is not done. The step's policy decides about a retry, not before `retry_after_ms`.
    held       The outcome is unknown. An at_most_once step is held for an operator; an at_least_once step is retried.
    """

    status: Status
    output: Any = None
    error: str | None = None
    code: str | None = None  # a short name of the failure, for programs
    category: str | None = None  # `unavailable`: a service that the step needs has failed, not the step
    should_retry: bool | None = None  # None: True for `retry`, False for `failed`
    retry_after_ms: int | None = None
    duration_ms: float | None = None  # None: the host measures it
    stderr: str | None = None  # what the run wrote to standard error; the end of it is stored with the step


def completed(output: Any = None) -> ExecutionResult:
    return ExecutionResult(status="completed", output=output)


def failed(error: str, *, code: str | None = None, category: str | None = None) -> ExecutionResult:
    """The failure is final: a retry cannot help."""
    return ExecutionResult(status="failed", error=error, code=code, category=category, should_retry=False)


def retry(
    error: str, *, retry_after_ms: int | None = None, code: str | None = None, category: str | None = None
) -> ExecutionResult:
    return ExecutionResult(
        status="retry", error=error, code=code, category=category, should_retry=True, retry_after_ms=retry_after_ms
    )


def held(error: str) -> ExecutionResult:
    return ExecutionResult(status="held", error=error)


class Running(Struct, frozen=True):
    """The run has started or will start."""


class Ended(Struct, frozen=True):
    """The run has ended with this result."""

    result: ExecutionResult


class Never(Struct, frozen=True):
    """The run did not start and never will: the step can be delivered again."""


class Lost(Struct, frozen=True):
    """The run is gone and its outcome is unknown. The step is treated as if the run had returned `held`."""

    why: str


# The answer of `reattach` for one handle.
RunVerdict: TypeAlias = Running | Ended | Never | Lost


class ExecutorError(BrokerError):
    """Base of the exceptions by which an executor reports an outcome. Any other exception leaves the outcome unknown:
    the step may have run."""


class NoCapacity(ExecutorError):
    """Nothing was done. The step is ready again and no attempt is spent; the executor receives no step before
    `has_capacity()` is true."""


class NoExecutor(ExecutorError):
    """With its present configuration, the broker can never run the step. Nothing was done; the failure is final."""


class ExecutionFailed(ExecutorError):
    """The work is not done. The step's policy decides about a retry; with `should_retry=False` the failure is final."""

    def __init__(
        self,
        message: str,
        *,
        should_retry: bool = True,
        retry_after_ms: int | None = None,
        code: str | None = None,
        category: str | None = None,
    ) -> None:
        super().__init__(message)
        self.should_retry = should_retry
        self.retry_after_ms = retry_after_ms
        self.code = code
        self.category = category


@runtime_checkable
class Executor(Protocol):
    """The members that every executor has. `metrics().max_concurrent` is its maximum number of concurrent runs.

    These members are optional:

    handlers      patterns of the handler classes that the executor runs; default: every step that is routed to it
    shadow_safe   patterns of the handler classes that may be rehearsed: their shadow copies have no effects
    start()       awaited before any step is dispatched: end runs that an earlier process left
    stop()        awaited when the broker stops and no run is left
    cancel(step, reason)  stop a run; without this method, the task of its `execute` is cancelled
    execute_many(steps)   run steps that arrived together; return a result for each, in their order

    The next members are for runs that outlive the broker, such as jobs on another system. The broker does not call them
    yet, and refuses an executor with `survives_broker = True`:

    survives_broker       True: a run goes on when the broker's process ends
    plan(step)            name the run before it starts; the broker stores the name, the run's handle
    reattach(handles)     after a restart, find the runs with these handles; returns a RunVerdict for each
    """

    @property
    def name(self) -> str: ...

    def has_capacity(self) -> bool:
        """False: the executor receives no step now, and steps stay ready. Called often."""
        ...

    def metrics(self) -> ExecutorMetrics: ...

    async def execute(self, step: StepReady) -> ExecutionResult:
        """Run a step. The broker cancels this call at the step's timeout, when its task is cancelled, and when the
        broker must stop. After a cancellation, end all work that the run started, as far as possible."""
        ...


class BaseExecutor(abc.ABC):
    """An executor that counts its own runs. Subclasses implement `run`."""

    handlers: Sequence[str] = EVERYTHING
    shadow_safe: Sequence[str] = ()
    survives_broker: bool = False

    def __init__(self, name: str, max_concurrent: int = 8) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent is {max_concurrent}: it must be 1 or more")
        self.name = name
        self.max_concurrent = max_concurrent
        self.active = 0
        self.figures = Figures()

    @abc.abstractmethod
    async def run(self, step: StepReady) -> ExecutionResult: ...

    def plan(self, step: StepReady) -> str | None:
        """Name the run that `execute` is about to start, or return None for a run that ends with the broker.

        Must be pure, and return the same name for the same step and delivery. The name is stored before the run starts,
        so a restarted broker knows nothing but the name. At most 4 KiB, without secrets.
        """
        return None

    async def reattach(self, handles: Sequence[str]) -> list[RunVerdict]:
        """Find the runs with these handles after a restart. Returns a verdict for each, in their order.

        An executor that cannot reach its system raises: no verdict is better than a wrong one.
        """
        raise NotImplementedError(f"executor {self.name} has no runs that outlive the broker, so it cannot reattach")

    def has_capacity(self) -> bool:
        return self.active < self.max_concurrent

    def metrics(self) -> ExecutorMetrics:
        return self.figures.metrics(self.active, self.max_concurrent)

    async def execute(self, step: StepReady) -> ExecutionResult:
        (result,) = await self._counted(1, self._run_one(step))
        return result

    async def _run_one(self, step: StepReady) -> list[ExecutionResult]:
        return [await self.run(step)]

    async def _counted(self, number: int, runs: Awaitable[list[ExecutionResult]]) -> list[ExecutionResult]:
        begun = monotonic()
        self.active += number
        are_completed = [False] * number
        try:
            results = await runs
            are_completed = [getattr(result, "status", None) == "completed" for result in results]
            return results
        except NoCapacity:
            are_completed = []
            raise
        finally:
            self.active -= number
            for is_completed in are_completed:
                self.figures.ended(is_completed, monotonic() - begun)


class BatchExecutor(BaseExecutor):
    """An executor that runs several steps together. Subclasses implement `run_many`."""

    @abc.abstractmethod
    async def run_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
        """Returns a result for each step, in their order. An exception is the outcome of all of these steps."""

    async def run(self, step: StepReady) -> ExecutionResult:
        (result,) = await self.run_many([step])
        return result

    async def execute_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
        return await self._counted(len(steps), self.run_many(steps))


__all__ = [
    "BaseExecutor",
    "BatchExecutor",
    "Ended",
    "ExecutionFailed",
    "ExecutionResult",
    "Executor",
    "ExecutorError",
    "ExecutorMetrics",
    "Lost",
    "Never",
    "NoCapacity",
    "NoExecutor",
    "RunEnd",
    "RunVerdict",
    "Running",
    "StepReady",
    "completed",
    "failed",
    "held",
    "retry",
]
