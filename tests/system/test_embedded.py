"""A broker inside an application: kill the application, start it again, and the work goes on."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from stepwire import Client, Context, OutcomeUnknown, Permanent
from stepwire.errors import Denied, Unreachable
from stepwire_broker import Broker, BrokerError, CommandError, InUse, TaskCancelled, TaskFailed, TaskHeld

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
            with pytest.raises(InUse, match="another broker"):
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


# -- the exceptions of tasks ------------------------------------------------------------------------------------------


class Declined(Permanent):
    pass


def payments(database: Path, **options: Any) -> Broker:
    """A broker whose handlers fail in different ways."""
    broker = Broker.open(database, **options)

    @broker.handler("decline")
    def decline(ctx: Context) -> None:
        raise Declined("card declined")

    @broker.handler("crash")
    async def crash(ctx: Context) -> None:
        raise KeyError("nope")

    @broker.handler("unknown")
    def unknown(ctx: Context) -> None:
        raise OutcomeUnknown("the line was cut")

    return broker


def steps(*handlers: str, **members: Any) -> dict[str, Any]:
    each = [{"name": name, "handler_class": name, "retry_limit": 0, **members} for name in handlers]
    return {"name": "w", "steps": each}


def test_the_text_of_a_failed_task_is_a_sentence_without_code_and_files_of_the_handler(tmp_path: Path) -> None:
    async def main() -> TaskFailed:
        async with payments(tmp_path / "state.db") as broker:
            await broker.apply(steps("decline", "crash"))
            task = await broker.submit("w")
            with pytest.raises(TaskFailed) as raised:
                await task.result(20)
            return raised.value

    failed = asyncio.run(main())
    assert str(failed) == "task 1 failed: step decline: Declined: card declined; step crash: KeyError: 'nope'"
    assert repr(failed) == f"TaskFailed({str(failed)!r})"
    assert [(step.name, step.error_text) for step in failed.steps] == [
        ("decline", "Declined: card declined"),
        ("crash", "KeyError: 'nope'"),
    ]
    assert failed.steps[1].error["backtrace"][-1] == "KeyError: 'nope'"  # for the application's own log
    assert failed.task.task_id == 1


def test_the_text_of_a_failed_task_names_at_most_three_steps(tmp_path: Path) -> None:
    async def main() -> None:
        async with payments(tmp_path / "state.db") as broker:
            each = [{"name": f"s{i}", "handler_class": "decline"} for i in range(5)]
            await broker.apply({"name": "w", "steps": each})
            with pytest.raises(TaskFailed, match=r"^task 1 failed: step s0: .*; step s1: .*; step s2: .*; and 2 more$"):
                await (await broker.submit("w")).result(20)

    asyncio.run(main())


def test_held_and_cancelled_tasks_have_sentences(tmp_path: Path) -> None:
    async def main() -> None:
        async with payments(tmp_path / "state.db") as broker:
            await broker.apply(steps("unknown", delivery_mode="at_most_once"))
            task = await broker.submit("w")
            with pytest.raises(TaskHeld, match=r"^task 1 waits until its held step unknown \(step_id 2\) is resolved$"):
                await task.result(20)
            await broker.apply({**steps("not_offered"), "name": "waits"})
            waiting = await broker.submit("waits")
            await waiting.cancel()
            with pytest.raises(TaskCancelled, match=rf"^task {waiting.id} was cancelled$"):
                await waiting.result(20)

    asyncio.run(main())


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def stepwire(broker: Broker, *words: str) -> str:
    """The output of a command that uses the broker's HTTP API."""
    environ = {**os.environ, "STEPWIRE_URL": str(broker.url), "STEPWIRE_TOKEN_FILE": str(broker.token_file)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwire", *words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def test_the_command_line_sees_and_resolves_a_held_step_of_an_embedded_broker_with_http(tmp_path: Path) -> None:
    async def main() -> None:
        async with payments(tmp_path / "state.db", http="127.0.0.1:0") as broker:
            await broker.apply(steps("unknown", delivery_mode="at_most_once"))
            task = await broker.submit("w")
            with pytest.raises(TaskHeld):
                await task.result(20)
            assert "unknown" in await stepwire(broker, "step", "list", "--state", "held")
            await stepwire(broker, "step", "resolve", "1/unknown", "--completed", '{"id": 7}', "--reason", "booked")
            assert await task.result(20) == {"unknown": {"id": 7}}

    asyncio.run(main())


def test_the_token_of_an_embedded_broker_is_private_and_stays_the_same_and_is_required(tmp_path: Path) -> None:
    tokens = []

    async def main() -> None:
        async with payments(tmp_path / "state.db", http="127.0.0.1:0") as broker:
            assert broker.token_file == tmp_path / "state.db.token"
            assert broker.token_file.stat().st_mode & 0o777 == 0o600
            tokens.append(broker.token_file.read_text())
            url = broker.url
            with Client(url, token_file=broker.token_file) as client:
                assert (await asyncio.to_thread(client.tasks))["tasks"] == []
            with Client(url, token="x" * 43) as stranger, pytest.raises(Denied):
                await asyncio.to_thread(stranger.tasks)
        with Client(url, token_file=broker.token_file, outage_s=0) as client, pytest.raises(Unreachable):
            await asyncio.to_thread(client.tasks)

    asyncio.run(main())
    asyncio.run(main())
    assert tokens[0] == tokens[1]


def test_a_broker_whose_http_address_is_taken_does_not_start_and_gives_the_file_back(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        with pytest.raises(BrokerError, match=r"the HTTP API of the broker cannot start: http.listen is '127"):
            await Broker.open(tmp_path / "state.db", http=address).start()
        async with Broker.open(tmp_path / "state.db") as broker:
            assert (broker.url, broker.token_file) == (None, None)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(main(f"127.0.0.1:{taken.getsockname()[1]}"))


def test_workers_poll_an_embedded_broker_with_http_and_only_then(tmp_path: Path) -> None:
    async def executors(**options: Any) -> set[str]:
        async with Broker.open(tmp_path / "state.db", **options) as broker:
            return {view.executor for view in broker._calls.engine().executors()}

    assert "poll" in asyncio.run(executors(http="127.0.0.1:0"))
    assert "poll" not in asyncio.run(executors())
