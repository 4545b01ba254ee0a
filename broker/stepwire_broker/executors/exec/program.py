"""One run of a program, from its start behind a gate to the certain end of all that it started.

The gate is a shell that waits for one line of its input and then becomes the program. The line is only written when the
run is on record: if this process dies before that, the shell reads the end of its input instead, and the program never
begins. After the line comes the request.

The run is over when the program has ended, whatever it leaves behind: what is still in its group is killed then. Its
standard output may be finished by others (`> >(jq .)` of a shell); they get a moment for that. The number of its
process stays the program's until all signals are sent, because nobody waits for it before.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from stepwire_broker.errors import BrokerError
from stepwire_broker.exec_runs.process_groups import NotOurs, members, tell
from stepwire_broker.exec_runs.records import Record

SHELL: Final = "/bin/sh"
GATE: Final = 'read -r _ && exec "$@"'
OPEN: Final = b"\n"

STDERR_BYTES_MAX: Final = 8 * 1024  # the last that it says; the rest is read and forgotten
KEPT_BYTES_MAX: Final = 1024  # of an output that is larger than it may be
READ_BYTES: Final = 64 * 1024
READS_AT_END_MAX: Final = 32
FINISH_S: Final = 1.0  # after the program's end, for whoever finishes its output
GRACE_S: Final = 2.0  # between being told to end and being killed
LOOK_AGAIN_S: Final = 0.005
LOOK_AGAIN_MAX_S: Final = 0.1
COMPLAIN_AFTER_S: Final = 10.0

log = structlog.get_logger("stepwire.exec")


class NotStarted(BrokerError):
    """A program could not be started, and no part of it has run."""


class ProgramStart(Struct, frozen=True, kw_only=True):
    """What to run, and on what."""

    argv: tuple[str, ...]
    cwd: str | None
    environ: dict[str, str]
    request: bytes
    stdout_bytes_max: int


class ProgramEnded(Struct, frozen=True, kw_only=True):
    """How a program ended, and what it said."""

    exit_code: int | None = None  # None: it has none, for `killed_by` or because it is not known
    killed_by: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""  # the end of it
    stderr_cut: bool = False
    too_much: bool = False  # it was killed because its output was larger than it may be
    told_to_end: str | None = None  # the reason, if it was


class Program:
    def __init__(self, order: ProgramStart, register: Callable[[int], tuple[Record, Path]]) -> None:
        """`register` puts the process of this pid on record; it may raise OSError."""
        self._order = order
        self._register = register
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._finished: asyncio.Future[None] = self._loop.create_future()  # its standard output
        self._open: set[int] = set()  # descriptors
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._stderr_cut = False
        self._too_much = False
        self._told: str | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._kill_at_s = 0.0
        self._left = memoryview(OPEN + order.request)

    async def run(self) -> ProgramEnded:
        """Raises NotStarted. A cancellation tells it to end, and is raised again when it has."""
        try:
            process, path = self._start()
        except BaseException:
            self._close_all()
            raise
        living = self._loop.create_task(self._live(process, path))
        cancelled: asyncio.CancelledError | None = None
        while not living.done():
            try:
                await asyncio.shield(living)
            except asyncio.CancelledError as error:
                cancelled = error
                self.end("cancelled")
        if cancelled is not None:
            raise cancelled
        return living.result()

    def end(self, reason: str) -> None:
        """Tell it and all that it started to end; after a grace they are killed. What has ended by itself has ended."""
        if self._told is not None or self._exited.done() or _has_exited(self._group.pid):
            return
        self._told = reason
        self._signal(signal.SIGTERM)
        self._kill_at_s = self._loop.time() + GRACE_S
        self._killer = self._loop.call_at(self._kill_at_s, self._signal, signal.SIGKILL)

    # -- its beginning ------------------------------------------------------------------------------------------------

    def _start(self) -> "tuple[subprocess.Popen[bytes], Path]":
        try:
            stdin, self._in = os.pipe()
            self._open |= {stdin, self._in}
            self._out, stdout = os.pipe()
            self._open |= {self._out, stdout}
            self._err, stderr = os.pipe()
            self._open |= {self._err, stderr}
            process = subprocess.Popen(
                [SHELL, "-c", GATE, SHELL, *self._order.argv],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self._order.cwd,
                env=self._order.environ,
                start_new_session=True,
            )
        except OSError as error:
            raise NotStarted(f"{self._order.argv[0]} cannot be started: {error.strerror or error}") from None
        for theirs in (stdin, stdout, stderr):
            self._close(theirs)
        for ours in (self._in, self._out, self._err):
            os.set_blocking(ours, False)
        try:
            self._pidfd = os.pidfd_open(process.pid)
            self._open.add(self._pidfd)
            record, path = self._register(process.pid)
        except OSError as error:
            # Its input ends before the line: the gate stays shut.
            process.kill()
            process.wait()
            raise NotStarted(f"its run cannot be put on record: {error.strerror or error}") from None
        self._group = record.group
        return process, path

    def _write_stdin(self) -> None:
        """As much as there is room for. A program need not read what it is given."""
        try:
            while self._left:
                self._left = self._left[os.write(self._in, self._left) :]
        except BlockingIOError:
            self._loop.add_writer(self._in, self._write_stdin)
            return
        except OSError:
            self._left = self._left[:0]  # it has closed its input, or ended
        self._close(self._in)

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _live(self, process: "subprocess.Popen[bytes]", path: Path) -> ProgramEnded:
        try:
            self._loop.add_reader(self._pidfd, self._on_exit)
            self._loop.add_reader(self._out, self._read_stdout)
            self._loop.add_reader(self._err, self._read_stderr)
            self._write_stdin()
            await self._exited
            if self._too_much:
                pass
            elif self._told is None:
                await asyncio.wait((self._finished,), timeout=FINISH_S)
            else:
                await self._grace()
            exit_code, killed_by = await self._bury(process)
        except BaseException:
            if process.returncode is None:
                self._signal(signal.SIGKILL)  # the loop goes: the record stays, for whoever comes next
            raise
        finally:
            if self._killer is not None:
                self._killer.cancel()
            self._close_all()
        return self._over(path, exit_code, killed_by)

    def _over(self, path: Path, exit_code: int | None, killed_by: int | None) -> ProgramEnded:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # it is of a process that is no more: nothing comes of it
            log.warning("run_record_stays", file=str(path), error=error.strerror)
        return ProgramEnded(
            exit_code=exit_code,
            killed_by=killed_by,
            stdout=bytes(self._stdout),
            stderr=bytes(self._stderr),
            stderr_cut=self._stderr_cut,
            too_much=self._too_much,
            told_to_end=self._told,
        )

    def _read_stdout(self) -> None:
        chunk = self._read(self._out)
        if chunk is None:
            return
        self._stdout += chunk
        if len(self._stdout) > self._order.stdout_bytes_max:
            self._too_much = True
            del self._stdout[KEPT_BYTES_MAX:]
            self._signal(signal.SIGKILL)
        if not chunk or self._too_much:
            self._finish_stdout()

    def _finish_stdout(self) -> None:
        self._close(self._out)
        if not self._finished.done():
            self._finished.set_result(None)

    def _read_stderr(self) -> bool:
        """Was there anything?"""
        if self._err not in self._open:
            return False
        chunk = self._read(self._err)
        if chunk:
            self._stderr += chunk
            if len(self._stderr) > STDERR_BYTES_MAX:
                self._stderr_cut = True
                del self._stderr[:-STDERR_BYTES_MAX]
        elif chunk is not None:
            self._close(self._err)
        return bool(chunk)

    def _read(self, fd: int) -> bytes | None:
        """b"" at its end, None when there is nothing to read now."""
        try:
            return os.read(fd, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    def _signal(self, number: signal.Signals) -> None:
        """To its group at once, then to those of its session that are in other groups (as those of `timeout` are)."""
        try:
            os.killpg(self._group.pid, number)
        except OSError:
            pass
        for member in members([self._group]):
            try:
                if os.getpgid(member.pid) != self._group.pid:
                    tell(member, number)
            except (OSError, NotOurs):
                pass

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _grace(self) -> None:
        """It has ended when it was told to; what it started may still be about to."""
        pause_s = LOOK_AGAIN_S
        while self._loop.time() < self._kill_at_s and members([self._group]):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_AGAIN_MAX_S)

    async def _bury(self, process: "subprocess.Popen[bytes]") -> tuple[int | None, int | None]:
        """Exit code and signal, once nothing of it is left."""
        if self._killer is not None:
            self._killer.cancel()
        self._finish_stdout()
        found = self._reap(process)
        if _tell_group(process.pid, 0):
            await self._until_gone(is_kept=found is not None)
        for _ in range(READS_AT_END_MAX):
            if not self._read_stderr():
                break
        if found is None:
            return None, None
        is_exit = found.si_code == os.CLD_EXITED
        return (found.si_status, None) if is_exit else (None, found.si_status)

    def _reap(self, process: "subprocess.Popen[bytes]") -> "os.waitid_result | None":
        """Kill what it leaves behind, then let go of it. None: somebody else in this process has waited for it before,
        and knows how it ended."""
        process.returncode = 0  # what it says of itself is not asked
        try:
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if self._told is not None or self._too_much:
            self._signal(signal.SIGKILL)
        else:
            _tell_group(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        return found

    async def _until_gone(self, is_kept: bool) -> None:
        """They were killed. Until they are gone the run is not over, however long that takes."""
        pause_s, waited_s = LOOK_AGAIN_S, 0.0
        while left := members([self._group], is_kept=is_kept):
            for member in left:
                try:
                    tell(member, signal.SIGKILL)
                except NotOurs:
                    pass
            if waited_s < COMPLAIN_AFTER_S <= waited_s + pause_s:
                log.error("run_does_not_end", pid=left[0].pid, program=self._order.argv[0])
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 2, LOOK_AGAIN_MAX_S)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            os.close(fd)

    def _close_all(self) -> None:
        for fd in tuple(self._open):
            self._close(fd)


def _has_exited(pid: int) -> bool:
    """Also before the loop has heard of it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _tell_group(group: int, number: int) -> bool:
    """Is there anybody in it? With the signal 0, nothing but the question."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
