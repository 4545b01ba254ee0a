"""Threads for plain handlers, and for the calls that wait for a handler process."""

import queue
import threading
from collections.abc import Callable

from stepwire_protocol.messages import Result

from stepwire.identity import now_ms

from .calls import GIVE_BACK, HandlerCall, OutcomeReport, opened_and_closed


class ThreadRunner:
    """At most `threads_max` daemon threads, which are started on demand. A handler that hangs only occupies its
    slot."""

    def __init__(
        self,
        threads_max: int,
        name: str,
        report: OutcomeReport,
        perform: Callable[[HandlerCall], Result | None],
        next_call: Callable[[HandlerCall], HandlerCall | None],
    ) -> None:
        """`next_call` releases a call's slot. It returns the call that this runner must start in its place."""
        self._threads_max = threads_max
        self._name = name
        self._report = report
        self._perform = perform
        self._next_call = next_call
        self._calls: queue.SimpleQueue[HandlerCall | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # calls without a thread
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, call: HandlerCall) -> None:
        with self._lock:
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self._threads_max:
                name = f"{self._name}-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._calls.put(call)

    def stop(self, wait_s: float) -> None:
        """End the threads. Wait at most `wait_s` for threads that are in a handler."""
        for _ in self._threads:
            self._calls.put(None)
        until_ms = now_ms() + wait_s * 1000
        for thread in self._threads:
            thread.join(max(0.0, (until_ms - now_ms()) / 1000))

    def _serve(self) -> None:
        while (first := self._calls.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            call: HandlerCall | None = first
            while call is not None:
                result = opened_and_closed(call, self._perform) if call.begin(now_ms()) else GIVE_BACK
                ended, call = call, self._next_call(call)
                if call is None:
                    with self._lock:
                        self._idle += 1
                self._report(ended.run.item, result)
