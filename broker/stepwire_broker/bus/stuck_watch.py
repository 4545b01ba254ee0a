"""Ends floods of subscriptions while the loop is inside libzmq.

libzmq stores a requested topic before the application can refuse it. While one peer sends topics faster than libzmq
stores them, a single call on the socket may not return, so the loop cannot disconnect the peer. This thread can: it
notices that the loop computes without reading an event, and ends the connections whose data waits in the kernel.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 0.02
STUCK_CPU_S: Final = 0.01  # computing time of the loop without an event


class StuckWatch:
    """Between `start` and `stop`, calls `end_floods` in its own thread whenever the loop is stuck."""

    def __init__(self, turns: Callable[[], int], end_floods: Callable[[], None]) -> None:
        """`turns` returns a number that changes whenever the loop has read an event."""
        self._turns = turns
        self._end_floods = end_floods
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the calling thread. Systems that do not measure another thread's computing time have no watch."""
        if hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._thread = threading.Thread(target=self._run, args=(clock,), name="stepwire-stuck-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop_clock: int) -> None:
        turns, since_cpu_s = self._turns(), time.clock_gettime(loop_clock)
        while not self._stopped.wait(EVERY_S):
            now_turns, now_cpu_s = self._turns(), time.clock_gettime(loop_clock)
            if now_turns != turns:
                turns, since_cpu_s = now_turns, now_cpu_s
            elif now_cpu_s - since_cpu_s > STUCK_CPU_S:
                self._end_floods()
