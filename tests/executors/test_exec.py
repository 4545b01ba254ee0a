"""Steps run by programs, in a real broker."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.core.definitions.settings import ExecSettings, Settings
from stepwire_broker.embedded import Broker, TaskView
from stepwire_broker.engine import CannotStart
from stepwire_broker.executors.exec import BadCommand, Commands
from stepwire_broker.executors.exec import program as program_module

from .programs import each_dead, pids, written
from .running import core_of, eventually, states, submit


@asynccontextmanager
async def running(directory: Path, *scripts: str, slots: int = 4, **more: Any) -> AsyncIterator[Broker]:
    """The handler_class H runs the first script, I the next. `more`: members of the command, or other settings."""
    command = {key: more.pop(key) for key in ("cwd", "env") if key in more}
    commands = {name: {"argv": ["/bin/sh", "-c", s], **command} for name, s in zip("HI", scripts, strict=False)}
    settings = {
        "execution": {"default_execution_mode": "distributed", "default_executor": "exec"},
        "executors": {"exec": {"commands": commands, "slots": slots}},
        **more,
    }
    async with Broker.open(directory / "state.db", settings=settings) as broker:
        yield broker


async def done(broker: Broker, **step: Any) -> TaskView:
    (task,) = await submit(broker, **step)
    return await task.wait(20)


def ran(directory: Path, script: str, **step: Any) -> TaskView:
    async def it() -> TaskView:
        async with running(directory, script) as broker:
            return await done(broker, **step)

    return asyncio.run(it())


def test_a_program_gets_the_request_on_stdin_and_returns_the_output_on_stdout(tmp_path: Path) -> None:
    view = ran(tmp_path, "cat", context={"total": 12.5, "name": "Zoë"}, handler_config={"currency": "EUR"})
    request = view.result["s"]
    assert request["task_context"] == {"total": 12.5, "name": "Zoë"}
    assert (request["handler_config"], request["handler_class"]) == ({"currency": "EUR"}, "H")
    assert (request["delivery"], request["delivery_mode"]) == (1, "at_least_once")
    assert request["metadata"]["attempt"] == 0


LEDGER = "echo $STEPWIRE_ATTEMPT >> {ledger}; "


@pytest.mark.parametrize(
    ("script", "at_least_once", "at_most_once"),
    [
        ("echo 1", ("completed", None, 1), ("completed", None, 1)),
        (":", ("completed", None, 1), ("completed", None, 1)),
        ("exit 75", ("failed", "exit_75", 3), ("failed", "exit_75", 1)),
        ("exit 65", ("failed", "exit_65", 1), ("failed", "exit_65", 1)),
        ("exit 81", ("failed", "outcome_unknown", 3), ("held", "outcome_unknown", 1)),
        ("exit 4", ("failed", "exit_4", 3), ("failed", "exit_4", 1)),
        ("kill -9 $$", ("failed", "SIGKILL", 3), ("held", "outcome_unknown", 1)),
        ("echo oops", ("failed", "bad_output", 1), ("held", "outcome_unknown", 1)),
        ("yes", ("failed", "bad_output", 1), ("held", "outcome_unknown", 1)),
        ("[ $STEPWIRE_ATTEMPT = 2 ] || exit 3", ("completed", None, 3), ("failed", "exit_3", 1)),
        (
            """echo '{"message": "m", "code": "declined", "retryable": false}'; exit 1""",
            ("failed", "declined", 1),
            ("failed", "declined", 1),
        ),
    ],
)
def test_the_end_of_a_program_decides_the_outcome_of_its_step(
    tmp_path: Path, script: str, at_least_once: tuple[str, str, int], at_most_once: tuple[str, str, int]
) -> None:
    async def both() -> None:
        ledger = tmp_path / "ledger"
        async with running(tmp_path, LEDGER.format(ledger=ledger) + script, limits={"payload_bytes": 50_000}) as broker:
            for mode, (state, code, runs) in (("at_least_once", at_least_once), ("at_most_once", at_most_once)):
                retries = {"retry_limit": 2} if mode == "at_least_once" else {}
                view = await done(broker, workflow=mode, delivery_mode=mode, **retries)
                (step,) = view.steps
                assert (step.state, step.reason if state == "held" else (step.error or {}).get("code")) == (state, code)
                assert ledger.read_text().splitlines() == [str(attempt) for attempt in range(runs)]
                ledger.unlink()

    asyncio.run(both())


def test_a_step_is_retried_no_earlier_than_its_program_asks(tmp_path: Path) -> None:
    script = (
        """[ $STEPWIRE_ATTEMPT = 1 ] || { echo '{"message": "busy", "retry_after_ms": 300}'; exit 75; }; date +%s%3N"""
    )
    view = ran(tmp_path, script)
    assert view.result["s"] - view.created_ms >= 300


def test_the_programs_environment_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "STEPWIRE_HTTP__TOKENS_FILE", "STEPWIRE_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TZ", "Europe/Athens")

    async def it() -> TaskView:
        script = """env | awk -F= '{ printf "%s\\"%s\\": \\"%s\\"", NR == 1 ? "{" : ",", $1, $2 } END { print "}" }'"""
        async with running(tmp_path, script, env={"GREETING": "hi", "LANG": "C"}) as broker:
            return await done(broker, timeout_ms=5_000, retry_limit=7)

    view = asyncio.run(it())
    environ = view.result["s"]
    step = view.steps[0]
    for name in ("PWD", "SHLVL", "_", "OLDPWD"):  # set by the shell that runs the script
        environ.pop(name, None)
    assert environ.pop("PATH") == os.environ["PATH"]
    assert environ.pop("HOME") == os.environ["HOME"]
    assert len(environ.pop("STEPWIRE_RUN")) == 16
    assert 0 < int(environ.pop("STEPWIRE_TIMEOUT_MS")) <= 5_000
    assert int(environ.pop("STEPWIRE_DEADLINE_MS")) >= view.created_ms
    assert environ.pop("STEPWIRE_IDEMPOTENCY_KEY")
    assert environ.pop("TRACEPARENT").startswith("00-")
    assert environ == {
        "TZ": "Europe/Athens",
        "LANG": "C",
        "GREETING": "hi",
        "STEPWIRE_TASK_ID": str(view.task_id),
        "STEPWIRE_STEP_ID": str(step.step_id),
        "STEPWIRE_STEP_NAME": "s",
        "STEPWIRE_HANDLER_CLASS": "H",
        "STEPWIRE_DELIVERY": "1",
        "STEPWIRE_ATTEMPT": "0",
        "STEPWIRE_RETRY_LIMIT": "7",
    }


def test_the_exact_name_of_a_command_wins_over_a_pattern() -> None:
    commands = {"shop::*": ("true",), "shop::quote": ("false",), "**": ("cat",)}
    configured = Commands(ExecSettings(commands=commands), os.environ)
    chosen = [configured.find(name) for name in ("shop::quote", "shop::other", "shop::a::b")]
    assert [command and command.argv for command in chosen] == [("false",), ("true",), ("cat",)]


# -- limits -----------------------------------------------------------------------------------------------------------


def test_at_most_slots_programs_run_at_a_time(tmp_path: Path) -> None:
    """Each program makes a directory, and counts the directories."""
    script = f"mkdir {tmp_path}/at/$$; ls {tmp_path}/at | wc -l; sleep 0.02; rmdir {tmp_path}/at/$$"
    (tmp_path / "at").mkdir()

    async def it() -> list[int]:
        async with running(tmp_path, script, slots=2) as broker:
            tasks = await submit(broker, 20)
            await eventually(lambda: len(list((tmp_path / "at").iterdir())) == 2, "two at a time")
            counts = states(broker)
            assert counts.count("dispatched") <= 2
            assert "ready" in counts
            return [(await task.result(20))["s"] for task in tasks]

    counts = asyncio.run(it())
    assert len(counts) == 20
    assert max(counts) == 2


# -- ending -----------------------------------------------------------------------------------------------------------

FOREVER = "sleep 1000 & echo $$ $! >> {file}; wait"


@pytest.mark.parametrize(
    ("mode", "ends"), [("at_least_once", ("failed", "timeout")), ("at_most_once", ("held", "outcome_unknown"))]
)
def test_a_run_past_its_timeout_is_killed_with_all_it_started(tmp_path: Path, mode: str, ends: tuple[str, str]) -> None:
    async def it() -> TaskView:
        async with running(tmp_path, FOREVER.format(file=tmp_path / "pids")) as broker:
            return await done(
                broker, timeout_ms=400, delivery_mode=mode, **({"retry_limit": 1} if mode == "at_least_once" else {})
            )

    (step,) = asyncio.run(it()).steps
    assert (step.state, step.reason if step.state == "held" else step.error["code"]) == ends
    begun = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert begun
    assert each_dead(begun)


@pytest.mark.parametrize(("mode", "state"), [("at_least_once", "cancelled"), ("at_most_once", "held")])
def test_a_cancelled_task_ends_its_program(tmp_path: Path, mode: str, state: str) -> None:
    async def it() -> tuple[str, list[int]]:
        async with running(tmp_path, FOREVER.format(file=tmp_path / "pids")) as broker:
            (task,) = await submit(broker, delivery_mode=mode)
            found = await eventually(pids(tmp_path / "pids", 2), "the program")
            await task.cancel()
            view = await task.wait(20)
            return view.steps[0].state, found

    found_state, found = asyncio.run(it())
    assert found_state == state
    assert each_dead(found)


@pytest.mark.parametrize(("mode", "state"), [("at_least_once", "failed"), ("at_most_once", "held")])
def test_a_program_killed_from_outside_is_retried_or_held(tmp_path: Path, mode: str, state: str) -> None:
    async def it() -> tuple[TaskView, int]:
        async with running(tmp_path, f"echo $$ >> {tmp_path}/pids; exec sleep 1000") as broker:
            (task,) = await submit(
                broker, delivery_mode=mode, **({"retry_limit": 1} if mode == "at_least_once" else {})
            )
            for runs in range(1, 3 if mode == "at_least_once" else 2):
                found = await eventually(pids(tmp_path / "pids", runs), "the program")
                os.kill(found[-1], signal.SIGKILL)
            return await task.wait(20), len(found)

    view, _ = asyncio.run(it())
    assert view.steps[0].state == state


def test_a_stop_lets_programs_finish_within_the_drain_timeout(tmp_path: Path) -> None:
    async def it() -> None:
        async with running(tmp_path, f"echo > {tmp_path}/begun; sleep 0.3; echo 1") as broker:
            (task,) = await submit(broker)
            await eventually(written(tmp_path / "begun"), "its begin")
            number = task.id
        async with running(tmp_path, "exit 1") as again:
            assert (await again.task(number).result(20)) == {"s": 1}

    asyncio.run(it())


@pytest.mark.parametrize(("mode", "then"), [("at_least_once", "completed"), ("at_most_once", "held")])
def test_programs_past_the_drain_timeout_are_killed_and_their_steps_run_again_or_are_held(
    tmp_path: Path, mode: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "GRACE_S", 0.1)
    stubborn = f"trap '' TERM; sleep 1000 & echo $$ $! > {tmp_path}/pids; wait; wait; sleep 1000"

    async def it() -> tuple[list[int], TaskView]:
        async with running(tmp_path, stubborn, broker={"drain_timeout_ms": 50}) as broker:
            (task,) = await submit(broker, delivery_mode=mode)
            found = await eventually(pids(tmp_path / "pids", 2), "the program")
        assert each_dead(found)
        async with running(tmp_path, "echo $STEPWIRE_ATTEMPT") as again:
            return found, await again.task(task.id).wait(20)

    _, view = asyncio.run(it())
    assert view.steps[0].state == then
    assert view.result == ({"s": 0} if then == "completed" else None)  # no attempt was spent


def test_no_record_stays_after_a_run(tmp_path: Path) -> None:
    assert ran(tmp_path, "echo 1").result == {"s": 1}
    assert [path.name for path in (tmp_path / "state.db.runs").iterdir()] == ["lock"]


# -- the settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "text"),
    [
        ({"H": []}, "executors.exec.commands.H: no program is named"),
        ({"H": {"argv": [""]}}, "no program is named"),
        ({"H": ["no-such-program"]}, "there is no program no-such-program in its PATH"),
        ({"H": ["/no/such/program"]}, "there is no program /no/such/program"),
        ({"H": ["./here"]}, "is not an executable file; chmod +x it"),
        ({"H": ["/etc"]}, "is not an executable file"),
        ({"H": {"argv": ["true"], "cwd": "/no/such"}}, "cwd /no/such is not a directory"),
        ({"H": {"argv": ["true"], "env": {"A-B": "1"}}}, "env.A-B is not a variable name"),
        ({"H": {"argv": ["true"], "env": {"PATH": "/nowhere"}}}, "there is no program true in its PATH (/nowhere)"),
        ({"H": ["true", "a\0b"]}, "a NUL character cannot be passed"),
        ({"a b": ["true"]}, "the key must be a handler_class"),
        ({"": ["true"]}, "the key must be a handler_class"),
        ({"shop::": ["true"]}, "or a pattern of them, as in shop::* or shop::**"),
    ],
)
def test_a_command_that_cannot_be_run_stops_the_start_with_its_reason(
    tmp_path: Path, commands: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("#!/bin/sh\n")
    settings = {"executors": {"exec": {"commands": commands}}}

    async def start() -> None:
        async with Broker.open(tmp_path / "state.db", settings=settings):
            pytest.fail("it started")

    with pytest.raises(CannotStart) as refused:
        asyncio.run(start())
    assert text in str(refused.value)


def test_a_second_broker_with_the_same_records_is_refused(tmp_path: Path) -> None:
    settings = {"executors": {"exec": {"commands": {"H": ["true"]}, "runs_dir": str(tmp_path / "runs")}}}

    async def both() -> None:
        async with Broker.open(tmp_path / "a.db", settings=settings):
            await Broker.open(tmp_path / "b.db", settings=settings).start()

    with pytest.raises(CannotStart, match="give each broker its own"):
        asyncio.run(both())


def test_a_command_is_a_list_of_arguments_or_a_mapping() -> None:
    read = ExecSettings(commands={"H": ("true", "a")})
    assert Commands(read, {}).find("H") is not None
    with pytest.raises(BadCommand):
        Commands(ExecSettings(commands={"H": ()}), {})
    assert Settings().executors.exec.commands == {}


# -- standard error ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "state", "more"),
    [
        ("echo loading >&2; echo 7", "completed", {}),
        ("echo loading >&2; exit 65", "failed", {}),
        ("echo loading >&2; exit 81", "held", {"delivery_mode": "at_most_once"}),
        ("echo loading >&2; echo not json", "failed", {}),
        ("echo loading >&2; sleep 1000", "failed", {"timeout_ms": 300, "retry_limit": 0}),
    ],
    ids=["completed", "failed", "held", "bad output", "timeout"],
)
def test_the_standard_error_of_a_step_is_kept_whatever_its_outcome(
    tmp_path: Path, script: str, state: str, more: dict[str, Any]
) -> None:
    async def it() -> None:
        async with running(tmp_path, script) as broker:
            view = await done(broker, **more)
            assert view.steps[0].state == state
            assert await stderr_of(broker, view) == (1, "loading\n")
        async with running(tmp_path, script) as broker:
            assert await stderr_of(broker, view) == (1, "loading\n")  # also after a restart

    asyncio.run(it())


def test_the_standard_error_is_that_of_the_last_run(tmp_path: Path) -> None:
    script = "if [ $STEPWIRE_ATTEMPT = 0 ]; then echo first >&2; exit 75; fi; echo 7"

    async def it() -> None:
        async with running(tmp_path, script) as broker:
            assert await stderr_of(broker, await done(broker)) == (2, "")

    asyncio.run(it())


def test_a_program_that_writes_nothing_to_standard_error_stores_no_row(tmp_path: Path) -> None:
    async def it() -> None:
        async with running(tmp_path, "echo 7") as broker:
            assert await stderr_of(broker, await done(broker)) is None

    asyncio.run(it())


def test_only_the_last_16_kilobytes_of_standard_error_are_kept(tmp_path: Path) -> None:
    async def it() -> None:
        async with running(tmp_path, "seq 100000 >&2; echo 7") as broker:
            kept = await stderr_of(broker, await done(broker))
            assert kept is not None
            lines = kept[1].split("\n")
            assert lines == [*(str(100_001 - n) for n in range(len(lines) - 1, 0, -1)), ""]  # only whole lines
            assert 16_000 < len(kept[1].encode()) <= 16_384

    asyncio.run(it())


async def stderr_of(broker: Broker, view: TaskView) -> tuple[int, str] | None:
    row = await core_of(broker).read(lambda queries: queries.step_stderr(view.steps[0].step_id))
    return None if row is None else (row.delivery, row.text)
