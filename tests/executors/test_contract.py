"""The contract: what the author of an executor writes, and what the base class counts."""

import asyncio
from collections.abc import Sequence

import pytest
from stepwire_broker.core.model.figures import Histogram
from stepwire_broker.executors.contract import (
    BaseExecutor,
    BatchExecutor,
    Ended,
    ExecutionResult,
    Executor,
    Lost,
    Never,
    NoCapacity,
    Running,
    RunVerdict,
    StepReady,
    completed,
    failed,
)
from stepwire_broker.executors.host import BadExecutor, Host


def a_step(step_id: int = 1) -> StepReady:
    async def nothing() -> None:
        raise AssertionError("no test of this file loads the request")

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
    """Returns or raises what the script holds for a step id."""

    def __init__(self, script: dict[int, ExecutionResult | Exception], max_concurrent: int = 2) -> None:
        super().__init__("scripted", max_concurrent)
        self.script = script
        self.go_on = asyncio.Event()

    async def run(self, step: StepReady) -> ExecutionResult:
        await self.go_on.wait()
        outcome = self.script[step.step_id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_base_executor_is_an_executor() -> None:
    assert isinstance(Scripted({}), Executor)


def test_a_base_executor_counts_its_runs() -> None:
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


def test_a_cancelled_run_is_no_longer_active() -> None:
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


# -- runs that outlive the broker -------------------------------------------------------------------------------------


def test_a_base_executor_has_no_handles_and_cannot_reattach() -> None:
    executor = Scripted({})
    assert not executor.survives_broker
    assert executor.plan(a_step()) is None
    with pytest.raises(NotImplementedError, match="executor scripted has no runs that outlive the broker"):
        asyncio.run(executor.reattach(["job-1"]))


class Cluster(BaseExecutor):
    """Runs steps as jobs on another system, which goes on without the broker."""

    survives_broker = True

    def __init__(self, jobs: dict[str, RunVerdict]) -> None:
        super().__init__("cluster")
        self.jobs = jobs

    def plan(self, step: StepReady) -> str:
        return f"s{step.step_id}-d{step.delivery}"

    async def run(self, step: StepReady) -> ExecutionResult:
        job = self.jobs.setdefault(self.plan(step), Ended(completed(step.step_id)))
        assert isinstance(job, Ended)
        return job.result

    async def reattach(self, handles: Sequence[str]) -> list[RunVerdict]:
        return [self.jobs.get(handle, Lost("no such job")) for handle in handles]


def test_an_executor_can_express_runs_that_outlive_the_broker() -> None:
    async def tried() -> None:
        jobs: dict[str, RunVerdict] = {"s2-d1": Running(), "s3-d1": Never()}
        assert await Cluster(jobs).execute(a_step(1)) == completed(1)
        restarted = Cluster(jobs)
        assert await restarted.reattach(["s1-d1", "s2-d1", "s3-d1", "s4-d1"]) == [
            Ended(completed(1)),
            Running(),
            Never(),
            Lost("no such job"),
        ]
        assert restarted.plan(a_step(1)) == "s1-d1"  # the same name after a restart

    asyncio.run(tried())


def test_a_broker_that_stores_no_handles_refuses_an_executor_that_needs_them() -> None:
    with pytest.raises(BadExecutor, match=r"executor cluster: `survives_broker` is True, .* end earlier runs in"):
        Host("cluster", Cluster({}))


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.95, None),
        ([5.0], 0.95, 9.5),  # its bucket, evenly filled
        ([1.0] * 95 + [15.0] * 5, 0.95, 10.0),
        ([1.0] * 95 + [15.0] * 5, 0.96, 12.0),
        ([99.0, 99.0], 0.95, 20.0),  # above all bounds: not less than the last
    ],
)
def test_a_quantile_is_right_within_one_bucket(values: list[float], share: float, expected: float | None) -> None:
    histogram = Histogram((10.0, 20.0))
    for value in values:
        histogram.observe(value)
    quantile = histogram.quantile(share)
    assert quantile == (None if expected is None else pytest.approx(expected))
