"""The runners that a worker's handlers need, and the choice among them."""

from collections.abc import Iterable
from functools import partial

from stepwire.actions import NEVER
from stepwire.handler import Handler, Kind

from .calls import HandlerCall, OutcomeReport, call_plain
from .loop import AsyncRunner
from .processes import ChildProcesses
from .run_slots import RunSlots
from .threads import ThreadRunner

STOP_S = 0.5  # a run that does not stop in this time is abandoned; its thread is a daemon


class Runners:
    """One runner for each kind of handler that the worker has. The runners share the worker's slots.

    The socket thread submits calls. When a call ends, its runner starts the next one, without the socket thread.
    """

    def __init__(self, handlers: tuple[Handler, ...], slots: int, report: OutcomeReport) -> None:
        kinds = {handler.kind for handler in handlers}
        self._slots: RunSlots[HandlerCall] = RunSlots(slots, (handler.offer for handler in handlers))
        self._submitted: list[HandlerCall] = []
        self._loop = AsyncRunner("stepwire-async", report, partial(self._next, "async")) if "async" in kinds else None
        self._children = ChildProcesses()
        self._threads: dict[Kind, ThreadRunner] = {}
        if "thread" in kinds:
            next_call = partial(self._next, "thread")
            self._threads["thread"] = ThreadRunner(slots, "stepwire-handler", report, call_plain, next_call)
        if "process" in kinds:
            next_call = partial(self._next, "process")
            perform = self._children.perform
            self._threads["process"] = ThreadRunner(slots, "stepwire-process", report, perform, next_call)

    def submit(self, call: HandlerCall) -> None:
        self._submitted.append(call)  # until `flush`: the loop is woken once for all of them

    def flush(self) -> None:
        """Start the calls that were submitted since the last flush, as far as slots are free."""
        if self._submitted:
            calls, self._submitted = self._submitted, []
            self._start(self._slots.add(calls))

    def cancel(self, call: HandlerCall) -> None:
        """Cancel an async handler's task. Plain handlers read `context.cancelled`; a handler process is killed."""
        if self._loop is not None and call.handler.kind == "async":
            self._loop.cancel(call)

    def watch_at_ms(self) -> float:
        """The time of the next `watch`, if steps are held."""
        return NEVER if self._loop is None else self._loop.loop_watch.check_at_ms

    def watch(self, calls: Iterable[HandlerCall], now_ms: float) -> None:
        """Warn if an async handler among these calls blocks the event loop."""
        if self._loop is not None and now_ms >= self._loop.loop_watch.check_at_ms:
            self._loop.watch(calls, now_ms)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop(STOP_S)
        for threads in self._threads.values():
            threads.stop(STOP_S)
        self._children.kill()

    def _start(self, calls: list[HandlerCall]) -> None:
        """Pass calls that have a slot to the runner of their kind."""
        for_loop = []
        for call in calls:
            if call.handler.kind == "async":
                for_loop.append(call)
            else:
                self._threads[call.handler.kind].submit(call)
        if for_loop:
            assert self._loop is not None
            self._loop.submit(for_loop)

    def _next(self, kind: Kind, ended: HandlerCall) -> HandlerCall | None:
        """Release the slot of a call that has ended. Returns the call that has the slot now, if it is of this kind;
        a call of another kind is passed to its runner."""
        following = self._slots.release(ended)
        if following is not None and following.handler.kind != kind:
            self._start([following])
            return None
        return following
