"""What an executor is: whatever takes ready steps and says what came of them.

    class Shouting(BaseExecutor):
        async def run(self, step: StepReady) -> ExecutionResult:
            return completed({"said": (await step.input())["text"].upper()})

That is all of it. Which steps it gets (routes), that each is granted, leased, fenced, retried, held, cancelled and
drained as the promises say, is the broker's and the same for every executor: see `host.py`. An executor lives in the
broker's process and on its loop, so whatever blocks goes to a thread or a process of its own.
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
    """A step that is to be run now. It carries no context: `request` has it, when the step is run."""

    task_id: int
    step_id: int
    path: str  # namespace::workflow::step, as routes match it
    handler_class: str
    delivery: int  # rises with every hand-over of this step: a fence against an earlier run of it
    attempt: int  # 1 for the first
    max_attempts: int
    timeout_ms: int | None  # one run, from now; the host cancels it then
    idempotency_key: str  # the same for every attempt and delivery: for what must not happen twice
    delivery_mode: DeliveryMode
    is_shadow: bool = False  # a rehearsal: what comes of it is compared and thrown away, so it must have no effects
    load: Callable[[], Awaitable[StepRequest]]

    async def request(self) -> StepRequest:
        """The step as a worker on the bus would get it: context, results before it, config, input. As JSON:
        `stepwire_protocol.codec.encode(request)`."""
        return await self.load()

    async def input(self) -> Any:
        """What a handler would be given: the step's `input` where its workflow maps one, else its task's context."""
        request = await self.load()
        return msgspec.json.decode(request.task_context if request.input is UNSET else request.input)


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """What came of a run. The four functions below make them.

    completed  `output` is its output: anything that is JSON, or `msgspec.Raw`.
    failed     It has not done its work. Final; with `should_retry=True` retried by the step's policy.
    retry      The same, and worth trying again: by the step's policy, or not before `retry_after_ms`.
    held       Nobody can know. An at_most_once step is held for an operator; an at_least_once step is tried again.
    """

    status: Status
    output: Any = None
    error: str | None = None
    code: str | None = None  # a short name of the failure, for programs
    category: str | None = None  # `unavailable`: not the step's fault, its surroundings are down
    should_retry: bool | None = None  # None: as `status` says
    retry_after_ms: int | None = None
    duration_ms: float | None = None  # None: the host's own measure


def completed(output: Any = None) -> ExecutionResult:
    return ExecutionResult(status="completed", output=output)


def failed(error: str, *, code: str | None = None, category: str | None = None) -> ExecutionResult:
    """Trying again cannot help."""
    return ExecutionResult(status="failed", error=error, code=code, category=category, should_retry=False)


def retry(
    error: str, *, retry_after_ms: int | None = None, code: str | None = None, category: str | None = None
) -> ExecutionResult:
    return ExecutionResult(
        status="retry", error=error, code=code, category=category, should_retry=True, retry_after_ms=retry_after_ms
    )


def held(error: str) -> ExecutionResult:
    return ExecutionResult(status="held", error=error)


class ExecutorError(BrokerError):
    """A failure that an executor reports precisely. Any other exception leaves the outcome unknown: the step may have
    run."""


class NoCapacity(ExecutorError):
    """The executor has no capacity now, and did nothing. The step is ready again and spends no attempt; the executor
    gets no step before `has_capacity()` is true."""


class NoExecutor(ExecutorError):
    """The step can never run on this broker. The executor did nothing, and the step fails for good."""


class ExecutionFailed(ExecutorError):
    """The step did not do its work. The step's policy retries it; with `should_retry=False` it fails for good."""

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
    """What every executor has. `metrics().max_concurrent` is how many runs it takes at a time.

    It may have more, and is asked for it by name:

    handlers      patterns of handler classes that it runs; without it, all that is routed to it
    shadow_safe   patterns of those that may be rehearsed: shadow copies have no effects there
    start()       awaited before anything is handed out: what an earlier process left running is to be ended here
    stop()        awaited when the broker stops and nothing runs any more
    cancel(step, reason)  ask a run to stop; without it, its `execute` is cancelled
    execute_many(steps)   steps that came together; a result for each, in their order
    """

    @property
    def name(self) -> str: ...

    def has_capacity(self) -> bool:
        """Asked often. False: nothing is handed over, and steps stay ready."""
        ...

    def metrics(self) -> ExecutorMetrics: ...

    async def execute(self, step: StepReady) -> ExecutionResult:
        """Run it. Cancelled at its time-out, when its task is cancelled, and when the broker has to leave: what was
        begun is to be ended then, as far as that can be."""
        ...


class BaseExecutor(abc.ABC):
    """An executor whose figures are kept for it: write `run`."""

    handlers: Sequence[str] = EVERYTHING
    shadow_safe: Sequence[str] = ()

    def __init__(self, name: str, max_concurrent: int = 8) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent is {max_concurrent}: it needs to be 1 or more")
        self.name = name
        self.max_concurrent = max_concurrent
        self.active = 0
        self.figures = Figures()

    @abc.abstractmethod
    async def run(self, step: StepReady) -> ExecutionResult: ...

    def has_capacity(self) -> bool:
        return self.active < self.max_concurrent

    def metrics(self) -> ExecutorMetrics:
        return self.figures.metrics(self.active, self.max_concurrent)

    async def execute(self, step: StepReady) -> ExecutionResult:
        (result,) = await self._counted(1, self._alone(step))
        return result

    async def _alone(self, step: StepReady) -> list[ExecutionResult]:
        return [await self.run(step)]

    async def _counted(self, many: int, runs: Awaitable[list[ExecutionResult]]) -> list[ExecutionResult]:
        begun = monotonic()
        self.active += many
        are_completed = [False] * many
        try:
            results = await runs
            are_completed = [getattr(result, "status", None) == "completed" for result in results]
            return results
        except NoCapacity:
            are_completed = []
            raise
        finally:
            self.active -= many
            for is_completed in are_completed:
                self.figures.ended(is_completed, monotonic() - begun)


class BatchExecutor(BaseExecutor):
    """One that does better with several steps at once: write `run_many`."""

    @abc.abstractmethod
    async def run_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
        """A result for each, in their order. An exception is of all of them."""

    async def run(self, step: StepReady) -> ExecutionResult:
        (result,) = await self.run_many([step])
        return result

    async def execute_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
        return await self._counted(len(steps), self.run_many(steps))


__all__ = [
    "BaseExecutor",
    "BatchExecutor",
    "ExecutionFailed",
    "ExecutionResult",
    "Executor",
    "ExecutorError",
    "ExecutorMetrics",
    "NoCapacity",
    "NoExecutor",
    "RunEnd",
    "StepReady",
    "completed",
    "failed",
    "held",
    "retry",
]
