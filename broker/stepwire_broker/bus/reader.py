"""Read one socket on the loop, a limited number of messages per turn.

The socket's file descriptor is edge-triggered, and almost every call on the socket may consume the edge. Therefore a
socket is always read until it is empty, or its reading is scheduled again. Reading is scheduled after a used-up budget,
after a send that consumed the edge, and after an exception of the listener.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import zmq

MESSAGES_PER_TURN: Final = 200  # afterwards the loop does other work
BYTES_PER_TURN: Final = 64 * 1024  # some hundred results: the database stores them while the next ones are read

Take: TypeAlias = Callable[[zmq.Frame], int]


class SocketReader:
    """After `start`, `take` is called for every frame, in order. Call `stop` before the socket is closed."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        take: Take,
        *,
        after_drain: Callable[[], None],
        on_empty: Callable[[], None] | None = None,
    ) -> None:
        """`take` returns the number of bytes that a frame costs of the turn's budget. `after_drain` is called once per
        turn that read something, `on_empty` each time the socket is empty."""
        self._socket = socket
        self._take = take
        self._after_drain = after_drain
        self._on_empty = on_empty
        self.is_scheduled = False  # a read is scheduled on the loop
        self._is_stopped = True

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._loop.add_reader(self._socket.FD, self._on_edge)
        self.schedule()

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.remove_reader(self._socket.FD)

    def schedule(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._read)

    @property
    def is_behind(self) -> bool:
        """True if frames have arrived that were not read yet. Schedules their reading."""
        if self._is_stopped:
            return False
        if not self.is_scheduled and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self.schedule()
        return self.is_scheduled

    def _on_edge(self) -> None:
        if not self.is_scheduled:  # one budget per turn
            self._read()

    def _read(self) -> None:
        self.is_scheduled = False
        if self._is_stopped:
            return
        receive, take = self._socket.recv, self._take
        left, bytes_left = MESSAGES_PER_TURN, BYTES_PER_TURN
        try:
            while left and bytes_left > 0:
                try:
                    frame = receive(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    if self._on_empty is not None:
                        self._on_empty()
                    break
                left -= 1
                bytes_left -= take(frame)
        except BaseException:
            self.schedule()
            raise
        if not left or bytes_left <= 0:
            self.schedule()
        if left < MESSAGES_PER_TURN:
            self._after_drain()
