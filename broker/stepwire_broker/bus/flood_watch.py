"""Watches for floods in a thread of its own, because a flood can keep the loop busy, or inside libzmq.

libzmq stores a requested topic before the application can refuse it. While one peer sends topics faster than libzmq
stores them, a single call on the socket may not return, so the loop cannot disconnect the peer. This thread can: it
notices that the loop computes without reading an event.

It also measures the memory of unread messages, several times as often as a busy loop could.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 0.02
STUCK_CPU_S: Final = 0.01  # computing time of the loop without an event


class FloodWatch:
    """Between `start` and `stop`, calls `end_floods` in its own thread whenever the loop is stuck, and `measure`
    regularly."""

    def __init__(self, turns: Callable[[], int], end_floods: Callable[[], None], measure: Callable[[], float]) -> None:
        """`turns` returns a number that changes whenever the loop has read an event. `measure` returns the time in
        seconds until it should be called again."""
        self._turns = turns
        self._end_floods = end_floods
        self._measure = measure
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the calling thread. Systems that do not measure another thread's computing time have no watch."""
        if hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._thread = threading.Thread(target=self._run, args=(clock,), name="stepwire-flood-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop_clock: int) -> None:
        turns, since_cpu_s = self._turns(), time.clock_gettime(loop_clock)
        measure_at_s = 0.0
        wait_s = EVERY_S
        while not self._stopped.wait(wait_s):
            now_turns, now_cpu_s = self._turns(), time.clock_gettime(loop_clock)
            if now_turns != turns:
                turns, since_cpu_s = now_turns, now_cpu_s
            elif now_cpu_s - since_cpu_s > STUCK_CPU_S:
                self._end_floods()
            now_s = time.monotonic()
            if now_s >= measure_at_s:
                measure_at_s = now_s + self._measure()
            wait_s = max(0.001, min(EVERY_S, measure_at_s - now_s))
