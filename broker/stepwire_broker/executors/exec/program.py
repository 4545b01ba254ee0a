"""One run of a program: its start behind a gate, and the end of every process that it started.

The gate is a shell that reads one line of its input and then becomes the program. The line is written after the run is
recorded, and the request follows the line. If the broker dies before that, the shell reads the end of its input instead
of the line, and the program never begins.

The run is over when the program has ended. Processes that are still in its group are then killed. Other processes may
complete its standard output (`> >(jq .)` of a shell) and have FINISH_S for that. The process is reaped after all
signals are sent, so that no other process can have its pid before. A sweep then ends processes that left the session.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import structlog
from msgspec import Struct

from stepwire_broker.core.definitions.settings import ProgramLimits
from stepwire_broker.errors import BrokerError
from stepwire_broker.exec_runs.process_groups import NotOurs, ProcessGroup, members, send_signal
from stepwire_broker.exec_runs.records import Record

from . import starting

SHELL: Final = "/bin/sh"
GATE: Final = 'read -r _ && exec "$@"'
OPEN: Final = b"\n"

STDERR_BYTES_MAX: Final = 16 * 1024  # the end of standard error; the rest is read and discarded
KEPT_BYTES_MAX: Final = 1024  # of an output that exceeds its limit
READ_BYTES: Final = 64 * 1024
READS_AT_END_MAX: Final = 32
FINISH_S: Final = 1.0  # after the program's end, for processes that complete its output
GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL
CHECK_EVERY_S: Final = 0.005
CHECK_EVERY_MAX_S: Final = 0.1
LOG_AFTER_S: Final = 10.0

Sweep: TypeAlias = Callable[[ProcessGroup], Awaitable[None]]

log = structlog.get_logger("stepwire.exec")


class NotStarted(BrokerError):
    """The program has not begun."""


class ProgramStart(Struct, frozen=True, kw_only=True):
    """A program, its surroundings and its input."""

    argv: tuple[str, ...]
    cwd: str | None
    environ: dict[str, str]
    request: bytes
    stdout_bytes_max: int
    limits: ProgramLimits = ProgramLimits()


class ProgramEnded(Struct, frozen=True, kw_only=True):
    """The end of a program, and its output."""

    exit_code: int | None = None  # None: killed by a signal, or unknown
    killed_by: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""  # the end of standard error
    stderr_cut: bool = False
    too_much: bool = False  # killed because its output exceeded the limit
    cancelled_for: str | None = None  # the reason, if the run was cancelled


class Program:
    def __init__(self, order: ProgramStart, register: Callable[[int], tuple[Record, Path]], sweep: Sweep) -> None:
        """`register` records the process with this pid, and may raise OSError. `sweep` ends processes that have
        left the program's session."""
        self._order = order
        self._sweep = sweep
        self._register = register
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._finished: asyncio.Future[None] = self._loop.create_future()  # its standard output
        self._open: set[int] = set()  # descriptors
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._stderr_cut = False
        self._too_much = False
        self._cancelled_for: str | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._kill_at_s = 0.0
        self._left = memoryview(OPEN + order.request)

    async def run(self) -> ProgramEnded:
        """Run the program to its end. Raises NotStarted. A cancellation is raised after the program has ended."""
        try:
            process, path = self._start()
        except BaseException:
            self._close_all()
            raise
        supervising = self._loop.create_task(self._supervise(process, path))
        cancelled: asyncio.CancelledError | None = None
        while not supervising.done():
            try:
                await asyncio.shield(supervising)
            except asyncio.CancelledError as error:
                cancelled = error
                self.end("cancelled")
        if cancelled is not None:
            raise cancelled
        return supervising.result()

    def end(self, reason: str) -> None:
        """Send SIGTERM to the program and all processes that it started, and SIGKILL after GRACE_S. Does nothing if the
        program has ended."""
        if self._cancelled_for is not None or self._exited.done() or _has_exited(self._group.pid):
            return
        self._cancelled_for = reason
        self._signal(signal.SIGTERM)
        self._kill_at_s = self._loop.time() + GRACE_S
        self._killer = self._loop.call_at(self._kill_at_s, self._signal, signal.SIGKILL)

    # -- start --------------------------------------------------------------------------------------------------------

    def _start(self) -> "tuple[subprocess.Popen[bytes], Path]":
        try:
            stdin, self._in = os.pipe()
            self._open |= {stdin, self._in}
            self._out, stdout = os.pipe()
            self._open |= {self._out, stdout}
            self._err, stderr = os.pipe()
            self._open |= {self._err, stderr}
            process = starting.start(
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
            starting.limit(process.pid, self._order.limits)
            record, path = self._register(process.pid)
        except OSError as error:
            # The input ends before the line, so the gate does not start the program.
            process.kill()
            process.wait()
            raise NotStarted(f"the run cannot be recorded or limited: {error.strerror or error}") from None
        self._group = record.group
        return process, path

    def _write_stdin(self) -> None:
        """Write as much as the pipe accepts. A program need not read its input."""
        try:
            while self._left:
                self._left = self._left[os.write(self._in, self._left) :]
        except BlockingIOError:
            self._loop.add_writer(self._in, self._write_stdin)
            return
        except OSError:
            self._left = self._left[:0]  # the program has closed its input, or ended
        self._close(self._in)

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _supervise(self, process: "subprocess.Popen[bytes]", path: Path) -> ProgramEnded:
        try:
            self._loop.add_reader(self._pidfd, self._on_exit)
            self._loop.add_reader(self._out, self._read_stdout)
            self._loop.add_reader(self._err, self._read_stderr)
            self._write_stdin()
            await self._exited
            if self._too_much:
                pass
            elif self._cancelled_for is None:
                await asyncio.wait((self._finished,), timeout=FINISH_S)
            else:
                await self._grace()
            exit_code, killed_by = await self._wait_for_processes(process)
            await self._sweep(self._group)
        except BaseException:
            if process.returncode is None:
                self._signal(signal.SIGKILL)  # the loop ends; the record stays, for the next broker process
            raise
        finally:
            if self._killer is not None:
                self._killer.cancel()
            self._close_all()
        return self._ended(path, exit_code, killed_by)

    def _ended(self, path: Path, exit_code: int | None, killed_by: int | None) -> ProgramEnded:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # harmless: the recorded process is gone
            log.warning("run_record_stays", file=str(path), error=error.strerror)
        return ProgramEnded(
            exit_code=exit_code,
            killed_by=killed_by,
            stdout=bytes(self._stdout),
            stderr=bytes(self._stderr),
            stderr_cut=self._stderr_cut,
            too_much=self._too_much,
            cancelled_for=self._cancelled_for,
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
        """Read once. True if there was data."""
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
        """Returns b"" at the end of the stream, and None when there is nothing to read now."""
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
        """Signal the group at once, then members of the session in other groups, such as those of `timeout`."""
        try:
            os.killpg(self._group.pid, number)
        except OSError:
            pass
        for member in members([self._group]):
            try:
                if os.getpgid(member.pid) != self._group.pid:
                    send_signal(member, number)
            except (OSError, NotOurs):
                pass

    # -- end ----------------------------------------------------------------------------------------------------------

    async def _grace(self) -> None:
        """Wait until the processes that the program started have ended, at most for the grace period."""
        pause_s = CHECK_EVERY_S
        while self._loop.time() < self._kill_at_s and members([self._group]):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, CHECK_EVERY_MAX_S)

    async def _wait_for_processes(self, process: "subprocess.Popen[bytes]") -> tuple[int | None, int | None]:
        """Wait until no process of the run is left. Returns the exit code and the signal."""
        if self._killer is not None:
            self._killer.cancel()
        self._finish_stdout()
        end = self._reap(process)
        if _signal_group(process.pid, 0):
            await self._until_gone(is_kept=end is not None)
        for _ in range(READS_AT_END_MAX):
            if not self._read_stderr():
                break
        if end is None:
            return None, None
        is_exit = end.si_code == os.CLD_EXITED
        return (end.si_status, None) if is_exit else (None, end.si_status)

    def _reap(self, process: "subprocess.Popen[bytes]") -> "os.waitid_result | None":
        """Kill processes that the program left behind, then reap the program. None: other code in this process has
        reaped the program, so its exit code is unknown."""
        process.returncode = 0  # so that Popen does not wait for the process, too
        try:
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if self._cancelled_for is not None or self._too_much:
            self._signal(signal.SIGKILL)
        else:
            _signal_group(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        return end

    async def _until_gone(self, is_kept: bool) -> None:
        """Wait, without a limit, until the killed processes have ended. The run is over only then."""
        pause_s, waited_s = CHECK_EVERY_S, 0.0
        while alive := members([self._group], is_kept=is_kept):
            for member in alive:
                try:
                    send_signal(member, signal.SIGKILL)
                except NotOurs:
                    pass
            if waited_s < LOG_AFTER_S <= waited_s + pause_s:
                log.error("run_does_not_end", pid=alive[0].pid, program=self._order.argv[0])
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 2, CHECK_EVERY_MAX_S)

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
    """True if the process has ended, even if the loop has not been notified yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal_group(group: int, number: int) -> bool:
    """Signal a group. Returns whether the group has members; signal 0 only checks that."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
