"""The Unix socket of a broker: for programs of its own user, without a token."""

import http.client
import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepwire.client import Client, ClientError

from .a_place import Place, Serving, place

OK, USAGE, UNREACHABLE, DENIED = 0, 2, 5, 6
OTHER_UID = 65_534


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A place whose commands have no address and no token from the environment."""
    tmp_path.chmod(0o700)
    environ = {name: value for name, value in place(tmp_path).environ.items() if not name.startswith("STEPWIRE_")}
    return Place(tmp_path, environ)


@pytest.fixture
def broker(here: Place) -> Iterator[Serving]:
    serving = here.serve("-o", "json", "--listen", "127.0.0.1:0")
    yield serving
    if serving.process.poll() is None:
        serving.end(signal.SIGTERM)


def socket_file(here: Place) -> Path:
    return here.directory / ".stepwire/http.sock"


def get(path: Path, token: str | None = None) -> int:
    """The status of a request over the Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        connection.sendall(f"GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status


def test_commands_and_clients_of_the_brokers_user_need_no_token(
    here: Place, broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here.directory / ".stepwire/token").unlink()
    assert here.stepwire("task", "list").code == OK
    assert here.stepwire("token", "new", "ci").code == OK
    assert here.stepwire("workflow", "list").code == OK
    monkeypatch.chdir(here.directory)
    for name in ("STEPWIRE_URL", "STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with Client() as client:
        assert client.tasks()["tasks"] == []
    with Client(json.loads(broker.ready)["http_socket"]) as client:
        assert client.tasks()["tasks"] == []
    with Client(json.loads(broker.ready)["http"]) as client, pytest.raises(ClientError, match="no token"):
        client.tasks()


def test_only_the_owner_may_open_the_socket_and_it_ends_with_the_broker(here: Place, broker: Serving) -> None:
    assert stat.S_IMODE(socket_file(here).stat().st_mode) == 0o600
    broker.end(signal.SIGTERM)
    assert not socket_file(here).exists()


def test_a_token_that_is_presented_on_the_socket_decides(here: Place, broker: Serving) -> None:
    assert get(socket_file(here)) == 200
    assert get(socket_file(here), "x" * 43) == 401
    submit = here.stepwire("token", "new", "shop", "--scope", "submit").out.strip()
    assert get(socket_file(here), submit) == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_needs_a_token_even_if_the_file_lets_it_in(here: Place) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "http.sock"
        broker = here.serve("--listen", "127.0.0.1:0", "--set", f"http.socket={path}")
        assert _as_nobody(path) == "PermissionError"
        path.chmod(0o666)
        assert get(path) == 200
        assert _as_nobody(path) == "401"
        broker.end(signal.SIGTERM)


def _as_nobody(path: Path) -> str:
    """The outcome of a request of another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(OTHER_UID)
            outcome = str(get(path))
        except BaseException as error:
            outcome = type(error).__name__
        os.write(writing, outcome.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as pipe:
        return pipe.read()


def test_the_socket_of_a_killed_broker_is_replaced(here: Place, broker: Serving) -> None:
    broker.end(signal.SIGKILL)
    assert socket_file(here).exists()
    again = here.serve("--listen", "127.0.0.1:0")
    assert here.stepwire("task", "list").code == OK
    again.end(signal.SIGTERM)


def test_a_second_broker_in_the_directory_leaves_the_socket_to_the_first(here: Place, broker: Serving) -> None:
    other = [
        "--database=sqlite:///other.db",
        "--set=bus.steps=ipc://other-steps",
        "--set=bus.results=ipc://other-results",
    ]
    second = here.serve("-o", "json", "--listen", "127.0.0.1:0", *other)
    ready = json.loads(second.ready)
    assert ready["http_socket"] is None
    assert here.stepwire("task", "list", "--url", ready["http"]).code == OK
    assert "http_socket_unavailable" in second.end(signal.SIGTERM).err
    assert get(socket_file(here)) == 200


def test_a_broker_without_an_address_serves_only_its_socket(here: Place) -> None:
    (here.directory / "stepwire.yaml").write_text("http: {listen: null}\n")
    broker = here.serve("-o", "json")
    try:
        ready = json.loads(broker.ready)
        assert ready["http"] == ready["http_socket"] == f"unix:{socket_file(here)}"
        assert here.stepwire("task", "list").code == OK
        assert here.stepwire("task", "list", "--config", "stepwire.yaml").code == OK
        assert "only .stepwire/http.sock is served" in here.stepwire("doctor").out
        listening = Path(f"/proc/{broker.process.pid}/net/tcp").read_text()
        sockets = {os.readlink(each) for each in Path(f"/proc/{broker.process.pid}/fd").iterdir() if each.is_symlink()}
        inodes = {line.split()[9] for line in listening.splitlines()[1:] if line.split()[3] == "0A"}
        assert not any(f"socket:[{inode}]" in sockets for inode in inodes)
    finally:
        broker.end(signal.SIGTERM)


def test_a_broker_that_can_serve_nothing_does_not_start(here: Place) -> None:
    (here.directory / "stepwire.yaml").write_text("http: {listen: null, socket: nowhere/http.sock}\n")
    done = here.stepwire("serve")
    assert (done.code, "http.socket is 'nowhere/http.sock'" in done.err) == (USAGE, True), done.err


def test_a_program_that_has_taken_the_port_of_a_stopped_broker_gets_no_token(here: Place, broker: Serving) -> None:
    port = int(json.loads(broker.ready)["http"].rpartition(":")[2])
    broker.end(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", port)) as stranger:
        stranger.settimeout(0)
        assert here.stepwire("task", "list").code == UNREACHABLE
        with pytest.raises(BlockingIOError):
            stranger.accept()
