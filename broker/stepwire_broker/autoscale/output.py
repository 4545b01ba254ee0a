"""The output of the copies: its end is kept for an error, and as much as a person can read is passed on.

A copy may print without limit. What is read beyond the limits is dropped, so that the copy never waits for a reader,
and the memory of this process stays small. A thread writes, because stderr may be a pipe that no process reads.
"""

import os
import queue
import sys
import threading
import time
from typing import Final

KEPT_BYTES: Final = 16 * 1024
READ_BYTES: Final = 64 * 1024
PASSED_BYTES_PER_S: Final = 256 * 1024  # of all copies
CHUNKS_MAX: Final = 64  # that wait for stderr


class Printed:
    """The end of what one copy printed."""

    def __init__(self) -> None:
        self._end = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self._end += chunk
        if len(self._end) > 2 * KEPT_BYTES:
            del self._end[:-KEPT_BYTES]

    @property
    def end(self) -> str:
        return bytes(self._end[-KEPT_BYTES:]).decode(errors="replace")


class Passing:
    """Passes the output of all copies on to stderr, within a limit."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor
        self._left = float(PASSED_BYTES_PER_S)
        self._at_s = time.monotonic()
        self._dropped = 0
        self._chunks: queue.Queue[bytes] = queue.Queue(CHUNKS_MAX)
        threading.Thread(target=self._write, name="copies' output", daemon=True).start()

    def put(self, chunk: bytes) -> None:
        now_s = time.monotonic()
        self._left = min(PASSED_BYTES_PER_S, self._left + (now_s - self._at_s) * PASSED_BYTES_PER_S)
        self._at_s = now_s
        if len(chunk) > self._left:
            self._dropped += len(chunk)
            return
        note = b"" if not self._dropped else b"\n[%d bytes of the copies' output are left out]\n" % self._dropped
        try:
            self._chunks.put_nowait(note + chunk)
        except queue.Full:
            self._dropped += len(chunk)
            return
        self._left -= len(chunk)
        self._dropped = 0

    def _write(self) -> None:
        while True:
            left = memoryview(self._chunks.get())
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                return  # stderr is closed
