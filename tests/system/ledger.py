"""Ledgers: the actions of a process, written outside the broker, one synced line for each event.

A line that a kill cut short is the last of its file and is left out. `at` is CLOCK_BOOTTIME in nanoseconds, the same
clock for every process of this machine; `wall` is UTC. tests/checker/README.md describes the lines.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Ledger:
    """One process's file. `write` returns once the line is on the disk."""

    def __init__(self, directory: Path, name: str, *, is_synced: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._is_synced = is_synced
        self._lock = threading.Lock()
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: str, **facts: Any) -> int:
        """Write a line and return its time: when `write` was called, not when it held the lock."""
        at, wall = now_ns(), time.time_ns()
        with self._lock:
            os.write(self._file, _encode({"event": event, "at": at, "wall": wall, **facts}) + b"\n")
            if self._is_synced:
                os.fdatasync(self._file)
        return at

    def close(self) -> None:
        os.close(self._file)


def read(directory: Path, prefix: str = "") -> list[dict[str, Any]]:
    """Return every event of the ledgers with this prefix, in the order of their times."""
    if not directory.is_dir():
        return []
    events = [event for path in sorted(directory.glob(f"{prefix}*.jsonl")) for event in _lines(path)]
    events.sort(key=lambda event: event["at"])
    return events


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield {**_decode(line), "ledger": path.stem}
