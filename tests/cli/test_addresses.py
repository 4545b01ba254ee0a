"""A command finds the broker of its directory, and its errors name the address and the token that it used."""

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from stepwire.client import Client

from .a_place import STEPWIRE, Place, place

DENIED, UNREACHABLE = 6, 5


@pytest.fixture
def anywhere(tmp_path: Path) -> Place:
    """A place whose commands have no address from the environment."""
    here = place(tmp_path)
    tmp_path.chmod(0o700)
    environ = {name: value for name, value in here.environ.items() if not name.startswith("STEPWIRE_HTTP")}
    return Place(tmp_path, environ)


def test_a_command_finds_the_broker_that_was_started_in_its_directory_with_another_address(anywhere: Place) -> None:
    broker = anywhere.serve("--listen", "127.0.0.1:0")
    url = (anywhere.directory / ".stepwire/url").read_text().strip()
    assert url == "unix:.stepwire/http.sock"
    assert anywhere.stepwire("task", "list").code == 0
    assert f"{url} accepts work" in anywhere.stepwire("doctor").out
    elsewhere = anywhere.stepwire("task", "list", STEPWIRE_HTTP__LISTEN="127.0.0.1:9")
    assert elsewhere.code == UNREACHABLE
    assert "no answer from http://127.0.0.1:9" in elsewhere.err
    assert broker.end(signal.SIGTERM).code == 0
    # a command during a restart goes to the same address
    stopped = anywhere.stepwire("task", "list")
    assert stopped.code == UNREACHABLE
    assert f"no answer from {url}: no such file or directory (the address in .stepwire/url)\n" in stopped.err
    again = anywhere.serve("--listen", "127.0.0.1:0")
    assert anywhere.stepwire("task", "list").code == 0
    assert again.end(signal.SIGTERM).code == 0


def test_the_python_client_finds_the_broker_of_its_directory(anywhere: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = anywhere.serve("--listen", "127.0.0.1:0")
    monkeypatch.chdir(anywhere.directory)
    for name in ("STEPWIRE_URL", "STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with Client() as client:
        assert client.tasks()["tasks"] == []
    broker.end(signal.SIGTERM)


def test_a_refused_token_is_named_with_its_file_and_the_address(anywhere: Place, tmp_path: Path) -> None:
    broker = anywhere.serve("-o", "json", "--listen", "127.0.0.1:0")
    url = json.loads(broker.ready)["http"]
    other = tmp_path / "other"
    (other / ".stepwire").mkdir(parents=True, mode=0o700)
    stranger = Place(other, anywhere.environ)
    try:
        done = stranger.stepwire("task", "list", "--url", url)
        text = f"stepwire: the broker at {url} needs a token, and {other}/.stepwire/token does not exist\n"
        assert (done.code, done.err.startswith(text)) == (DENIED, True), done.err
        token = other / ".stepwire/token"
        token.write_text("x" * 43)
        token.chmod(0o600)
        done = stranger.stepwire("task", "list", "--url", url)
        assert done.err.startswith(
            f"stepwire: the token in {token} is not one of the broker's at {url}, or has expired\n"
        )
        done = stranger.stepwire("task", "list", "--url", url, STEPWIRE_TOKEN="y" * 43)
        assert done.err.startswith(
            f"stepwire: the token in STEPWIRE_TOKEN is not one of the broker's at {url}, or has expired\n"
        )
    finally:
        broker.end(signal.SIGTERM)


def test_a_start_that_fails_leaves_no_token(anywhere: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = anywhere.stepwire("serve", "--listen", f"127.0.0.1:{listener.getsockname()[1]}")
    assert "is another broker running there?" in done.err
    assert not (anywhere.directory / ".stepwire/token").exists()
    (anywhere.directory / "blocked").write_text("a file where the socket's directory would be")
    done = anywhere.stepwire("serve", "--listen", "127.0.0.1:0", "--set", "bus.steps=ipc://blocked/steps.sock")
    assert done.code != 0
    assert "the broker cannot start" in done.err
    assert not (anywhere.directory / ".stepwire/token").exists()


def test_many_tasks_of_many_steps_are_submitted_in_requests_that_the_broker_accepts(anywhere: Place) -> None:
    steps = "".join(f"  - {{name: s{n}, handler_class: h}}\n" for n in range(5))
    (anywhere.directory / "w.yaml").write_text(f"name: w\nsteps:\n{steps}")
    broker = anywhere.serve("--listen", "127.0.0.1:0", "--set", "limits.steps_per_batch=20")
    try:
        assert anywhere.stepwire("workflow", "apply", "w.yaml").code == 0
        done = anywhere.stepwire("task", "submit", "w", "-n", "11", "-q")
        assert done.code == 0, done
        assert len(set(done.out.split())) == 11
        assert len(anywhere.stepwire("task", "list", "-o", "jsonl").out.splitlines()) == 11
    finally:
        assert broker.end(signal.SIGTERM).code == 0


def test_a_workflow_that_is_applied_while_the_broker_starts_is_applied_when_it_has_started(anywhere: Place) -> None:
    (anywhere.directory / "w.yaml").write_text("name: w\nsteps:\n  - {name: s, handler_class: h}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [*STEPWIRE, "--url", f"http://{address}", "workflow", "apply", "w.yaml"]
    applying = subprocess.Popen(
        command, cwd=anywhere.directory, env=anywhere.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert applying.stderr is not None
    assert "trying again for up to 30 s" in applying.stderr.readline()
    broker = anywhere.serve("--listen", address)
    try:
        out, _ = applying.communicate(timeout=40)
        assert (applying.returncode, out) == (0, "default::w 1 applied\n")
    finally:
        assert broker.end(signal.SIGTERM).code == 0
