"""A real broker on a real file, with executors that a test scripts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from stepwire_broker import engine as core
from stepwire_broker.embedded import Broker, Task
from stepwire_broker.executors.contract import BaseExecutor, ExecutionResult, Executor, StepReady

T = TypeVar("T")

SOON_S = 20.0


class ScriptedExecutor(BaseExecutor):
    """Runs `how` for each step, and records the steps."""

    def __init__(self, how: Callable[[StepReady], Awaitable[Any]], max_concurrent: int = 4) -> None:
        super().__init__("scripted", max_concurrent)
        self.how = how
        self.given: list[StepReady] = []

    async def run(self, step: StepReady) -> ExecutionResult:
        self.given.append(step)
        result: ExecutionResult = await self.how(step)
        return result


@asynccontextmanager
async def running(directory: Path, executor: Executor, **settings: Any) -> AsyncIterator[Broker]:
    """A broker that routes every step to this executor, whose key is `scripted`."""
    execution = {"default_execution_mode": "distributed", "default_executor": "scripted"}
    broker = Broker.open(directory / "state.db", settings={"execution": execution, **settings})
    broker.register_executor("scripted", executor)
    async with broker:
        yield broker


async def submit(
    broker: Broker, many: int = 1, workflow: str = "w", context: dict[str, Any] | None = None, **step: Any
) -> list[Task]:
    """Tasks of one step."""
    only = {"name": "s", "handler_class": "H", "backoff": {"base_ms": 1, "max_ms": 1}, **step}
    await broker.apply({"name": workflow, "namespace": "n", "steps": [only]})
    task = {"workflow": workflow, "namespace": "n", "context": context or {}}
    return await broker.submit_many([task] * many)


def core_of(broker: Broker) -> core.Engine:
    engine = broker._engine
    assert engine is not None
    return engine


async def eventually(check: Callable[[], T | None], what: str) -> T:
    """Wait for a condition that code on this loop brings about."""
    async with asyncio.timeout(SOON_S):
        try:
            while not (result := check()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None
    return result


def states(broker: Broker) -> list[str]:
    return sorted(str(step.state) for step in core_of(broker).state.steps.values())
