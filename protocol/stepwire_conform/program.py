"""The program under test: starts it in its own session, collects its output, and ends everything that it started."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

TOKEN: Final = "STEPWIRE_CONFORM_RUN"  # marks every process of one run, also those that left their session
OUTPUT_KEPT_BYTES: Final = 8_192
FLOOD_BYTES_PER_S: Final = 4 * 1024 * 1024
LAST_WORDS_S: Final = 2.0
FLOOD_BYTES_MIN: Final = 16 * 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37


class ProgramUnavailable(Exception):
    """The operating system refused to start the command."""


class GradedProgram:
    """One process of the command. Its output is read continuously, so a full pipe never stops it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], token: str) -> None:
        self._token = token
        self._started_s = time.monotonic()
        self._head = bytearray()
        self._tail = bytearray()
        self._was_waited = False
        self.output_bytes = 0
        try:
            self._process = subprocess.Popen(
                list(command),
                env={**environ, TOKEN: token},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_PREPARE,
            )
        except OSError as error:
            raise ProgramUnavailable(f"{command[0]}: {error.strerror or error}") from None
        self.pid = self._process.pid
        self._reading = threading.Thread(target=self._read, name="conform-output", daemon=True)
        self._reading.start()

    def exit_code(self) -> int | None:
        """The exit code; None while the process runs. A negative code is the number of a signal."""
        return self._process.poll()

    def is_flooding(self) -> bool:
        """True if the process writes more output than any log explains."""
        seconds = time.monotonic() - self._started_s
        return self.output_bytes > FLOOD_BYTES_MIN and self.output_bytes > FLOOD_BYTES_PER_S * seconds

    def output(self) -> str:
        """The first and the last part of what the process wrote, with the middle left out.

        All of it, if the process has ended: its last words may still wait in the pipe.
        """
        if self._process.poll() is not None and not self._was_waited:
            self._was_waited = True  # a process that it started may keep the pipe open for longer
            self._reading.join(timeout=LAST_WORDS_S)
        left_out = self.output_bytes - len(self._head) - len(self._tail)
        gap = f"\n… {left_out} bytes left out …\n".encode() if left_out > 0 else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        """Send the signal to the first process only, as a supervisor does."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill the process and every process that it started."""
        for pid in [*descendants_of(self.pid), self.pid]:
            _kill(pid)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait()
        _end_marked(self._token)
        self._reading.join(timeout=2)
        if self._process.stdout is not None and not self._reading.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            try:
                data = os.read(stream.fileno(), 65_536)
            except (OSError, ValueError):
                return
            if not data:
                return
            self.output_bytes += len(data)
            room = OUTPUT_KEPT_BYTES - len(self._head)
            self._head += data[: max(0, room)]
            self._tail += data[max(0, room) :]
            del self._tail[:-OUTPUT_KEPT_BYTES]


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Be the parent of processes that lose theirs, so that a program that forks into the background is found.

    Afterwards they go to the system's own reaper again: this process would never remove their entries.
    """
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def end_adopted(known: frozenset[int]) -> int:
    """Kill the children of this process that are not `known`, with their descendants. Returns their number."""
    ended = 0
    for pid in [child for child in children_of(os.getpid()) if child not in known]:
        for one in [*descendants_of(pid), pid]:
            _kill(one)
            ended += 1
        _reap(pid)
    return ended


def descendants_of(pid: int) -> list[int]:
    """The processes that this process started, directly or not, as far as /proc shows them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        more = children_of(waiting.pop())
        found += more
        waiting += more
    return found


def children_of(pid: int) -> list[int]:
    children: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children += [int(word) for word in file.read().split()]
        except OSError:
            pass
    return children


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 when unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _end_marked(token: str) -> None:
    """Kill every process that carries this token in its environment: those that left their session and parent."""
    mark = f"{TOKEN}={token}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                is_marked = mark in file.read().split(b"\0")
        except OSError:
            continue
        if is_marked:
            _kill(int(name))
            _reap(int(name))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _reap(pid: int) -> None:
    """Remove the entry of a killed process, if this process has become its parent."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


def _prepare() -> Callable[[], None]:
    """A `preexec_fn`: the program ends when this process ends for any reason (on Linux), and it can be interrupted,
    also where a shell has started this process in the background, with INT ignored."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None  # loaded before the fork

    def in_child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return in_child


_PREPARE: Final = _prepare()
