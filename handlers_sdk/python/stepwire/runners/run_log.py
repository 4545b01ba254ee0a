"""The log lines of runs that end without an output: the logger `stepwire.worker`, events `run_failed` and
`run_interrupted`. Also the warning `loop_blocked`.

    task 9 step 12 pay attempt 1 of 4 failed: KeyError: 'nope'
    Traceback (most recent call last): …

An unexpected exception is an error, with its traceback. What a handler says on purpose is a warning of one line.
"""

import logging
from typing import Final

from stepwire_protocol.messages import Result, StepRequest

from stepwire import logs, tracebacks
from stepwire.actions import RunEnd
from stepwire.errors import Permanent, Retry, StepError
from stepwire.texts import shortened

log: Final = logging.getLogger(logs.WORKER)

TEXT_CHARS_MAX: Final = 500  # the traceback and the result have more

_REASONS: Final[dict[RunEnd, str]] = {
    "timeout": "exceeded its timeout and is asked to stop",
    "task_cancelled": "is asked to stop: the task was cancelled",
    "not_granted": "is asked to stop: the broker does not grant it",
    "superseded": "is asked to stop: the broker has ended this run (its timeout, or a retry elsewhere); "
    "its result will not be used",
    "shutdown": "is asked to stop: the worker shuts down",
    "lease_lost": "continues without a broker: its result may come too late",
}
_EXPECTED: Final = frozenset({"task_cancelled", "shutdown"})


def raised(step: StepRequest, error: BaseException, cancel_reason: str | None, *, is_sealed: bool = False) -> None:
    """Log the exception of a handler; of a sealed step, only its type."""
    if is_sealed:
        _write("run_failed", logging.WARNING, step, f"failed: {type(error).__name__}; the text of the error is sealed")
        return
    if cancel_reason is not None:
        text = f"ended after it was asked to stop ({cancel_reason}): {tracebacks.summary(error)}"
        _write("run_failed", logging.INFO, step, text)
        return
    text = f"failed: {tracebacks.summary(error)}"
    if not isinstance(error, StepError):
        _write("run_failed", logging.ERROR, step, text, error)
        return
    if isinstance(error, Retry):
        text += f"; a retry may start after {error.after_ms / 1000:g} s"
    elif isinstance(error, Permanent):
        text += "; no retry"
    if error.__cause__ is not None:
        text += f" (caused by {tracebacks.summary(error.__cause__)})"
    _write("run_failed", logging.WARNING, step, text)


def not_reported(step: StepRequest, result: Result, *, is_sealed: bool = False) -> None:
    """Log a failure that the SDK has found: input that does not fit, output that is not JSON, a dead process."""
    assert result.error is not None
    text = "the text of the error is sealed" if is_sealed else result.error.message
    _write("run_failed", logging.ERROR, step, f"failed: {result.error.code}: {text}")


def interrupted(step: StepRequest, reason: RunEnd) -> None:
    """Log that a run is asked to stop. A plain handler may ignore it, so the end of the run may never be logged."""
    level = logging.INFO if reason in _EXPECTED else logging.WARNING
    _write("run_interrupted", level, step, _REASONS[reason])


def loop_blocked(step: StepRequest | None, handler: str, blocked_s: float) -> None:
    """Log that an async handler blocks the event loop. `step` is None if a task that the handler has made blocks it."""
    advice = f"has blocked the event loop for {blocked_s:g} s: use a plain def, or await"
    if step is None:
        log.warning("a task of an async handler %s", advice, extra={"event": "loop_blocked"})
    else:
        _write("loop_blocked", logging.WARNING, step, f"delays all other async steps: async handler {handler} {advice}")


def _write(event: str, level: int, step: StepRequest, text: str, error: BaseException | None = None) -> None:
    if not log.isEnabledFor(level):
        return
    attempt = f"attempt {step.metadata.attempt + 1} of {step.metadata.retry_limit + 1}"  # people count from 1
    name = f"task {step.task_id} step {step.step_id} {step.step_name} {attempt}"
    file, line, function, _ = log.findCaller()
    trace = None
    if error is not None:
        trace = (type(error), error, tracebacks.from_the_handler_on(error))
        file, line, function = tracebacks.origin(error) or (file, line, function)
    extra = {"event": event, **logs.step_ids(step)}
    message = f"{name} {shortened(text, TEXT_CHARS_MAX)}"
    record = log.makeRecord(log.name, level, file, line, "%s", (message,), trace, function, extra)
    if error is not None:
        record.exc_text = "\n".join(tracebacks.backtrace(error))  # handlers format `exc_info` only if this is empty
    log.handle(record)
