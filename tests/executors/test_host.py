"""An executor behind a real broker: the outcome of a run has the promised effect on the step."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from stepwire_broker.embedded import StepView
from stepwire_broker.executors.contract import (
    BatchExecutor,
    ExecutionFailed,
    ExecutionResult,
    NoCapacity,
    NoExecutor,
    RunEnd,
    StepReady,
    completed,
    failed,
    held,
    retry,
)
from stepwire_broker.executors.host import BadExecutor, Host

from .running import ScriptedExecutor, core_of, eventually, running, states, submit

ONCE: Final = {"delivery_mode": "at_most_once"}


# -- outcomes ---------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    first: Any  # what the first run returns or raises; every later one completes with its attempt
    step: dict[str, Any]
    state: str
    output: Any = None
    code: str | None = None
    runs: int = 1


CASES: Final = {
    "completed": Case(completed({"a": [1]}), {}, "completed", {"a": [1]}),
    "failed is final": Case(failed("no", code="declined"), {}, "failed", code="declined"),
    "a failure may ask to be retried": Case(
        ExecutionResult(status="failed", error="no", should_retry=True), {}, "completed", 2, runs=2
    ),
    "retry is retried": Case(retry("later", retry_after_ms=1), {}, "completed", 2, runs=2),
    "retry without attempts left": Case(retry("later", code="busy"), {"retry_limit": 0}, "failed", code="busy"),
    "held at_least_once runs again": Case(held("unknown"), {}, "completed", 2, runs=2),
    "held at_most_once is held": Case(held("unknown"), ONCE, "held"),
    "an exception leaves the outcome unknown: again": Case(RuntimeError("broke"), {}, "completed", 2, runs=2),
    "an exception leaves the outcome unknown: held": Case(RuntimeError("broke"), ONCE, "held"),
    "no capacity spends no attempt": Case(NoCapacity("full"), {"retry_limit": 0}, "completed", 1, runs=2),
    "no capacity spends no attempt, also once granted": Case(NoCapacity("full"), ONCE, "completed", 1, runs=2),
    "no executor is permanent": Case(NoExecutor("no cluster"), {}, "failed", code="no_executor"),
    "no executor did nothing": Case(NoExecutor("no cluster"), ONCE, "failed", code="no_executor"),
    "a raised failure is retried by policy": Case(ExecutionFailed("no"), {}, "completed", 2, runs=2),
    "a raised failure can be final": Case(ExecutionFailed("no", should_retry=False, code="x"), {}, "failed", code="x"),
    "a raised failure of at_most_once is known": Case(ExecutionFailed("no", code="x"), ONCE, "failed", code="x"),
    "an exception until no attempts are left": Case(
        ValueError("broke"), {"retry_limit": 0}, "failed", code="outcome_unknown"
    ),
    "an unknown outcome until no attempts are left": Case(
        held("unknown"), {"retry_limit": 0}, "failed", code="outcome_unknown"
    ),
    "a wrong type of result": Case("done!", {}, "failed", code="bad_result"),
    "a wrong type of result of at_most_once": Case("done!", ONCE, "held"),
    "an output that is no JSON": Case(completed({1, 2, object()}), {}, "failed", code="bad_output"),
    "a run cancels itself": Case(asyncio.CancelledError(), {}, "completed", 2, runs=2),
}


def test_each_end_of_a_run_has_its_outcome(tmp_path: Path) -> None:
    """All cases run in one broker, each with its own workflow."""
    runs: dict[str, int] = dict.fromkeys(CASES, 0)

    async def how(step: StepReady) -> Any:
        name = msgspec.json.decode((await step.request()).task_context)["case"]
        runs[name] += 1
        first = CASES[name].first
        if runs[name] > 1:
            return completed(step.attempt)
        if isinstance(first, BaseException):
            raise first
        return first

    async def tried() -> dict[str, tuple[Any, ...]]:
        outcomes = {}
        async with running(tmp_path, ScriptedExecutor(how)) as broker:
            tasks = {
                name: (await submit(broker, workflow=f"w{number}", context={"case": name}, **case.step))[0]
                for number, (name, case) in enumerate(CASES.items())
            }
            for name, task in tasks.items():
                step = (await task.wait(20)).steps[0]
                code = step.error["code"] if step.state == "failed" else None
                outcomes[name] = step.state, step.output, code, runs[name]
        return outcomes

    assert asyncio.run(tried()) == {name: (c.state, c.output, c.code, c.runs) for name, c in CASES.items()}


def test_an_executor_receives_a_description_and_can_load_the_request(tmp_path: Path) -> None:
    requests: list[Any] = []

    async def how(step: StepReady) -> ExecutionResult:
        request = await step.request()
        requests.append((msgspec.json.decode(request.task_context), msgspec.json.decode(request.handler_config)))
        return completed()

    executor = ScriptedExecutor(how)

    async def tried() -> None:
        async with running(tmp_path, executor) as broker:
            (task,) = await submit(
                broker, context={"n": 1}, retry_limit=4, timeout_ms=7_000, handler_config={"gateway": "test"}
            )
            await task.result(20)

    asyncio.run(tried())
    (step,) = executor.given
    assert (step.path, step.handler_class, step.attempt, step.max_attempts) == ("n::w::s", "H", 1, 5)
    assert 0 < step.timeout_ms <= 7_000  # what is left of it
    assert (step.delivery_mode, step.delivery) == ("at_least_once", 1)
    assert step.idempotency_key.endswith("/s")
    assert requests == [({"n": 1}, {"gateway": "test"})]


# -- capacity ---------------------------------------------------------------------------------------------------------


def test_an_executor_at_its_limit_leaves_steps_ready_until_it_is_released(tmp_path: Path) -> None:
    async def tried() -> None:
        go_on = asyncio.Event()
        most = 0

        async def how(step: StepReady) -> ExecutionResult:
            nonlocal most
            most = max(most, executor.active)
            await go_on.wait()
            return completed(step.task_id)

        executor = ScriptedExecutor(how, 2)
        async with running(tmp_path, executor) as broker:
            tasks = await submit(broker, 5)
            await eventually(lambda: executor.active == 2, "two runs")
            assert states(broker) == ["dispatched"] * 2 + ["ready"] * 3
            go_on.set()
            assert [await task.result(20) for task in tasks] == [{"s": task.id} for task in tasks]
        assert most == 2

    asyncio.run(tried())


def test_steps_wait_for_an_executor_without_capacity_until_it_has_some(tmp_path: Path) -> None:
    class Variable(ScriptedExecutor):
        is_free = False
        checks = 0

        def has_capacity(self) -> bool:
            self.checks += 1
            return self.is_free

    async def tried() -> None:
        async def how(step: StepReady) -> ExecutionResult:
            return completed()

        executor = Variable(how)
        async with running(tmp_path, executor) as broker:
            tasks = await submit(broker, 3)
            checks = executor.checks
            await eventually(lambda: executor.checks > checks + 3, "further checks of its capacity")
            assert states(broker) == ["ready"] * 3
            assert {step.delivery for step in core_of(broker).state.steps.values()} == {0}
            executor.is_free = True
            for task in tasks:
                await task.result(20)

    asyncio.run(tried())


def test_an_executor_that_refuses_despite_capacity_is_tried_with_growing_pauses(
    tmp_path: Path,
) -> None:
    async def how(step: StepReady) -> ExecutionResult:
        if len(executor.given) < 4:
            raise NoCapacity
        return completed(step.delivery)

    executor = ScriptedExecutor(how)

    async def tried() -> None:
        async with running(tmp_path, executor) as broker:
            (task,) = await submit(broker)
            begun = asyncio.get_running_loop().time()
            assert await task.result(20) == {"s": 4}
            assert asyncio.get_running_loop().time() - begun > 0.1 + 0.2 + 0.4

    asyncio.run(tried())


# -- stopping ---------------------------------------------------------------------------------------------------------


async def hang(_step: StepReady) -> ExecutionResult:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("step", "state", "code"),
    [({"retry_limit": 0}, "failed", "timeout"), (ONCE, "held", None)],
    ids=["at_least_once fails", "at_most_once is held"],
)
def test_a_run_is_cancelled_at_its_timeout(step: dict[str, Any], state: str, code: str | None, tmp_path: Path) -> None:
    async def tried() -> StepView:
        async with running(tmp_path, executor) as broker:
            (task,) = await submit(broker, timeout_ms=50, **step)
            return (await task.wait(20)).steps[0]

    executor = ScriptedExecutor(hang)
    step_view = asyncio.run(tried())
    assert step_view.state == state
    assert code is None or step_view.error["code"] == code
    assert executor.active == 0


def test_a_cancelled_task_cancels_its_run(tmp_path: Path) -> None:
    async def tried() -> None:
        executor = ScriptedExecutor(hang)
        async with running(tmp_path, executor) as broker:
            (task,) = await submit(broker)
            await eventually(lambda: executor.active, "the run")
            await task.cancel()
            assert (await task.wait(20)).steps[0].state == "cancelled"
            assert executor.active == 0

    asyncio.run(tried())


def test_the_cancel_method_of_an_executor_is_called_once(tmp_path: Path) -> None:
    class Own(ScriptedExecutor):
        def __init__(self) -> None:
            super().__init__(self.wait)
            self.stopped = asyncio.Event()
            self.reasons: list[str] = []

        async def wait(self, step: StepReady) -> ExecutionResult:
            await self.stopped.wait()
            return failed("stopped")

        def cancel(self, step: StepReady, reason: RunEnd) -> None:
            self.reasons.append(reason)
            self.stopped.set()

    async def tried() -> None:
        executor = Own()
        async with running(tmp_path, executor) as broker:
            (task,) = await submit(broker)
            await eventually(lambda: executor.active, "the run")
            await task.cancel()
            assert (await task.wait(20)).steps[0].state == "cancelled"
        assert executor.reasons == ["task_cancelled"]

    asyncio.run(tried())


def test_a_run_that_stops_slowly_is_not_interrupted_again(tmp_path: Path) -> None:
    """The broker repeats a cancel until the step is gone from what its worker holds."""

    async def tried() -> None:
        interrupts = 0
        done = asyncio.Event()

        async def how(step: StepReady) -> ExecutionResult:
            nonlocal interrupts
            while not done.is_set():
                try:
                    await done.wait()
                except asyncio.CancelledError:
                    interrupts += 1
            raise asyncio.CancelledError

        executor = ScriptedExecutor(how)
        async with running(tmp_path, executor, bus={"heartbeat_ms": 100}) as broker:
            (task,) = await submit(broker)
            await eventually(lambda: executor.active, "the run")
            session = next(iter(core_of(broker).state.sessions.values()))
            await task.cancel()
            since = session.heard_mono
            await eventually(lambda: session.heard_mono > since + 300, "some heartbeats")
            done.set()
            assert (await task.wait(20)).steps[0].state == "cancelled"
            assert interrupts == 1

    asyncio.run(tried())


def test_a_run_longer_than_the_lease_is_not_lost(tmp_path: Path) -> None:
    async def tried() -> None:
        executor = ScriptedExecutor(hang)
        async with running(tmp_path, executor, bus={"heartbeat_ms": 100, "lease_ms": 500}) as broker:
            (task,) = await submit(broker)
            await eventually(lambda: executor.active, "the run")
            session = next(iter(core_of(broker).state.sessions.values()))
            since = session.heard_mono
            await eventually(lambda: session.heard_mono > since + 800, "heartbeats for longer than the lease")
            assert len(executor.given) == 1
            assert not session.dead
            await task.cancel()

    asyncio.run(tried())


# -- batches ----------------------------------------------------------------------------------------------------------


class Together(BatchExecutor):
    def __init__(self, how: Callable[[Sequence[StepReady]], Coroutine[Any, Any, Any]]) -> None:
        super().__init__("together", 10)
        self.how = how
        self.sizes: list[int] = []

    async def run_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
        self.sizes.append(len(steps))
        results: list[ExecutionResult] = await self.how(steps)
        return results


def test_steps_that_arrive_together_run_together(tmp_path: Path) -> None:
    async def how(steps: Sequence[StepReady]) -> list[ExecutionResult]:
        return [completed(step.task_id) if step.task_id % 2 else failed("even") for step in steps]

    executor = Together(how)

    async def tried() -> None:
        async with running(tmp_path, executor) as broker:
            tasks = await submit(broker, 10)
            views = [await task.wait(20) for task in tasks]
            assert [t.state for t in views] == ["completed" if t.id % 2 else "failed" for t in tasks]

    asyncio.run(tried())
    assert sum(executor.sizes) == 10
    assert max(executor.sizes) > 1


def test_a_batch_with_a_wrong_number_of_results_has_none(tmp_path: Path) -> None:
    async def how(steps: Sequence[StepReady]) -> list[ExecutionResult]:
        return [completed()] * (len(steps) + 1)

    class Loose(Together):
        async def execute_many(self, steps: Sequence[StepReady]) -> list[ExecutionResult]:
            return await self.run_many(steps)

    async def tried() -> None:
        async with running(tmp_path, Loose(how)) as broker:
            for task in await submit(broker, 3):
                step = (await task.wait(20)).steps[0]
                assert (step.state, step.error["code"]) == ("failed", "bad_result")

    asyncio.run(tried())


# -- draining ---------------------------------------------------------------------------------------------------------


def test_a_drain_lets_runs_finish_and_leaves_the_rest_ready(tmp_path: Path) -> None:
    async def tried() -> None:
        go_on = asyncio.Event()

        async def how(step: StepReady) -> ExecutionResult:
            await go_on.wait()
            return completed()

        executor = ScriptedExecutor(how, 2)
        async with running(tmp_path, executor) as broker:
            await submit(broker, 4)
            await eventually(lambda: executor.active == 2, "two runs")
            core = core_of(broker)
            draining = asyncio.ensure_future(core.drain())
            await eventually(lambda: all(s.draining for s in core.state.sessions.values()), "the drain")
            assert executor.active == 2
            go_on.set()
            await asyncio.wait_for(draining, 20)
            assert states(broker) == ["ready"] * 2

    asyncio.run(tried())


@pytest.mark.parametrize(
    ("step", "after"), [({"retry_limit": 0}, "ready"), (ONCE, "held")], ids=["at_least_once", "at_most_once"]
)
def test_a_run_that_outlasts_the_drain_is_cancelled(step: dict[str, Any], after: str, tmp_path: Path) -> None:
    async def tried() -> None:
        executor = ScriptedExecutor(hang)
        async with running(tmp_path, executor, broker={"drain_timeout_ms": 50}) as broker:
            (task,) = await submit(broker, **step)
            await eventually(lambda: executor.active, "the run")
            await core_of(broker).drain()
            assert executor.active == 0
            step_view = (await task.show()).steps[0]
            assert (step_view.state, step_view.attempt) == (after, 0)

    asyncio.run(tried())


# -- refused executors ------------------------------------------------------------------------------------------------


def test_an_incomplete_executor_is_refused_with_the_missing_member() -> None:
    class Half:
        name = "half"

        def has_capacity(self) -> bool:
            return True

    class Plain(ScriptedExecutor):
        def execute(self, step: StepReady) -> Any:  # type: ignore[override]
            return completed()

    class Text(ScriptedExecutor):
        handlers = "reports.*"

    class Zero(ScriptedExecutor):
        def metrics(self) -> Any:
            return None

    class Broken(ScriptedExecutor):
        def metrics(self) -> Any:
            raise OSError("no cluster")

    for executor, lack in (
        (Half(), r"Half lacks metrics, execute"),
        (Plain(hang), r"`execute` must be an async function"),
        (Text(hang), r"`handlers` is 'reports\.\*'"),
        (Zero(hang), r"max_concurrent is None"),
        (Broken(hang), r"metrics\(\) raised OSError\('no cluster'\)"),
    ):
        with pytest.raises(BadExecutor, match=lack):
            Host("scripted", executor)  # type: ignore[arg-type]
