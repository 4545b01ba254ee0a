"""A broker inside an application: kill the application, start it again, and the work goes on."""

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from stepwire import Context
from stepwire_broker import Broker, CommandError
from stepwire_broker.store.errors import StoreRefused

from tests.checker import assert_kept

from .harness import Program, Site, eventually

TASKS: Final = 40
KILLS: Final = 3


def application(site: Site, number: int) -> Program:
    argv = [sys.executable, "-m", "tests.system.embedded_application", str(site.directory), str(TASKS)]
    return site.start(f"application-{number}", argv)


def test_a_killed_application_continues_and_charges_no_order_twice(site: Site, figure: Callable[[str], None]) -> None:
    for number in range(KILLS):
        before = len(site.runs("started"))
        running = application(site, number)
        eventually(
            lambda before=before: len(site.runs("started")) > before + 15 or None,  # type: ignore[misc]
            f"run {number} to be in the middle of its steps",
            30,
        )
        running.kill9()
    last = application(site, KILLS)
    assert last.wait(60) == 0, last.stderr[-3000:]
    assert last.stdout.split() == ["submitted", "completed"]
    verdict = assert_kept(site.directory / "state.db", site.ledgers)
    charged = [run["step_id"] for run in site.runs("started") if run["mode"] == "at_most_once"]
    assert len(charged) == len(set(charged))
    figure(f"{KILLS} kills, {len(charged)} charges started, none twice; {verdict}")


# -- mistakes of a caller ---------------------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_file_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker.open(tmp_path / "state.db") as broker:
            with pytest.raises(StoreRefused, match="another broker"):
                await Broker.open(tmp_path / "state.db").start()
            applied = await broker.apply({"name": "w", "steps": [{"name": "s", "handler_class": "unoffered"}]})
            assert [warning.handlers for warning in applied.warnings] == [("unoffered",)]
            assert (await (await broker.submit("w")).show()).state == "running"

    asyncio.run(main())


def test_a_wrong_call_raises_its_code(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker.open(tmp_path / "state.db")
        with pytest.raises(RuntimeError, match="not started"):
            await broker.submit("w")
        async with broker:
            refused = [
                (broker.apply("name: w\nsteps: []\n"), "invalid_workflow"),
                (broker.submit("w"), "not_found"),
                (broker.submit("w", key="two words"), "bad_field"),
                (broker.task(77).show(), "not_found"),
                (broker.task(77).cancel(), "not_found"),
                (broker.resolve(77, "failed", reason="x"), "bad_field"),
            ]
            for call, code in refused:
                with pytest.raises(CommandError) as raised:
                    await call
                assert raised.value.code == code
            with pytest.raises(RuntimeError, match="too late: register handlers before the broker starts"):
                broker.handler("late")
        with pytest.raises(CommandError, match=r"draining|starting"):
            await broker.submit("w")

    asyncio.run(main())
    with pytest.raises(CommandError, match="nonsense"):
        Broker.open("x.db", settings={"bus": {"nonsense": 1}})


def test_a_wait_ends_at_its_timeout_and_the_task_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker.open(tmp_path / "state.db")
        finish = threading.Event()

        @broker.handler("slow")
        def slow(ctx: Context) -> int:
            finish.wait(20)
            return 7

        async with broker:
            await broker.apply({"name": "w", "steps": [{"name": "s", "handler_class": "slow"}]})
            tasks = await broker.submit_many([{"workflow": "w", "key": f"k{i}"} for i in range(3)])
            with pytest.raises(TimeoutError):
                await tasks[0].result(timeout_s=0.05)
            assert [task.id async for task in broker.tasks("running")] == [task.id for task in reversed(tasks)]
            finish.set()
            assert [await task.result(10) for task in tasks] == [{"s": 7}] * 3

    asyncio.run(main())
