"""The engine alone, in this process: the effects that are complete when a call returns."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.definitions.settings import BusSettings, DatabaseSettings, Settings
from stepwire_broker.core.model.events import AwaitTask
from stepwire_broker.core.model.targets import POLL
from stepwire_broker.engine import Engine
from stepwire_protocol import codec, topics
from stepwire_protocol import messages as wire

WORKER = "w:0123456789abcdef"


def hello_to(broker: str) -> wire.Hello:
    return wire.Hello(
        v="2.0", worker=WORKER, n=1, handlers=["**"], slots=1, prefetch=0, versions=["2.0"], next={broker: 1}
    )


@asynccontextmanager
async def engine_in(directory: Path) -> AsyncIterator[Engine]:
    engine = Engine(
        Settings(
            database=DatabaseSettings(url=f"sqlite:///{directory / 'stepwire.db'}"),
            bus=BusSettings(steps="inproc://steps", results="inproc://results"),
        )
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def test_an_attached_worker_has_its_immediate_answers_when_all_is_handled_and_never_during_its_own_call(
    tmp_path: Path,
) -> None:
    async def tried() -> None:
        async with engine_in(tmp_path) as engine:
            delivered: list[wire.BrokerMessage] = []
            detach = engine.attach(WORKER, POLL, lambda _, body: delivered.append(codec.decode_broker(body)))
            engine.hear(topics.RESULTS, codec.encode(hello_to(engine.broker_id)))
            assert delivered == []
            await engine.handled()
            (welcome,) = delivered
            assert isinstance(welcome, wire.Welcome)
            assert [each.broker for each in welcome.brokers] == [engine.broker_id]
            (worker,) = engine.workers()
            assert (worker.worker, worker.executor, worker.level) == (WORKER, POLL, 1)
            detach()
            assert engine.workers() == []

    asyncio.run(tried())


def test_a_command_of_a_task_that_was_created_before_is_with_the_core_when_all_is_handled(tmp_path: Path) -> None:
    async def tried() -> None:
        async with engine_in(tmp_path) as engine:
            asked = asyncio.ensure_future(engine.ask(lambda request: AwaitTask(request, 77)))
            assert not engine.state.waiters
            await engine.handled()
            assert set(engine.state.waiters) == {77}
            asked.cancel()
            await engine.handled()
            assert not engine.state.waiters  # a request that is cancelled is forgotten

    asyncio.run(tried())


@pytest.mark.parametrize(
    ("remove", "reason"),
    [
        (lambda directory: shutil.rmtree(directory), "the state directory {directory} was removed or moved"),
        (lambda directory: (directory / "stepwire.db").unlink(), "{directory}/stepwire.db was removed or moved"),
        (lambda directory: replace(directory / "stepwire.db"), "{directory}/stepwire.db is no longer the file"),
    ],
    ids=["the directory", "the file", "another file"],
)
def test_an_idle_engine_whose_database_is_removed_fails_within_a_second(
    tmp_path: Path, remove: Callable[[Path], object], reason: str
) -> None:
    directory = tmp_path / "state"
    directory.mkdir()

    async def tried() -> None:
        async with engine_in(directory) as engine:
            remove(directory)
            await asyncio.wait([engine.failed], timeout=1.0)
            assert engine.failed.done()
            assert reason.format(directory=directory) in str(engine.failed.exception())

    asyncio.run(tried())


def replace(database: Path) -> None:
    copy = database.with_suffix(".copy")
    shutil.copy(database, copy)
    copy.rename(database)


def test_an_engine_that_was_stopped_refuses_commands_and_is_not_ready(tmp_path: Path) -> None:
    async def tried() -> None:
        async with engine_in(tmp_path) as engine:
            assert engine.readiness() == []
        assert engine.readiness() == ["not running"]
        answer = await engine.ask(lambda request: AwaitTask(request, 77))
        assert isinstance(answer, CommandRefused)
        assert answer.code == "starting"

    asyncio.run(tried())
