"""`stepwire demo`, as a newcomer runs it. Its output is compared with its handlers' ledgers."""

import ast
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.cli import demo, demo_screen
from stepwire_broker.demo import sdks
from stepwire_broker.demo.books import Booking, LedgerRun
from stepwire_broker.demo.proof import Evidence, prove
from stepwire_broker.demo.shop import Shop

from tests.cli.a_place import STEPWIRE, Place, place

from .harness import REPOSITORY, eventually

ORDERS = 28
PROMISE_S = 60
NODE_MODULES = REPOSITORY / "examples" / "level0" / "node_modules"


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A newcomer's directory: empty, except for Node's binding if it is installed here."""
    with tempfile.TemporaryDirectory(prefix="sw-") as directory:
        made = place(Path(directory))
        made.environ["NODE_PATH"] = str(NODE_MODULES)
        yield made


@pytest.fixture(scope="module")
def output(here: Place) -> str:
    """The output of the first run."""
    done = here.stepwire("demo")
    assert (done.code, done.err) == (0, ""), done
    return done.out


@pytest.fixture(scope="module")
def books(here: Place, output: str) -> Path:
    return here.directory / ".stepwire-demo"


def test_every_card_was_charged_once_despite_the_kills(output: str, books: Path) -> None:
    bookings = lines_of(books / "bank.jsonl")
    charges = Counter(one["key"] for one in bookings if one["what"] == "charge")
    assert (len(charges), set(charges.values())) == (ORDERS, {1})
    assert Counter(one["what"] for one in bookings) == {"charge": ORDERS, "refund": 1}
    assert f"{ORDERS} cards, {ORDERS} charges" in output


def test_only_the_steps_of_a_killed_worker_ran_twice(output: str, books: Path) -> None:
    killed = {int(pid) for pid in re.findall(r"^\$ kill -9 (\d+)$", output, re.MULTILINE)}
    assert len(killed) == 2
    begun: dict[tuple[int, int], list[int]] = {}
    for run in sorted(runs_of(books), key=lambda run: run["at_ns"]):
        if run["event"] == "started":
            begun.setdefault((run["step_id"], run["attempt"]), []).append(run["pid"])
    twice = [pids for pids in begun.values() if len(pids) > 1]
    assert len(twice) > 5
    assert all(len(pids) == 2 and pids[0] in killed and pids[1] not in killed for pids in twice)
    (lost,) = re.findall(r"^shop-1 was running (\d+) steps", output, re.MULTILINE)
    assert len(twice) == int(lost) + 1  # and the payment that the operator let run


def test_each_part_of_the_demo_was_shown(output: str, books: Path) -> None:
    for line in (
        "stock is retry_wait (attempt 2 comes next): warehouse_busy: the warehouse does not answer",
        "ship is failed: no carrier delivers to Atlantis",
        "refund is completed",
        "24 of 24 orders are done.",
        "$ stepwire step list --state held",
    ):
        assert line in output
    held = re.findall(
        r"^\d+\t(\d+)\tcharge\tthe step was allowed to start, and its outcome is unknown", output, re.MULTILINE
    )
    assert len(held) == 2
    assert [f"{task}/charge --{how}" in output for task, how in zip(held, ("completed", "retry"), strict=True)] == [
        True
    ] * 2
    assert output.count("✓") == 4
    assert "✗" not in output


def test_every_installed_language_took_part(output: str, books: Path) -> None:
    started = {language for language in ("python", "ruby", "node") if f"{language} (" in level0_line(output)}
    assert "python" in started
    assert {run["language"] for run in runs_of(books) if run["step"] in ("price", "invoice")} == started


def test_each_sdk_that_takes_part_ran_its_step(output: str, books: Path) -> None:
    """Which SDKs are built depends on the machine, so the test compares what the demo printed with their logs."""
    listed = re.findall(r"^  (go|node|ruby|rust) +\(\d+\)$", output, re.MULTILINE)
    ran = re.findall(r"\b(\w+) by \1:[0-9a-f]{16}", output)
    assert ran == listed
    assert ("The same step in other languages" in output) == bool(listed)
    connected = [name for name in sdks.LANGUAGES if "connected to broker b1" in log_of(books, name)]
    assert listed == connected


def test_the_worker_of_an_sdk_takes_part_only_if_it_connects(tmp_path: Path) -> None:
    folder = tmp_path / "handlers_sdk"
    worker = f"exec {sys.executable} -m stepwire.conform"
    for language, text in (("go", worker), ("node", "exec /not/built"), ("rust", "exit 0")):
        program = folder / language / "bin" / "conform"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    assert sdks.programs(tmp_path) == {}
    with tempfile.TemporaryDirectory(prefix="sw-") as directory, Shop(Path(directory)) as shop:
        client = shop.open()
        shop.try_sdks(sdks.programs(folder))
        assert shop.until_sdks_are_known(client) == ["go"]
        pid = shop.pid("go")
        client.apply_workflow(sdks.workflow(["go"]))
        task = {"workflow": sdks.NAME, "namespace": "demo", "context": {"to": "all"}}
        document = client.wait(client.submit_many([task])[0], 30)
        assert [(step["name"], step["state"]) for step in document["steps"]] == [("go", "completed")]
        assert document["steps"][0]["worker"].startswith("go:")
    assert not is_running(pid)


def test_the_steps_of_the_sdks_follow_each_other_each_on_a_worker_of_its_language() -> None:
    document = sdks.workflow(["go", "ruby", "rust"])
    assert [step["name"] for step in document["steps"]] == ["go", "ruby", "rust"]
    assert [step["worker_selector"] for step in document["steps"]] == [
        {"language": "go"},
        {"language": "ruby"},
        {"language": "rust"},
    ]
    assert [step.get("depends_on") for step in document["steps"]] == [None, ["go"], ["ruby"]]


def test_no_process_of_the_demo_is_left(output: str) -> None:
    pids = [int(pid) for pid in re.findall(r"\((\d+)\)", output)]
    assert len(pids) >= 5
    assert [pid for pid in pids if is_running(pid)] == []


def test_the_state_of_the_demo_can_be_checked_and_used(here: Place, output: str, books: Path) -> None:
    checked = Place(books, here.environ).stepwire("db", "check")
    assert checked.code == 0, checked
    assert {"Procfile", "order.json", "stepwire.yaml"} <= {path.name for path in books.iterdir()}


def test_a_second_demo_on_a_terminal_continues_the_first(
    here: Place, output: str, books: Path, figure: Callable[[str], None]
) -> None:
    again = here.on_terminal("demo")
    assert again.code == 0, again.out
    assert "run 2 in .stepwire-demo/" in re.sub(r"\x1b\[[0-9;]*m", "", again.out)
    assert "↷ refund" in again.out
    took_s = int(re.findall(r"That took (\d+) s", again.out)[0])
    figure(f"the demo took {took_s} s, pauses for the reader included (promise {PROMISE_S} s)")
    charges = Counter(one["key"] for one in lines_of(books / "bank.jsonl") if one["what"] == "charge")
    assert (len(charges), set(charges.values())) == (2 * ORDERS, {1})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_all_processes_and_the_next_run_finishes(number: int, figure: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="sw-") as directory:
        here = place(Path(directory))
        process = subprocess.Popen(
            [*STEPWIRE, "demo"],
            cwd=directory,
            env={**here.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            eventually(lambda: any("kill -9" in line for line in lines), "the kill", PROMISE_S)
            process.send_signal(number)
            code = process.wait(30)
        finally:
            process.kill()
            process.wait()
        reader.join(10)
        assert process.stderr is not None
        error = process.stderr.read()
        assert (code, "the state is kept in .stepwire-demo/" in error) == (1, True), error
        pids = [int(pid) for pid in re.findall(r"\((\d+)\)", "".join(lines))]
        assert [pid for pid in pids if is_running(pid)] == []
        if number == signal.SIGTERM:
            return  # the next run is tested once, after SIGINT
        again = here.stepwire("demo", "-o", "json")
        assert (again.code, again.json["run"]) == (0, 2), again


def test_the_demo_imports_nothing_while_it_can_be_interrupted() -> None:
    """An interrupt inside of an import can make Python end by the signal instead of with the exit code."""
    script = "from stepwire_broker.cli import demo; demo.Screen(demo.Options()); demo._import_all()"
    script += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    trees = [ast.parse(inspect.getsource(module)) for module in (demo, demo_screen)]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {importlib.util.resolve_name("." * node.level + (node.module or ""), demo.__package__) for node in imports}
    assert names >= {"rich.progress", "stepwire_broker.cli.task.watch"}
    assert names - loaded <= {"stepwire_broker.demo.shop"}  # imported earlier
    command = inspect.getsource(demo.demo.callback)
    assert command.index("_import_all()") < command.index("_interruptible()")


def test_two_demos_in_one_directory_are_refused(here: Place, output: str, books: Path) -> None:
    broker = Place(books, here.environ).serve()
    try:
        second = here.stepwire("demo")
    finally:
        broker.end(signal.SIGTERM)
    assert second.code == 1
    assert "the broker did not start" in second.err
    assert "is in use by another broker" in second.err
    assert "Traceback" not in second.err


# -- the proof --------------------------------------------------------------------------------------------------------

NEEDS = {"charge": [], "ship": ["charge"], "refund": ["charge", "ship"]}
STATES = {"charge": "completed", "ship": "completed", "refund": "skipped"}


def evidence(
    *, states: dict[str, str] | None = None, charges: int = 1, ship_at: int = 30, second_pid: int | None = None
) -> Evidence:
    """One order. Process 7 was killed."""
    task = {
        "task_id": 1,
        "state": "completed",
        "steps": [{"name": name, "state": state} for name, state in {**STATES, **(states or {})}.items()],
    }
    runs = [run(10, "started", 2, "charge", 7), run(20, "finished", 2, "charge", 7)]
    runs += [run(ship_at, "started", 3, "ship", 8), run(40, "finished", 3, "ship", 8)]
    if second_pid is not None:
        runs += [run(50, "started", 3, "ship", second_pid), run(60, "finished", 3, "ship", second_pid)]
    booked = [Booking(15 + i, "charge", 1, "key", 100, f"t{i}", 7) for i in range(charges)]
    return Evidence([task], sorted(runs, key=lambda one: one.at_ns), booked, NEEDS, {7}, set())


def run(at_ns: int, event: Any, step_id: int, step: str, pid: int) -> LedgerRun:
    return LedgerRun(at_ns, event, 1, step_id, step, 0, "python", pid)


@pytest.mark.parametrize(
    ("evidence", "holds"),
    [
        (evidence(), [True, True, True, True]),
        (evidence(states={"ship": "failed"}), [False, True, True, True]),
        (evidence(charges=2), [True, False, True, True]),
        (evidence(charges=0), [True, False, True, True]),
        (evidence(states={"ship": "failed", "refund": "completed"}), [True, False, True, True]),
        (evidence(ship_at=19), [True, True, False, True]),
        (evidence(second_pid=9), [True, True, True, False]),
    ],
)
def test_the_proof_reports_no_false_claim(evidence: Evidence, holds: list[bool]) -> None:
    assert [proof.holds for proof in prove(evidence)] == holds


def level0_line(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("  level 0"))


def log_of(books: Path, name: str) -> str:
    log = books / "logs" / f"{name}.log"
    return log.read_text() if log.exists() else ""


def runs_of(books: Path) -> list[dict[str, Any]]:
    """Return the ledgers of the first run; a second run moves them aside."""
    aside = books / "ledgers-of-run-1"
    return [
        line for file in (aside if aside.exists() else books / "ledgers").glob("*.jsonl") for line in lines_of(file)
    ]


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("directory", ["file/demo", "/proc/demo"])
def test_a_directory_that_cannot_be_written_is_named_in_one_sentence(directory: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = place(tmp_path).stepwire("demo", "--directory", directory)
    assert done.code == 1
    sentence, hint = done.err.splitlines()
    assert sentence.startswith(f"stepwire: the demo cannot use {directory}: ")
    assert hint == "  choose a directory that you may write to: stepwire demo --directory DIR"
