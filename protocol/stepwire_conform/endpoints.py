"""Private endpoints for played brokers: short ipc paths in a temporary directory, and free tcp ports of loopback."""

import itertools
import secrets
import socket
import threading
from pathlib import Path
from typing import Literal, TypeAlias

Transport: TypeAlias = Literal["ipc", "tcp"]


class PrivateEndpoints:
    """Gives each played broker a pair of endpoints of its own. Any thread may ask."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._ports: set[int] = set()
        self._lock = threading.Lock()

    def pair(self, transport: Transport) -> tuple[str, str]:
        number = next(self._numbers)
        if transport == "ipc":
            return f"ipc://{self._directory}/s{number}", f"ipc://{self._directory}/r{number}"
        return f"tcp://127.0.0.1:{self._port()}", f"tcp://127.0.0.1:{self._port()}"

    def _port(self) -> int:
        """A free port outside of the range from which the system gives ports to clients."""
        with self._lock:
            for _ in range(1_000):
                port = 17_000 + secrets.randbelow(15_000)  # at random: other runs look for ports at the same time
                if port in self._ports:
                    continue
                with socket.socket() as probe:
                    try:
                        probe.bind(("127.0.0.1", port))
                    except OSError:
                        continue
                self._ports.add(port)
                return port
        raise OSError("no free tcp port between 17000 and 32000")
