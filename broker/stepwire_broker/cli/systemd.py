"""What systemd is told, and wants to hear: sd_notify(3), by hand, because it is one datagram a word.

A broker without a NOTIFY_SOCKET says nothing. The words go out from the loop, so a loop that stands still is silent,
and a unit with WatchdogSec= starts the broker again.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final


class Systemd:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environ) if self._address else None
        self._next: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """It serves. From here on the watchdog is fed."""
        self._say(f"READY=1\nSTATUS={status}")
        if self._next is None and self._watchdog_s is not None:
            self._feed()

    def reloading(self) -> None:
        """Until `ready` is said again."""
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """It takes nothing new. The watchdog is fed on: a drain may take its time, and its loop still turns."""
        self._say(f"STOPPING=1\nSTATUS={status}")

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _feed(self) -> None:
        assert self._watchdog_s is not None
        self._say("WATCHDOG=1")
        self._next = asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._feed)

    def _say(self, text: str) -> None:
        """Whoever does not listen must not stop a broker."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto(text.encode(), self._address)
        except OSError as error:
            import structlog

            log = structlog.get_logger("stepwire.serve")
            log.warning("systemd_not_told", text=text.partition("\n")[0], error=str(error))


def without_systemd(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child: what it would say is not the broker's."""
    return {name: value for name, value in environ.items() if name not in _OURS}


_OURS: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def _address(text: str) -> str:
    """A path, or after an @ a name without a file."""
    return f"\0{text[1:]}" if text[:1] == "@" else text if text[:1] == "/" else ""


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_ours = pid in ("", str(os.getpid()))
    return int(usec) / 1_000_000 if is_ours and usec.isdecimal() and int(usec) > 0 else None
