"""Notifies systemd of the broker's state: sd_notify(3), written by hand because each message is one datagram.

Without NOTIFY_SOCKET nothing is sent. The event loop sends the watchdog messages, so a blocked loop sends none, and a
unit with WatchdogSec= restarts the broker.
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
        """Report that the broker serves. From now on, watchdog messages are sent."""
        self._notify(f"READY=1\nSTATUS={status}")
        if self._next is None and self._watchdog_s is not None:
            self._feed()

    def reloading(self) -> None:
        """Report that a reload has begun, which ends with the next `ready`."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Report that the broker drains. Watchdog messages continue: a drain may take long, and the loop runs."""
        self._notify(f"STOPPING=1\nSTATUS={status}")

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _feed(self) -> None:
        assert self._watchdog_s is not None
        self._notify("WATCHDOG=1")
        self._next = asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._feed)

    def _notify(self, text: str) -> None:
        """Send one message. A failure is logged: a systemd that does not listen must not stop a broker."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto(text.encode(), self._address)
        except OSError as error:
            import structlog

            log = structlog.get_logger("stepwire.serve")
            log.warning("systemd_notify_failed", text=text.partition("\n")[0], error=str(error))


def without_systemd(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process, which must not notify systemd in the broker's name."""
    return {name: value for name, value in environ.items() if name not in _VARIABLES}


_VARIABLES: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def _address(text: str) -> str:
    """The socket's path, or an abstract address if the text begins with @."""
    return f"\0{text[1:]}" if text[:1] == "@" else text if text[:1] == "/" else ""


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_ours = pid in ("", str(os.getpid()))
    return int(usec) / 1_000_000 if is_ours and usec.isdecimal() and int(usec) > 0 else None
