"""The contract: what an author of an executor writes, and what is counted for him."""

import asyncio
from collections.abc import Sequence

import pytest
from stepwire_broker.core.model.figures import Histogram
from stepwire_broker.executors.contract import (
    BaseExecutor,
    BatchExecutor,
    ExecutionResult,
    Executor,
    NoCapacity,
    StepReady,
    completed,
    failed,
)


def a_step(step_id: int = 1) -> StepReady:
    async def nothing() -> None:
        raise AssertionError("nobody asks for it here")

    return StepReady(
        task_id=7,
        step_id=step_id,
        path="shop::order::charge",
        handler_class="charge",
        delivery=1,
        attempt=1,
        max_attempts=4,
        timeout_ms=30_000,
        idempotency_key="k",
        delivery_mode="at_least_once",
        load=nothing,  # type: ignore[arg-type]
    )


class Scripted(BaseExecutor):
    """Does what it was told for each step id."""

    def __init__(self, script: dict[int, ExecutionResult | Exception], max_concurrent: int = 2) -> None:
        super().__init__("scripted", max_concurrent)
        self.script = script
        self.go_on = asyncio.Event()

    async def run(self, step: StepReady) -> ExecutionResult:
        await self.go_on.wait()
        said = self.script[step.step_id]
        if isinstance(said, Exception):
            raise said
        return said


def test_a_base_executor_is_an_executor() -> None:
    assert isinstance(Scripted({}), Executor)


def test_its_figures_are_kept_for_it() -> None:
    async def tried() -> None:
        executor = Scripted({1: completed(1), 2: failed("no"), 3: RuntimeError("broken"), 4: NoCapacity("full")}, 4)
        runs = [asyncio.ensure_future(executor.execute(a_step(number))) for number in (1, 2, 3, 4)]
        await asyncio.sleep(0)
        assert executor.metrics().active == 4
        assert not executor.has_capacity()

        executor.go_on.set()
        one, two, three, four = await asyncio.gather(*runs, return_exceptions=True)

        assert one == completed(1)
        assert two == failed("no")
        assert isinstance(three, RuntimeError)
        assert isinstance(four, NoCapacity)
        metrics = executor.metrics()
        assert (metrics.active, metrics.total_executed, metrics.total_failed, metrics.max_concurrent) == (0, 3, 2, 4)
        assert metrics.mean_ms is not None
        assert executor.has_capacity()

    asyncio.run(tried())


def test_one_that_is_cancelled_is_not_active_any_more() -> None:
    async def tried() -> None:
        executor = Scripted({1: completed()})
        run = asyncio.ensure_future(executor.execute(a_step()))
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        metrics = executor.metrics()
        assert (metrics.active, metrics.total_executed, metrics.total_failed) == (0, 1, 1)

    asyncio.run(tried())


def test_a_batch_counts_each_of_its_steps() -> None:
    async def tried() -> None:
        class Pairs(BatchExecutor):
            async def run_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
                return [completed(step.step_id) if step.step_id % 2 else failed("even") for step in steps]

        executor = Pairs("pairs")
        assert await executor.execute_many([a_step(1), a_step(2), a_step(3)]) == [
            completed(1),
            failed("even"),
            completed(3),
        ]
        assert await executor.execute(a_step(5)) == completed(5)
        assert (executor.metrics().total_executed, executor.metrics().total_failed) == (4, 1)

    asyncio.run(tried())


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.95, None),
        ([5.0], 0.95, 9.5),  # the one bucket it fell into, evenly filled
        ([1.0] * 95 + [15.0] * 5, 0.95, 10.0),
        ([1.0] * 95 + [15.0] * 5, 0.96, 12.0),
        ([99.0, 99.0], 0.95, 20.0),  # above all bounds: not less than the last
    ],
)
def test_a_quantile_is_right_within_one_bucket(values: list[float], share: float, expected: float | None) -> None:
    histogram = Histogram((10.0, 20.0))
    for value in values:
        histogram.observe(value)
    found = histogram.quantile(share)
    assert found == (None if expected is None else pytest.approx(expected))
