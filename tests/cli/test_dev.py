"""`stepwire new` and `stepwire dev`: from an empty directory to a completed task, and a clean stop."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from stepwire_broker.cli import dev
from stepwire_broker.cli.failure import Failure

from tests.system.harness import eventually

from .a_place import STEPWIRE, Place, place

OK, FAILURE, USAGE = range(3)


class Dev:
    """A running `stepwire dev` whose output is read line by line."""

    def __init__(self, here: Place, *words: str) -> None:
        self.process = subprocess.Popen(
            [*STEPWIRE, "dev", *words],
            cwd=here.directory,
            env=here.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, *parts: str) -> str:
        """The first line, printed before or from now on, that holds all of these."""
        for line in self.lines:
            if all(part in line for part in parts):
                return line
        until_s = time.monotonic() + 40
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until_s - time.monotonic()))
            except Empty:
                line = None
            assert line is not None, f"never printed {parts}:\n{''.join(self.lines)}"
            self.lines.append(line)
            if all(part in line for part in parts):
                return line

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(40)


@pytest.fixture
def running(empty: Place) -> Iterator[list[Dev]]:
    made: list[Dev] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(20)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_new_project_passes_its_test_and_runs(empty: Place, running: list[Dev]) -> None:
    done = empty.stepwire("new", "my-shop", "--lang", "python")
    assert (done.code, done.err) == (OK, "next: cd my-shop && stepwire dev\n")
    here = place(empty.directory / "my-shop")
    assert {path.name for path in here.directory.iterdir()} >= {"worker.py", "test_worker.py", "README.md", "Procfile"}
    assert here.stepwire("config", "validate").out == "valid (stepwire.yaml)\n"
    for file in here.directory.iterdir():
        assert "$" not in file.read_text()
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=here.directory,
        env=here.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert tests.returncode == OK, tests.stdout
    assert "2 passed" in tests.stdout
    assert here.stepwire("workflow", "validate", "workflow.yaml").code == OK

    running.append(Dev(here))
    ready = running[0].until("broker | ready: ")
    here.environ["STEPWIRE_URL"] = ready.split()[3].rstrip(",")
    assert here.stepwire("workflow", "apply", "workflow.yaml").code == OK
    task = here.stepwire("task", "submit", "my_shop", "--context", '{"name": "Ada"}', "--wait", "--json")
    assert (task.code, task.json["result"]) == (OK, {"greet": {"greeting": "Hello, Ada!"}})
    (worker,) = here.stepwire("worker", "list", "--json").json
    assert running[0].until("worker | started, process ").endswith(f" {worker['pid']}\n")
    assert running[0].end(signal.SIGINT) == OK
    running[0].until("worker | ", "started as worker, process", "offers my_shop.greet")
    running[0].until("worker | ", "connected to broker b1")
    running[0].until("worker | ended with exit code 0")
    running[0].until("dev    | all processes have ended")
    assert "\x1b[" not in "".join(running[0].lines)


def test_new_does_not_overwrite_files_without_yes(empty: Place) -> None:
    (empty.directory / "shop").mkdir()
    (empty.directory / "shop/worker.py").write_text("mine")
    done = empty.stepwire("new", "shop")
    assert (done.code, (empty.directory / "shop/worker.py").read_text()) == (USAGE, "mine")
    assert "add --yes" in done.err
    assert empty.stepwire("new", "shop", "--yes").code == OK
    for name in ("Shop", "1shop", "sh op"):
        assert empty.stepwire("new", name).code == USAGE
    assert empty.stepwire("new", "shop2", "--lang", "cobol").code == USAGE


def test_new_writes_into_the_current_directory_under_its_name(empty: Place) -> None:
    (empty.directory / "my-shop").mkdir()
    done = Place(empty.directory / "my-shop", empty.environ).stepwire("new", ".")
    assert (done.code, done.err) == (OK, "next: stepwire dev\n")
    assert "name: my_shop\n" in (empty.directory / "my-shop/workflow.yaml").read_text()


def test_a_crashing_process_is_restarted_with_growing_waits(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "Procs").write_text(
        "# two\nsick: echo here I am; exit 3\n\n"
        "well: sh -c 'echo $$ at $STEPWIRE_STEPS named $STEPWIRE_NAME; exec sleep 600'\n"
    )
    running.append(Dev(empty, "--procfile", "Procs"))
    pid = int(running[0].until("well   | ", "steps.sock named well").split()[2])
    for wait in ("0.5", "1", "2"):
        running[0].until("sick   | ended with exit code 3; restarting in ", f" {wait} s")
        assert any("here I am" in line for line in running[0].lines)
    assert not has_ended(pid)
    assert running[0].end(signal.SIGTERM) == OK
    assert has_ended(pid)


def test_processes_of_dev_get_no_variable_that_is_not_meant_for_them(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "stepwire.yaml").write_text("handlers: {pass_env: [SHOP_*]}\n")
    (empty.directory / "Procfile").write_text("well: sh -c 'env | sort; exec sleep 600'\n")
    empty.environ.update({"AWS_SECRET_ACCESS_KEY": "secret", "STEPWIRE_TOKEN": "t" * 43, "SHOP_COLOUR": "red"})
    running.append(Dev(empty))
    running[0].until("well   | STEPWIRE_URL=")
    names = {line.split()[2].partition("=")[0] for line in running[0].lines if "well   | " in line and "=" in line}
    assert {"SHOP_COLOUR", "STEPWIRE_STEPS", "STEPWIRE_NAME", "HOME", "PATH"} <= names
    assert {"AWS_SECRET_ACCESS_KEY", "STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"} & names == set()


def test_text_of_a_stranger_forges_no_line_and_does_not_control_the_terminal() -> None:
    batch_id = "x\n12:00 worker | all is well\x1b]0;title\x07" + "y" * 500
    line = json.dumps({"event": "level0_answer_refused", "level": "warning", "code": "unknown_batch", "text": batch_id})
    shown = dev._readable(line)
    assert shown is not None
    assert "\n" not in shown
    assert shown.isprintable()
    assert "level0 answer refused code=unknown_batch text=x 12:00 worker | all is well" in shown
    assert len(shown) < 300
    failed = json.dumps({"event": "request_failed", "exception": "Traceback:\nbroker | forged"})
    assert dev._readable(failed) == "request failed exception=\n    Traceback:\n    broker | forged"


def test_a_process_can_colour_its_lines_and_do_nothing_else_to_the_terminal() -> None:
    assert dev._harmless("a\tb \x1b[31mred\x1b[0m é") == "a\tb \x1b[31mred\x1b[0m é\x1b[0m"
    assert dev._harmless("\x1b]0;title\x07\x1b[2J\r\x9b1mx") == "\ufffd]0;title\ufffd\ufffd[2J\ufffd\ufffd1mx"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel signals the children of a dead process")
def test_a_killed_dev_takes_its_processes_with_it(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "Procfile").write_text("well: sh -c 'echo $$ runs; exec sleep 600'\n")
    running.append(Dev(empty))
    pid = int(running[0].until("well   | ", "runs").split()[2])
    broker = pid_of_broker(empty)
    running[0].process.kill()
    running[0].process.wait(20)
    eventually(lambda: has_ended(pid) and has_ended(broker), "the processes of `stepwire dev` to end with it", 40)


def pid_of_broker(here: Place) -> int:
    lock = here.directory / ".stepwire/state.db.lock"
    return int(eventually(lambda: lock.exists() and lock.read_text(), "a broker to hold its lock", 40))


def test_a_killed_broker_is_restarted_at_the_same_address_and_its_worker_runs_steps_again(
    empty: Place, running: list[Dev]
) -> None:
    assert empty.stepwire("new", "shop").code == OK
    here = place(empty.directory / "shop")
    running.append(Dev(here))
    dev = running[0]
    here.environ["STEPWIRE_URL"] = url = dev.until("broker | ready: ").split()[3].rstrip(",")
    dev.until("worker | ", "connected to broker b1")
    os.kill(pid_of_broker(here), signal.SIGKILL)
    dev.until("broker | ended by SIGKILL; restarting in 0.5 s")
    dev.until("worker | ", "connected to broker b1", "again, after its restart")
    assert [line.split()[3].rstrip(",") for line in dev.lines if "broker | ready: " in line] == [url, url]
    assert here.stepwire("workflow", "apply", "workflow.yaml").code == OK
    assert here.stepwire("task", "submit", "shop", "--context", '{"name": "Ada"}', "--wait").code == OK
    assert dev.end(signal.SIGINT) == OK
    assert not any("| killed" in line for line in dev.lines)


def test_handlers_of_a_broker_that_is_gone_are_not_waited_for(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "Procfile").write_text(
        "deaf: python -c \"import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('no'));"
        " print('runs', flush=True); [time.sleep(1) for _ in iter(int, 1)]\"\n"
    )
    running.append(Dev(empty))
    dev = running[0]
    dev.until("deaf   | runs")
    (empty.directory / "stepwire.yaml").write_text("bus: {lese: 5s}\n")  # no restart can succeed
    os.kill(pid_of_broker(empty), signal.SIGKILL)
    dev.until("broker | ended with exit code 2; restarting in 1 s")
    assert dev.end(signal.SIGTERM) == OK
    dev.until("deaf   | killed: it did not end within 3 s")
    dev.until("dev    | all processes have ended")


def test_a_broker_that_cannot_start_prints_the_reason(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "stepwire.yaml").write_text("bus: {lese: 5s}\n")
    running.append(Dev(empty))
    line = running[0].until("broker | ", "did you mean bus.lease?")
    assert "{" not in line
    assert running[0].process.wait(40) == USAGE


def test_a_directory_that_cannot_be_written_is_named_in_a_sentence(empty: Place, running: list[Dev]) -> None:
    (empty.directory / ".stepwire").touch()
    running.append(Dev(empty))
    running[0].until("broker | .stepwire is a file: it must be a directory for the broker's state")
    assert running[0].process.wait(40) == USAGE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_no_message_of_the_event_loop(empty: Place, running: list[Dev], number: int) -> None:
    """A process whose pipes are still open when the loop closes makes Python print an ignored exception."""
    (empty.directory / "Procfile").write_text("well: sh -c 'echo runs; exec sleep 600'\nsick: exit 3\n")
    running.append(Dev(empty))
    running[0].until("well   | ", "runs")
    running[0].until("sick   | ended")
    assert running[0].end(number) == OK
    running[0].until("dev    | all processes have ended")
    assert not any("xception" in line or "Event loop" in line for line in running[0].lines)


def test_names_have_colours_on_a_terminal(empty: Place) -> None:
    (empty.directory / "Procfile").write_text("killer: kill -TERM $(ps -o ppid= -p $$)\n")
    seen = empty.on_terminal("dev")
    assert seen.code == OK, seen
    assert "\x1b[3" in seen.out
    assert "\x1b[3" not in empty.on_terminal("dev", NO_COLOR="1").out


@pytest.mark.parametrize(
    "text", ["worker python worker.py", "worker:", ": python", "a b: c", "a: b\na: c", "broker: x", "dev: x"]
)
def test_a_malformed_procfile_is_refused(text: str) -> None:
    with pytest.raises(Failure) as refused:
        dev.read_procfile(text, "Procfile")
    assert "Procfile, line " in refused.value.message
    assert refused.value.exit_code == USAGE


def test_a_missing_procfile_is_refused(empty: Place) -> None:
    done = empty.stepwire("dev", "--procfile", "nowhere")
    assert done.code == USAGE
    assert done.err == "stepwire: nowhere cannot be read: No such file or directory\n"
    (empty.directory / "latin1").write_bytes(b"a: echo \xe9\n")
    assert empty.stepwire("dev", "--procfile", "latin1").err == "stepwire: latin1 is not UTF-8 text\n"


def test_a_name_of_a_process_of_stepwire_is_reserved() -> None:
    with pytest.raises(Failure, match="the name broker is reserved"):
        dev.read_procfile("broker: x", "Procfile")


def test_an_empty_procfile_is_not_called_missing(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "Procfile").write_text("# nothing yet\n")
    running.append(Dev(empty))
    running[0].until("dev    | only the broker runs: Procfile names no process; add a line like")
    assert running[0].end(signal.SIGTERM) == OK


def test_a_process_that_ends_soon_without_an_error_gets_a_question(empty: Place, running: list[Dev]) -> None:
    (empty.directory / "Procfile").write_text("idle: true\n")
    running.append(Dev(empty))
    running[0].until("idle   | ", "did its program call worker.run()?")
    running[0].until("idle   | ended with exit code 0; restarting in 0.5 s")
    assert running[0].end(signal.SIGTERM) == OK


@pytest.mark.parametrize(
    ("command", "replaces_the_shell"),
    [
        ("python worker.py", True),
        ("sh -c 'a; b'", True),
        ('sh -c "a && \\"b\\""', True),
        ("cd x && python worker.py", False),
        ("A=1 python worker.py", False),
        ("if true; then sleep 1; fi", False),
        ("exit 3", False),
        ("a | b", False),
        ("sh -c 'a'; b", False),
    ],
)
def test_a_single_command_replaces_the_shell(command: str, replaces_the_shell: bool) -> None:
    assert dev._for_shell(command) == ("exec " if replaces_the_shell else "") + command
