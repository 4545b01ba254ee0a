"""The local executor: the SDK's worker inside the broker's process."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from stepwire import Context, Worker
from stepwire_broker.core.definitions.settings import (
    BusSettings,
    DatabaseSettings,
    ExecutorsSettings,
    LocalSettings,
    Settings,
)
from stepwire_broker.embedded import Broker
from stepwire_broker.engine import CannotStart
from stepwire_broker.engine import Engine as Core
from stepwire_broker.executors.local import handlers_of
from stepwire_broker.executors.registry import Executors

from tests.cli.a_place import place

from .running import core_of, eventually, submit

MODULE = "tests.executors.local_handlers"


def here(directory: Path, **settings: Any) -> Broker:
    """A broker with the handlers that the settings name."""
    return Broker.open(directory / "state.db", settings={"executors": {"local": {"modules": [MODULE]}}, **settings})


def test_handlers_run_in_threads_on_a_loop_and_in_processes(tmp_path: Path) -> None:
    async def tried() -> list[dict[str, Any]]:
        async with here(tmp_path) as broker:
            (session,) = await eventually(lambda: list(core_of(broker).state.sessions.values()), "the worker")
            assert (session.executor, session.worker.partition(":")[0], session.slots) == ("local", "local.b1", 10)
            outputs = []
            for kind in ("thread", "async", "process"):
                (task,) = await submit(broker, workflow=kind, handler_class=f"where.{kind}")
                outputs.append((await task.result(20))["s"])
            return outputs

    thread, loop, process = asyncio.run(tried())
    assert thread["pid"] == loop["pid"] == os.getpid() != process["pid"]
    assert thread["thread"].startswith("stepwire-handler")
    assert loop["thread"] == "stepwire-async"
    assert not Path(f"/proc/{process['pid']}").exists()


def test_a_killed_process_of_a_handler_is_one_failed_attempt(tmp_path: Path) -> None:
    async def tried() -> None:
        note = tmp_path / "pid"
        async with here(tmp_path) as broker:
            context = {"note": str(note)}
            (task,) = await submit(broker, context=context, handler_class="where.process")
            await eventually(note.exists, "the handler's process")
            first = int(note.read_text())
            os.kill(first, signal.SIGKILL)
            output = (await task.result(20))["s"]
            assert (output["delivery"], output["pid"] == first) == (2, False)
            step = (await task.show()).steps[0]
            assert step.attempt == 1

    asyncio.run(tried())


def test_an_at_most_once_step_is_held_when_its_process_is_killed(tmp_path: Path) -> None:
    async def tried() -> None:
        note = tmp_path / "pid"
        async with here(tmp_path) as broker:
            context = {"note": str(note)}
            (task,) = await submit(broker, context=context, handler_class="where.process", delivery_mode="at_most_once")
            await eventually(note.exists, "the handler's process")
            os.kill(int(note.read_text()), signal.SIGKILL)
            assert (await task.wait(20)).steps[0].state == "held"

    asyncio.run(tried())


def test_local_handlers_run_while_the_bus_listens_elsewhere(tmp_path: Path) -> None:
    """The broker's announcement to workers does not make them connect twice."""
    settings = Settings(
        database=DatabaseSettings(url=f"sqlite:///{tmp_path / 'state.db'}"),
        bus=BusSettings(steps=f"ipc://{tmp_path / 's'}", results=f"ipc://{tmp_path / 'r'}"),
        executors=ExecutorsSettings(local=LocalSettings(modules=(MODULE,), threads=3)),
    )

    async def tried() -> None:
        executors = Executors(settings)
        executors.configure()
        broker = Core(settings, companion=executors)
        await broker.start()
        try:
            (session,) = await eventually(lambda: list(broker.state.sessions.values()), "the worker")
            assert (session.executor, session.slots) == ("local", 3)
            assert broker.endpoints["steps"] == f"ipc://{tmp_path / 's'}"
        finally:
            await broker.drain()
            await broker.stop()
        assert not broker.state.sessions

    asyncio.run(tried())


def test_serve_names_the_module_that_it_cannot_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ended = place(tmp_path).stepwire("serve", "--local", "no_such_module")
    assert ended.code == 2
    assert "executors.local.modules: no_such_module: there is no module no_such_module" in ended.err
    assert "Traceback" not in ended.err


def test_a_module_that_cannot_be_used_is_named() -> None:
    for module, text in (
        ("tests.no_such_module", "there is no module tests.no_such_module"),
        ("tests.executors.running", "has no Worker"),
        (f"{MODULE}:in_thread", "needs a Worker called in_thread"),
    ):
        with pytest.raises(CannotStart, match=text):
            handlers_of([module])


def test_a_handler_may_be_in_one_module_only() -> None:
    own = Worker()

    @own.handler("where.thread")
    def mine(context: Context) -> None: ...

    with pytest.raises(CannotStart, match=r"'where\.thread' is registered twice"):
        handlers_of([MODULE], own.handlers)
