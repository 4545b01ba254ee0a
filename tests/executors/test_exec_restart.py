"""A broker is killed while its programs run, and another one starts. The programs record their runs, so that two runs
of a step at a time would be detected."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from stepwire.client import Client
from stepwire_broker.embedded import Broker

from tests.cli.a_place import Place, Serving, place, stop

from .programs import each_dead, elsewhere, lives, pids, wait_for
from .running import submit

MODES = {"again": "at_least_once", "once": "at_most_once"}

# A run records its begin, stays, and excludes any other: `mkdir` succeeds for one at a time.
PROGRAM = """#!/bin/sh
mkdir "$1.lock" || {{ echo overlap >> "$1"; exit 65; }}
trap 'rmdir "$1.lock"; exit 143' TERM
echo $$ >> "$1"
echo begun >> "$1.begun"
{stay}
rmdir "$1.lock"
echo "{{\\"delivery\\": $STEPWIRE_DELIVERY}}"
"""


@pytest.fixture
def here(tmp_path: Path) -> Place:
    tmp_path.chmod(0o700)
    here = place(tmp_path)
    configure(here, "sleep 1000 & wait")
    return here


def configure(here: Place, stay: str) -> None:
    program = here.directory / "program"
    program.write_text(PROGRAM.format(stay=stay))
    program.chmod(0o700)
    argv = {name: ["./program", name] for name in MODES}
    settings = {
        "execution": {"default_executor": "exec"},
        "executors": {"exec": {"commands": argv}},
    }
    (here.directory / "stepwire.yaml").write_text(json.dumps(settings))
    (here.directory / "stepwire.yaml").chmod(0o600)


def begin(here: Place) -> tuple[Serving, Client]:
    broker = here.serve("-o", "json")
    facts = json.loads(broker.ready)
    return broker, Client(facts["http"], token_file=here.directory / facts["token_file"])


def submitted(client: Client, *names: str) -> list[int]:
    for name, mode in MODES.items():
        step = {"name": "s", "handler_class": name, "delivery_mode": mode}
        client.apply_workflow({"name": name, "steps": [step]})
    return client.submit_many([{"workflow": name} for name in names])


def running(here: Place, name: str, many: int = 1) -> list[int]:
    return wait_for(pids(here.directory / name, many), f"the program of {name}")


def attention(client: Client, number: int) -> bool:
    return client.task(number)["attention"] == "held"


def test_a_killed_brokers_programs_are_dead_before_their_steps_run_again_or_are_held(here: Place) -> None:
    broker, client = begin(here)
    try:
        again, once = submitted(client, "again", "once")
        left = [*running(here, "again"), *running(here, "once")]
        broker.end(signal.SIGKILL)
        assert all(map(lives, left))
        configure(here, ":")
        broker, client = begin(here)
        assert each_dead(left)
        assert client.wait(again, 20)["result"] == {"s": {"delivery": 2}}
        wait_for(lambda: attention(client, once), "the hold")
        log = broker.end(signal.SIGTERM).err
    finally:
        stop(broker.process)
    assert "overlap" not in (here.directory / "again").read_text()
    assert len(running(here, "again", 2)) == 2
    assert len(running(here, "once", 1)) == 1
    ended = {line["pid"] for line in map(json.loads, log.splitlines()) if line["event"] == "earlier_run_ended"}
    assert set(left) <= ended


def test_earlier_programs_are_ended_also_when_no_command_is_configured(tmp_path: Path) -> None:
    """The broker is inside an application, which is killed as a whole."""
    execution = {"default_execution_mode": "distributed", "default_executor": "exec"}
    command = ["sh", "-c", f"sleep 1000 & echo $$ $! > {tmp_path}/pids; wait"]

    async def application() -> None:
        settings = {"execution": execution, "executors": {"exec": {"commands": {"H": command}}}}
        async with Broker.open(tmp_path / "state.db", settings=settings) as broker:
            await submit(broker)
            await asyncio.sleep(1000)

    async def another() -> None:
        async with Broker.open(tmp_path / "state.db"):
            assert each_dead(left)

    killed = elsewhere(lambda: asyncio.run(application()))
    left = wait_for(pids(tmp_path / "pids", 2), "the program")
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    asyncio.run(another())


def test_a_second_interrupt_kills_running_programs_and_ends_the_broker(here: Place) -> None:
    broker, client = begin(here)
    try:
        (once,) = submitted(client, "once")
        left = running(here, "once")
        broker.process.send_signal(signal.SIGINT)
        wait_for(lambda: "draining" in client.readiness()["reasons"], "the drain")
        broker.end(signal.SIGINT)
        assert each_dead(left)
        broker, client = begin(here)
        wait_for(lambda: attention(client, once), "the hold")
    finally:
        stop(broker.process)


@pytest.mark.parametrize("words", [["serve"], ["config", "validate"]])
def test_a_command_that_cannot_be_run_is_reported_before_the_broker_starts(here: Place, words: list[str]) -> None:
    (here.directory / "stepwire.yaml").write_text("executors: {exec: {commands: {again: [./nothing]}}}\n")
    done = here.stepwire(*words)
    assert (done.code, done.out) == (2, "")
    assert f"executors.exec.commands.again: there is no program {here.directory}/nothing" in done.err
    assert "Traceback" not in done.err
