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
        self.is_woken = False
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
        self._wake()

    def put_outcomes(self, outcomes: list[tuple[Item, Result | None]]) -> None:
        self.outcomes.extend(outcomes)
        self._wake()

    def clear(self) -> None:
        """Clear the wake-up, before the thread reads the mailbox: later additions wake the thread again."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            pass
        self.is_woken = False

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _wake(self) -> None:
        if not self.is_woken:
            self.is_woken = True
            try:
                self._writer.send(b"\0")
            except OSError:
                pass  # the thread has ended, or the pipe is full of wake-ups already
