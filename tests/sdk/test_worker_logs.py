"""The lines of a worker process on stderr, with and without a logging configuration of its program."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Raw
from stepwire_protocol.messages import StepRequest

from tests.cli import forked

from .dialogue import step
from .scripted_broker import ScriptedBroker

PROGRAM = Path(__file__).with_name("logging_worker.py")
GIVEN = Raw(b'{"text":"given"}')
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


class LoggingWorker:
    """The program, and the lines that it has written."""

    def __init__(self, broker: ScriptedBroker, configuration: str) -> None:
        self.broker = broker
        self.process = forked.start(
            [sys.executable, str(PROGRAM), configuration],
            Path.cwd(),
            os.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, *steps: StepRequest) -> list[str]:
        """Run these steps, end the process, and return its lines."""
        self.broker.until_welcomed()
        if steps:
            self.broker.run(*steps)
        for each in steps:
            self.broker.result(each.step_id)
        return self.end()

    def end(self) -> list[str]:
        self.process.send_signal(signal.SIGTERM)
        self.broker.until(lambda: self.process.poll() is not None, "the end of the worker")
        assert self.process.stderr is not None
        return self.process.stderr.read().splitlines()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LoggingWorker]]:
    monkeypatch.chdir(tmp_path)
    broker = ScriptedBroker("ipc://s", "ipc://r")
    made: list[LoggingWorker] = []

    def start(configuration: str) -> LoggingWorker:
        made.append(LoggingWorker(broker, configuration))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()
    broker.close()


Start = Callable[[str], LoggingWorker]


def without_time(lines: list[str]) -> list[str]:
    return [re.sub(f"^{TIME} ", "", line) for line in lines]


def test_a_worker_writes_its_offers_its_broker_and_its_end(started: Start) -> None:
    worker = started("nothing")
    lines = worker.run()
    assert all(re.match(f"{TIME} INFO    ", line) for line in lines)
    assert without_time(lines) == [
        f"INFO    started as logging, process {worker.process.pid}, 2 slots;"
        " offers log, log_async, log_in_child, fail, fail_in_child and 4 more",
        "INFO    connected to broker b1 at ipc://s",
        "INFO    stopping: no step is running",
        "INFO    the worker has ended",
    ]


@pytest.mark.parametrize("handler", ["log", "log_async", "log_in_child"])
def test_without_configuration_a_record_of_ctx_log_is_a_line_with_time_level_and_step(
    started: Start, handler: str
) -> None:
    lines = started("nothing").run(step(7, handler=handler, task_context=GIVEN))
    (line,) = [line for line in lines if "given" in line]
    assert re.fullmatch(f"{TIME} INFO    task 1000007 step 7 s7: info given", line)


def test_a_level_of_the_logger_alone_keeps_the_readable_lines(started: Start) -> None:
    lines = without_time(started("level").run(step(7, handler="log", task_context=GIVEN)))
    assert [line for line in lines if "given" in line] == [
        "DEBUG   task 1000007 step 7 s7: debug given",
        "INFO    task 1000007 step 7 s7: info given",
    ]


@pytest.mark.parametrize("configuration", ["basic", "later"])
@pytest.mark.parametrize("handler", ["log", "log_in_child"])
def test_a_record_is_written_once_and_in_the_programs_own_format(
    started: Start, configuration: str, handler: str
) -> None:
    lines = started(configuration).run(step(7, handler=handler, task_context=GIVEN))
    assert [line for line in lines if "given" in line] == ["INFO|stepwire.handler|1000007|info given"]
    if handler == "log_in_child":
        assert "WARNING|mine|-|from my own logger" in lines


def test_with_structlog_a_record_is_written_once(started: Start) -> None:
    lines = started("structlog").run(step(7, handler="log", task_context=GIVEN))
    assert [line for line in lines if "given" in line] == ["event='info given'"]


def test_a_null_handler_silences_the_sdk(started: Start) -> None:
    assert started("null").run(step(7, handler="log", task_context=GIVEN), step(8, handler="fail")) == []


@pytest.mark.parametrize("handler", ["fail", "fail_in_child"])
def test_a_failed_run_is_logged_once_with_its_ids_and_a_traceback_from_the_handler_on(
    started: Start, handler: str
) -> None:
    lines = started("nothing").run(step(7, handler=handler))
    (at,) = [number for number, line in enumerate(lines) if "nope" in line and "Traceback" not in line][:1]
    assert without_time(lines)[at] == "ERROR   task 1000007 step 7 s7 attempt 1 of 4 failed: KeyError: 'nope'"
    end = lines.index("KeyError: 'nope'")
    assert lines[at + 1] == "Traceback (most recent call last):"
    files = [line for line in lines[at:end] if line.startswith("  File ")]
    assert [line.rpartition(" in ")[2] for line in files] == [handler, "look_up"]
    assert sum("failed" in line for line in lines) == 1


def test_a_permanent_failure_is_a_warning_of_one_line(started: Start) -> None:
    lines = without_time(started("nothing").run(step(7, handler="decline")))
    assert lines[2] == (
        "WARNING task 1000007 step 7 s7 attempt 1 of 4 failed: Permanent: the card is declined; no retry"
    )
    assert not any(line.startswith(("Traceback", " ")) for line in lines)


BLOCKED = "has blocked the event loop for 2 s: use a plain def, or await"
OF_STEP = "WARNING task 1000007 step 7 s7 attempt 1 of 4 delays all other async steps: async handler block"


@pytest.mark.parametrize(
    ("handler", "lines"),
    [
        ("block", [f"{OF_STEP} {BLOCKED}"]),
        ("block_in_a_task", [f"WARNING a task of an async handler {BLOCKED}"]),
        ("wait", []),
    ],
)
def test_an_async_handler_that_blocks_the_event_loop_is_logged_once(
    started: Start, handler: str, lines: list[str]
) -> None:
    written = without_time(started("nothing").run(step(7, handler=handler)))
    assert [line for line in written if line.startswith("WARNING")] == lines


def test_the_loss_and_the_return_of_a_broker_are_one_line_each(started: Start) -> None:
    worker = started("nothing")
    broker = worker.broker
    broker.until_welcomed()
    broker.drop_session("unknown_session")
    broker.received.clear()
    broker.until_welcomed()
    broker.restart()
    broker.received.clear()
    broker.until_welcomed()
    assert without_time(worker.end())[1:-2] == [
        "INFO    connected to broker b1 at ipc://s",
        "WARNING broker b1 has ended the session: it no longer knows this worker",
        "INFO    connected to broker b1 at ipc://s again",
        "INFO    connected to broker b1 at ipc://s again, after its restart",
    ]
