"""The runners that a worker's handlers need, and the choice among them."""

from stepwire.handler import Handler

from .calls import HandlerCall, OutcomeReport, OutcomesReport, call_plain
from .loop import AsyncRunner
from .processes import ChildProcesses
from .threads import ThreadRunner

STOP_S = 0.5  # a run that does not stop in this time is abandoned; its thread is a daemon


class Runners:
    """One runner for each kind of handler that the worker has. Used by the socket thread only."""

    def __init__(
        self, handlers: tuple[Handler, ...], slots: int, report: OutcomeReport, report_many: OutcomesReport
    ) -> None:
        kinds = {handler.kind for handler in handlers}
        self._loop = AsyncRunner("stepwire-async", report_many) if "async" in kinds else None
        self._threads = ThreadRunner(slots, "stepwire-handler", report, call_plain) if "thread" in kinds else None
        self._children = ChildProcesses()
        self._process_threads = (
            ThreadRunner(slots, "stepwire-process", report, self._children.perform) if "process" in kinds else None
        )
        self._async_calls: list[HandlerCall] = []

    def submit(self, call: HandlerCall) -> None:
        kind = call.handler.kind
        if kind == "async":
            self._async_calls.append(call)  # until `flush`: the loop is woken once for all of them
            return
        runner = self._threads if kind == "thread" else self._process_threads
        assert runner is not None
        runner.submit(call)

    def flush(self) -> None:
        """Start the async calls that were submitted since the last flush."""
        if self._async_calls:
            calls, self._async_calls = self._async_calls, []
            assert self._loop is not None
            self._loop.submit(calls)

    def cancel(self, call: HandlerCall) -> None:
        """Cancel an async handler's task. Plain handlers read `context.cancelled`; a handler process is killed."""
        if self._loop is not None and call.handler.kind == "async":
            self._loop.cancel(call)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop(STOP_S)
        for threads in (self._threads, self._process_threads):
            if threads is not None:
                threads.stop(STOP_S)
        self._children.kill()
