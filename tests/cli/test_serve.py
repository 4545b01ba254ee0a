"""`stepwire serve`: what it prints, what it creates, and how it ends."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stepwire import Context, Worker

from .a_place import STEPWIRE, Place, Serving, stop

OK, FAILURE, USAGE = range(3)
WORKFLOW = "name: w\nsteps:\n  - {name: s, handler_class: slow}\n"


@contextmanager
def serving(place: Place, *words: str) -> Iterator[Serving]:
    """Run a broker on a free port; commands in this place reach it."""
    broker = place.serve("-o", "json", *words)
    place.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
    try:
        yield broker
    finally:
        stop(broker.process)


def submit(place: Place) -> str:
    (place.directory / "w.yaml").write_text(WORKFLOW)
    assert place.stepwire("workflow", "apply", "w.yaml").code == OK
    return str(place.stepwire("task", "submit", "w", "--json").json["task_id"])


def test_the_ready_line_names_all_addresses_and_files(empty: Place) -> None:
    broker = empty.serve()
    stop(broker.process)
    assert broker.ready.startswith("stepwire b1 is ready: http://127.0.0.1:")
    for word in (
        "steps.sock",
        "results.sock",
        "sqlite:///.stepwire/state.db",
        ".stepwire/token",
        "stepwire task submit",
    ):
        assert word in broker.ready
    with serving(empty) as broker:
        facts = json.loads(broker.ready)
    assert (facts["broker"], facts["token_file"], facts["config"]) == ("b1", ".stepwire/token", None)


def test_a_password_is_not_printed(empty: Place) -> None:
    done = empty.stepwire("serve", "--database", "postgresql://u:secret@127.0.0.1:1/s")
    assert done.code == FAILURE
    assert "secret" not in done.out + done.err


def test_the_state_directory_is_created_with_private_files(empty: Place) -> None:
    with serving(empty):
        state = empty.directory / ".stepwire"
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        for made in state.iterdir():
            assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0, made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_stops_the_broker(empty: Place, number: signal.Signals) -> None:
    with serving(empty) as broker:
        ended = broker.end(number)
    assert (ended.code, ended.out) == (OK, "")
    events = [json.loads(line)["event"] for line in ended.err.splitlines()]
    assert events[-1] == "broker_drained"
    with serving(empty) as again:  # the next broker starts
        assert again.end(number).code == OK


def test_a_second_interrupt_stops_the_broker_at_once(empty: Place) -> None:
    started, finish = threading.Event(), threading.Event()
    with serving(empty) as broker:
        facts = json.loads(broker.ready)
        worker = Worker(steps=facts["steps"], results=facts["results"])

        @worker.handler("slow")
        def slow(context: Context) -> None:
            started.set()
            finish.wait(60)

        worker.start()
        try:
            submit(empty)
            assert started.wait(20)
            broker.process.send_signal(signal.SIGINT)
            wait_until_it_drains(empty)
            ended = broker.end(signal.SIGINT)
        finally:
            finish.set()
            worker.stop(0)
    assert ended.code == FAILURE
    assert "Traceback" not in ended.err


def wait_until_it_drains(place: Place) -> None:
    """A draining broker still answers, and refuses new tasks."""
    for _ in range(200):
        if "stopping" in place.stepwire("--outage", "0s", "task", "submit", "w").err:
            return
    raise AssertionError("the broker never drained")


def test_state_survives_a_kill(empty: Place) -> None:
    with serving(empty) as broker:
        number = submit(empty)
        broker.end(signal.SIGKILL)
    with serving(empty):
        assert empty.stepwire("task", "show", number, "--json").json["state"] == "running"


def test_a_broker_stops_when_another_takes_its_database(empty: Place) -> None:
    with serving(empty) as broker:
        submit(empty)
        other = sqlite3.connect(empty.directory / ".stepwire/state.db", isolation_level=None)
        other.execute("UPDATE lanes SET epoch = epoch + 1")
        other.close()
        assert empty.stepwire("--outage", "0s", "task", "submit", "w").code != OK
        ended = broker.end()
    assert ended.code == FAILURE
    assert "the broker had to stop: another broker has taken over" in ended.err


def test_a_second_broker_on_the_same_state_is_refused(empty: Place) -> None:
    with serving(empty) as broker:
        done = empty.stepwire("serve")
        assert done.code == FAILURE
        assert "another broker" in done.err
        assert "Traceback" not in done.err
        assert broker.process.poll() is None


def test_a_taken_port_is_refused(empty: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = empty.stepwire("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == USAGE
    assert "Address already in use" in done.err
    assert "http.listen" in done.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--listen", "nonsense"], "it needs a form like 127.0.0.1:7410"),
        (["--listen", "0.0.0.0:0"], "http.allow_insecure: true"),
        (["--set", "bus.lese=5s"], "did you mean bus.lease?"),
        (["--set", "nonsense"], "use a form like bus.lease=5s"),
        (["--set", "http.tokens_file=nowhere"], "nowhere cannot be read"),
        (["-c", "nowhere.yaml"], "--config names nowhere.yaml"),
    ],
)
def test_a_wrong_configuration_is_refused_with_one_sentence(empty: Place, words: list[str], expected: str) -> None:
    done = empty.stepwire("serve", *words)
    assert (done.code, done.out) == (USAGE, "")
    assert expected in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "url", ["nonsense", "postgresql://h/", "mysql://h/db", "sqlite://:memory:", "sqlite:///state.db?x=1"]
)
def test_a_database_that_no_broker_can_use_is_a_wrong_configuration(empty: Place, url: str) -> None:
    done = empty.stepwire("serve", "--database", url)
    assert done.code == USAGE  # systemd does not restart it
    assert done.err.startswith("stepwire: database.url ")
    assert "Traceback" not in done.err


def test_a_database_that_cannot_be_opened_is_refused_with_one_sentence(empty: Place) -> None:
    done = empty.stepwire("serve", "--database", "sqlite:////proc/x/state.db")
    assert done.code == FAILURE
    assert done.err.startswith("stepwire: the broker cannot start: ")
    assert "Traceback" not in done.err


def test_an_unusable_bus_endpoint_is_refused_with_one_sentence(empty: Place) -> None:
    done = empty.stepwire("serve", "--set", "bus.steps=tcp//:1")
    assert done.code == FAILURE
    assert "tcp//:1" in done.err
    assert "Traceback" not in done.err


def test_ids_continue_after_a_planned_stop_and_are_skipped_after_a_kill(empty: Place) -> None:
    with serving(empty) as broker:
        first = int(submit(empty))
        broker.end(signal.SIGTERM)
    with serving(empty) as broker:
        second = int(submit(empty))
        broker.end(signal.SIGKILL)
    with serving(empty) as broker:
        third = int(submit(empty))
        broker.end(signal.SIGTERM)
    assert second == first + 2  # a task and its step
    assert 1_000 < third - second < 40_000


def test_the_token_is_never_logged(empty: Place) -> None:
    with serving(empty, "--set", "log_level=debug", "-v") as broker:
        submit(empty)
        token = (empty.directory / ".stepwire/token").read_text().strip()
        ended = broker.end(signal.SIGTERM)
    assert token not in broker.ready + ended.out + ended.err


def test_hup_reloads_the_log_level_and_logs_what_needs_a_restart(empty: Place) -> None:
    file = empty.directory / "stepwire.yaml"
    file.write_text("log_level: error\n")
    with serving(empty) as broker:
        assert broker.process.stderr is not None
        for text, expected in [
            ("log_level: warning\nbus: {lease: 20s}\n", ("reloaded", "warning", ["bus.lease_ms"])),
            ("log_level: loud\n", ("reload_refused", None, None)),
            ("log_level: info\n", ("reloaded", "info", [])),
            ("log_level: info\nlimits: {namespaces: {a: {}}}\n", ("reload_refused", None, None)),
            ("log_level: info\nlimits: {namespaces: {a: {steps_per_s: 9}}}\n", ("reloaded", "info", [])),
        ]:
            file.write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            line = json.loads(broker.process.stderr.readline())
            assert (line["event"], line.get("log_level"), line.get("needs_restart")) == expected
        ended = broker.end(signal.SIGTERM)
    assert ended.code == OK
    assert [json.loads(line)["event"] for line in ended.err.splitlines()] == ["broker_drained"]


# Root without its capabilities is an ordinary user, who owns many files.
WITHOUT_PRIVILEGES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_program_of_the_same_user_reads_the_memory_or_the_environment_of_a_broker(empty: Place) -> None:
    if WITHOUT_PRIVILEGES and shutil.which(WITHOUT_PRIVILEGES[0]) is None:
        pytest.skip("setpriv is not installed")
    broker = subprocess.Popen(
        [*WITHOUT_PRIVILEGES, *STEPWIRE, "serve"],
        cwd=empty.directory,
        env={**empty.environ, "STEPWIRE_BUS__ADVERTISE": "secret.example"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        if not broker.stdout.readline():
            pytest.fail(broker.communicate(timeout=20)[1])
        for name in ("environ", "maps"):
            command = [*WITHOUT_PRIVILEGES, "cat", f"/proc/{broker.pid}/{name}"]
            read = subprocess.run(command, capture_output=True, text=True, timeout=20)
            assert (read.returncode, read.stdout, "Permission denied" in read.stderr) == (1, "", True), name
        limits = Path(f"/proc/{broker.pid}/limits").read_text()
        assert re.search(r"^Max core file size +0 ", limits, re.MULTILINE), limits
    finally:
        stop(broker)
