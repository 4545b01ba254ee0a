"""The account of a proof: durations with their limits, other figures, and the faults."""

import threading
import time
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.01


class Account:
    """With a `patience` above 1 the limits are longer by this factor, as for a test on a busy machine."""

    def __init__(self, patience: float = 1.0) -> None:
        self.lines: list[str] = []
        self.faults: list[str] = []
        self._patience = patience

    def took(self, what: str, seconds: float, limit_s: float) -> None:
        limit_s *= self._patience
        self.lines.append(f"{what}: {seconds:.2f} s (at most {limit_s:g})")
        self.check(seconds <= limit_s, f"{what} took {seconds:.2f} s, at most {limit_s:g}")

    def note(self, text: str) -> None:
        self.lines.append(text)

    def check(self, is_kept: bool, fault: str) -> None:
        if not is_kept:
            self.faults.append(fault)

    def print(self) -> int:
        """Print all lines. Returns the exit code."""
        for line in self.lines:
            print(line)
        for fault in self.faults:
            print(f"BROKEN: {fault}")
        return 1 if self.faults else 0


class Moment:
    """The time at which a condition became true, observed from another thread."""

    def __init__(self, is_true: Callable[[], bool], bound_s: float) -> None:
        self._is_true, self._bound_s = is_true, bound_s
        self._at_s: float | None = None
        self._thread = threading.Thread(target=self._observe, daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """Return the time in seconds since 1970, or infinity if the condition was false for `bound_s`."""
        self._thread.join()
        return float("inf") if self._at_s is None else self._at_s

    def _observe(self) -> None:
        until_s = time.monotonic() + self._bound_s
        while time.monotonic() < until_s:
            if self._is_true():
                self._at_s = time.time()
                return
            time.sleep(POLL_S)
