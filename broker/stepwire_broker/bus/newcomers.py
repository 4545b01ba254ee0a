"""The wait of the authenticator's thread until the loop knows the connections that it is about to admit."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Newcomers:
    """The loop calls `start` and `stop`, and one other thread calls `wait_until_known`."""

    def __init__(self, has_read_all: Callable[[], bool]) -> None:
        """`has_read_all` reads events of the monitors, in the loop. False: some are left for its next turn."""
        self._has_read_all = has_read_all
        self._is_stopped = False
        self._waiting: threading.Event | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """End the wait, now and from now on."""
        self._is_stopped = True
        if self._waiting is not None:
            self._waiting.set()

    def wait_until_known(self, wait_s: float) -> None:
        """Wait until the loop has read the begin of every connection that libzmq has accepted, at most `wait_s`."""
        self._waiting = waiting = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(self._read, waiting)
                waiting.wait(wait_s)

    def _read(self, waiting: threading.Event) -> None:
        if self._is_stopped or self._has_read_all():
            waiting.set()
        else:
            self._loop.call_soon(self._read, waiting)
