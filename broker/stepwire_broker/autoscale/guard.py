"""The guard: a small process that ends all copies when the autoscaler is gone, however it ended.

The autoscaler holds the other end of the guard's standard input. A line `+pid started` names the first process of a
copy, which leads a session of its own, and `-pid` means that nothing of that session is left. At the end of the input
the guard ends every process of these sessions, and every process with the autoscaler's mark in its environment: such
processes have left their session, or were started a moment before the autoscaler was killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from stepwire_protocol import host

from stepwire_broker.process_state import is_alive

MARK: Final = "STEPWIRE_AUTOSCALE"  # in the environment of the copies and of the processes that they start
GRACE_S: Final = 1.0  # between TERM and KILL
CHECK_EVERY_S: Final = 0.02
PATIENCE_S: Final = 30.0
_VARIABLE: Final = f"{MARK}=".encode()


# -- in the autoscaler ------------------------------------------------------------------------------------------------


class OrphanGuard:
    """The autoscaler's side. A guard that has ended is replaced when it is next used."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._sessions: dict[int, int] = {}  # the start time of each first process, by pid
        self._process = self._start()

    def add(self, pid: int) -> None:
        self._sessions[pid] = host.started(pid)
        self._tell(f"+{pid} {self._sessions[pid]}\n")

    def remove(self, pid: int) -> None:
        if self._sessions.pop(pid, None) is not None:
            self._tell(f"-{pid}\n")

    def keep(self) -> None:
        """Start another guard if this one was killed."""
        if self._process.poll() is not None:
            self._process = self._start()
            for pid, started in self._sessions.items():
                self._tell(f"+{pid} {started}\n")

    def close(self) -> None:
        """End the guard, and with it whatever is left of the copies."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            pass  # `keep` replaces it

    def _start(self) -> "subprocess.Popen[bytes]":
        environ = {name: value for name, value in os.environ.items() if name not in (MARK, "STEPWIRE_TOKEN")}
        return subprocess.Popen(
            [sys.executable, "-m", "stepwire_broker.autoscale.guard", self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # a signal to the autoscaler's group does not reach it
        )


def processes_of(mark: str, sessions: Mapping[int, int]) -> list[int]:
    """Return the live processes of these sessions, and those with this mark in their environment."""
    own, alive = os.getpid(), []
    is_certain: dict[int, bool] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        pid = int(name)
        process = host.process(pid)
        if process is None or not is_alive(pid, process):
            continue
        leader = process.session
        if leader in sessions and leader not in is_certain:
            first = host.process(leader)
            # Without its first process, the number belongs to the session as long as another process is in it.
            is_certain[leader] = first is None or first.started == sessions[leader]
        if is_certain.get(leader, False) or f"{mark_of(pid)}.".startswith(f"{mark}."):
            alive.append(pid)
    return alive


def mark_of(pid: int) -> str:
    """The mark in the environment of a process; empty if it has none, or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    return next((each[len(_VARIABLE) :].decode() for each in variables if each.startswith(_VARIABLE)), "")


# -- in the guard -----------------------------------------------------------------------------------------------------


def run(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the autoscaler decides when the copies end
    sessions: dict[int, int] = {}
    for line in sys.stdin:
        pid, _, started = line[1:].strip().partition(" ")
        if line.startswith("+"):
            sessions[int(pid)] = int(started)
        else:
            sessions.pop(int(pid), None)
    end_all(mark, sessions)


def end_all(mark: str, sessions: Mapping[int, int]) -> None:
    """Send TERM to all processes, and KILL to those that are left after a second."""
    begun_s = time.monotonic()
    signalled: set[int] = set()
    while (alive := processes_of(mark, sessions)) and time.monotonic() - begun_s < PATIENCE_S:
        is_over = time.monotonic() - begun_s >= GRACE_S
        for pid in alive:
            if is_over or pid not in signalled:
                _send(pid, signal.SIGKILL if is_over else signal.SIGTERM)
                signalled.add(pid)
        time.sleep(CHECK_EVERY_S)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


if __name__ == "__main__":
    run(sys.argv[1])
