"""The tests' own servers leave nothing behind, and lose no commit by a crash."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import server as servers
from .pooler import Pooler
from .server import MissingPostgres, PostgresServer

PATIENCE_S = 60

PROGRAM = """
import os, sys
from tests.postgres.pooler import Pooler
from tests.postgres.server import PostgresServer
server = PostgresServer()
pooler = Pooler(server)
print(server.directory, server._process.pid, pooler._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_and_its_pooler_are_ended_and_removed_when_their_tests_are_killed() -> None:
    program = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[2]
    tests = subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert tests.stdin is not None
    assert tests.stdout is not None
    directory, *pids = tests.stdout.readline().split()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    tests.send_signal(signal.SIGKILL)
    tests.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while Path(directory).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(directory).exists()
    assert not any(_is_running(pid) for pid in pids)
    tests.stdin.close()
    tests.stdout.close()


def test_a_closed_server_leaves_no_process_and_no_file() -> None:
    server = PostgresServer()
    with Pooler(server):
        pass
    assert server.sql("SELECT 1") == [(1,)]
    server.close()
    assert not server.directory.exists()
    command = f"ps -eo args | grep -c '[p]ostgres.*{server.directory.name}' || true"
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout.strip() == "0"


def test_a_server_does_not_run_as_root() -> None:
    with PostgresServer() as server:
        pid = (server.data / "postmaster.pid").read_text().split()[0]
        status = Path(f"/proc/{pid}/status").read_text()
    assert "Uid:\t0\t" not in status
    assert os.geteuid() != 0 or server.identity["user"] != 0


def test_an_immediate_stop_keeps_every_acknowledged_commit() -> None:
    with PostgresServer(on_disk=True) as server:
        assert server.sql("SHOW fsync") == [("on",)]
        server.sql("CREATE TABLE t (n int)")
        for n in range(20):
            server.sql("INSERT INTO t VALUES (%s)", n)
        server.restart("immediate")
        assert server.sql("SELECT count(*) FROM t") == [(20,)]


def test_without_the_package_the_message_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(servers, "PROGRAMS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPostgres, match="apt-get install --no-install-recommends postgresql pgbouncer"):
        PostgresServer()


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
