"""The process of a driver: ops to its stdin, replies from its stdout. DRIVER.md describes both.

One thread moves the bytes in both directions, so a driver that writes while it still receives cannot block the kit. A
driver that ends, stays silent, floods or writes anything else raises Failed with a sentence.
"""

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

Op = dict[str, Any]
Reply = dict[str, Any]

REPLY_TIMEOUT_S: Final = 10.0
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
EXIT_TIMEOUT_S: Final = 1.0

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Failed(AssertionError):
    """The side under test broke a rule. The text is a sentence for its author."""


class DriverProcess:
    """One process, for many sessions. After Failed the process is in an unknown state: close it."""

    def __init__(self, command: Sequence[str], timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Raises OSError if the command cannot be started."""
        self._timeout_s = timeout_s
        # A process group of its own, so that processes which the driver starts end with it.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._read = bytearray()
        self._lines: deque[bytes] = deque()

    def __enter__(self) -> "DriverProcess":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and every process of its group. Never raises for a process that ended by itself."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.close()
            self._child.wait(EXIT_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._child.wait()
        self._child.stdout.close()

    def exchange(self, op: Op) -> Reply:
        """Send one op and return its reply. Raises Failed if there is none, or if the reply is an error."""
        (reply,) = self.exchange_all([op])
        if "error" in reply:
            raise Failed(f"the driver reports an error: {str(reply['error'])[:2000]}")
        return reply

    def exchange_all(self, ops: Sequence[Op], replies: list[Reply] | None = None) -> list[Reply]:
        """Send all ops without waiting, and return the replies in their order. Raises Failed if one is missing; the
        list `replies` then has those before it."""
        unsent = memoryview(b"".join(_encode(op) + b"\n" for op in ops))
        replies = [] if replies is None else replies
        self._receive()
        if self._lines:
            raise Failed(f"the driver wrote a line without an op: {_shown(self._lines[0])}")
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if unsent:
                selector.register(self._in, selectors.EVENT_WRITE)
            deadline = time.monotonic() + self._timeout_s
            while len(replies) < len(ops):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    op = ops[len(replies)]["op"]
                    raise Failed(f"the driver did not reply to {op!r} within {self._timeout_s:g} s")
                for key, _ in ready:
                    if key.fd == self._in:
                        unsent = self._write(unsent)
                        if not unsent:
                            selector.unregister(self._in)
                    elif not self._receive():
                        op = ops[len(replies)]["op"]
                        raise Failed(f"the driver ended before it replied to {op!r}{self._exit_text()}")
                    else:
                        deadline = time.monotonic() + self._timeout_s
                while self._lines:
                    if len(replies) == len(ops):
                        raise Failed(f"the driver wrote a line without an op: {_shown(self._lines[0])}")
                    replies.append(_reply(self._lines.popleft()))
        return replies

    def _write(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._in, unsent[:READ_BYTES]) :]
        except BlockingIOError:
            return unsent
        except OSError:  # the driver has closed its stdin; the end of its output explains more
            return unsent[len(unsent) :]

    def _receive(self) -> bool:
        """Read what is there. False: the output has ended."""
        try:
            data = os.read(self._out, READ_BYTES)
        except BlockingIOError:
            return True
        *lines, rest = data.split(b"\n")
        if lines:
            self._lines.append(bytes(self._read) + lines[0])
            self._lines.extend(lines[1:])
            self._read.clear()
        self._read += rest
        if len(self._read) > LINE_BYTES_MAX:
            raise Failed(f"the driver wrote {len(self._read):,} bytes without a line end: {_shown(bytes(self._read))}")
        return bool(data)

    def _exit_text(self) -> str:
        try:
            code = self._child.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ": it closed its stdout, but still runs"
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f" ({how}); its stderr may say why"


def _reply(line: bytes) -> Reply:
    try:
        reply = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reply = None
    if not isinstance(reply, dict):
        raise Failed(f"the driver wrote a line that is not a JSON object: {_shown(line)}")
    return reply


def _shown(line: bytes) -> str:
    return repr(line[:200].decode(errors="replace"))
