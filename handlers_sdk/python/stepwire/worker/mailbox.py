"""Passes outcomes and requests from other threads to the socket thread, and wakes it."""

import socket
from collections import deque
from collections.abc import Callable

from stepwire_protocol.messages import Item, Result


class Mailbox:
    """Outcomes of calls, and requests to the session. Any thread may add them; only the socket thread removes them."""

    def __init__(self) -> None:
        self.outcomes: deque[tuple[Item, Result | None]] = deque()
        self.requests: deque[Callable[[], None]] = deque()
        self._is_awake = True  # the socket thread reads the mailbox soon without being woken
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """A descriptor that is readable when the socket thread must wake up."""
        return self._reader.fileno()

    def put_request(self, request: Callable[[], None]) -> None:
        self.requests.append(request)
        self._wake()

    def put_outcome(self, item: Item, result: Result | None) -> None:
        self.outcomes.append((item, result))
        if not self._is_awake:
            self._wake()

    def may_sleep(self) -> bool:
        """Called by the socket thread before it sleeps: from now on, additions wake it. False if there are some now."""
        self._is_awake = False
        if self.outcomes or self.requests:
            self._is_awake = True
        return not self._is_awake

    def wake_up(self, is_readable: bool) -> None:
        """Called by the socket thread after it slept: additions need not wake it."""
        self._is_awake = True
        if is_readable:
            try:
                self._reader.recv(4096)
            except BlockingIOError:
                pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            try:
                self._writer.send(b"\0")
            except OSError:
                pass  # the thread has ended, or the pipe is full of wake-ups already
