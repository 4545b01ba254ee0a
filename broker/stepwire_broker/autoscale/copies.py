"""One copy of the worker command: its process, its output, and its end.

A copy leads a session of its own. It has ended when its first process has ended; processes that it left behind are then
ended too, so a command must stay in the foreground.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from stepwire_protocol import host

from stepwire_broker.end_with_parent import end_with_parent
from stepwire_broker.errors import BrokerError

from .guard import MARK, mark_of, processes_of
from .output import READ_BYTES, Passing, Printed

READS_AT_ONCE: Final = 16
KILL_AFTER_S: Final = 5.0  # after TERM
CHECK_EVERY_S: Final = 0.05
WITHHELD: Final = frozenset({"STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE"})  # of the operator who runs the autoscaler


class CopyNotStarted(BrokerError):
    """The command cannot be started at all."""


class CopyState(StrEnum):
    STARTING = "starting"  # its process runs, and no worker of it has a session yet
    SERVING = "serving"
    LEAVING = "leaving"  # it was told to drain and to end


class Copy:
    def __init__(
        self, number: int, argv: Sequence[str], environ: Mapping[str, str], mark: str, passing: Passing
    ) -> None:
        """Start the command. Raises CopyNotStarted."""
        self.number = number
        self.mark = f"{mark}.{number}"
        self.state = CopyState.STARTING
        self.workers: dict[str, int] = {}  # ids and slots of its workers, as the broker last listed them
        self.holding = 0  # steps that they hold, as the broker last listed them
        self.listed_s = time.monotonic()  # when that was
        self.slots = 0  # as the broker last listed them
        self.since_s = time.monotonic()  # when it entered its state
        self.started_s = self.since_s
        self.free_since_s: float | None = None  # leaving, and without a step since this time
        self.printed = Printed()
        self.has_ended = False
        self._is_asked = False
        self._passing = passing
        self._loop = asyncio.get_running_loop()
        self._out, theirs = os.pipe()
        os.set_blocking(self._out, False)
        passed_on = {name: value for name, value in os.environ.items() if name not in WITHHELD}
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env={**passed_on, **environ, MARK: self.mark},
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
        except OSError as error:
            os.close(self._out)
            raise CopyNotStarted(f"{argv[0]} cannot be started: {error.strerror or error}") from None
        finally:
            os.close(theirs)
        self.pid = self._process.pid
        self._session = {self.pid: host.started(self.pid)}
        self._is_open = True
        self._loop.add_reader(self._out, self._read)

    def enter(self, state: CopyState) -> None:
        self.state, self.since_s = state, time.monotonic()

    @property
    def in_state_s(self) -> float:
        return time.monotonic() - self.since_s

    def owns(self, pid: int) -> bool:
        """True if this process of this host belongs to the copy."""
        process = host.process(pid)
        return process is not None and (process.session == self.pid or mark_of(pid) == self.mark)

    async def wait(self, on_exit: Callable[[], None]) -> int:
        """Return the exit code of the first process, negative for a signal, once nothing of the copy is left. `on_exit`
        is called as soon as the first process has ended."""
        handle = os.pidfd_open(self.pid)  # the process cannot be reaped by other code
        exited = self._loop.create_future()
        self._loop.add_reader(handle, lambda: None if exited.done() else exited.set_result(None))
        try:
            await exited
        finally:
            self._loop.remove_reader(handle)
            os.close(handle)
        self._read()
        code = self._process.wait()
        on_exit()
        await self._end_rest()
        self.has_ended = True
        self._close()
        return code

    def ask_to_end(self) -> None:
        """Send TERM, once: many programs take a second one for an order to end at once."""
        if not self._is_asked:
            self._is_asked = True
            self._signal_session(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_session(signal.SIGKILL)
        self._signal_all(signal.SIGKILL)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _signal_session(self, number: signal.Signals) -> None:
        if not self.has_ended:
            try:
                os.killpg(self.pid, number)
            except OSError:
                pass

    async def _end_rest(self) -> None:
        """End the processes that the first process left behind."""
        until_s = time.monotonic() + KILL_AFTER_S
        if self._rest():
            self._signal_all(signal.SIGTERM)
        while self._rest():
            if time.monotonic() >= until_s:
                self._signal_all(signal.SIGKILL)
            await asyncio.sleep(CHECK_EVERY_S)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._rest():
            try:
                os.kill(pid, number)
            except OSError:
                pass

    def _rest(self) -> list[int]:
        return processes_of(self.mark, self._session)

    def _read(self) -> None:
        for _ in range(READS_AT_ONCE):
            try:
                chunk = os.read(self._out, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._close()
                return
            self.printed.add(chunk)
            self._passing.put(chunk)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._out)
            os.close(self._out)
