"""Turns the end of a run into the result that its session sends."""

import asyncio
import traceback
from typing import Final

from msgspec import Raw
from stepwire.actions import RunEnd
from stepwire.errors import OUTCOME_UNKNOWN
from stepwire.handler import encode_output, sdk_failure, stopped
from stepwire.texts import clean
from stepwire_protocol.messages import ErrorDetail, Result, ResultMetadata, StepRequest

from .contract import ExecutionFailed, ExecutionResult, NoCapacity, NoExecutor

GIVE_BACK: Final[Result | None] = None  # no work was done: the step is ready again, and no attempt is spent
BACKTRACE_LINES_MAX: Final = 40


def of_result(step: StepRequest, result: ExecutionResult, took_ms: float) -> Result:
    """The result of a run that returned."""
    if not isinstance(result, ExecutionResult):
        text = f"the executor returned {type(result).__name__}; return an ExecutionResult"
        return sdk_failure(step, "bad_result", text, took_ms=took_ms)
    took_ms = took_ms if result.duration_ms is None else max(0.0, result.duration_ms)
    if result.status == "completed":
        try:
            output = encode_output(result.output)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
            return sdk_failure(step, "bad_output", f"the output cannot be sent as JSON: {error}", took_ms=took_ms)
        metadata = _metadata(took_ms, result.stderr)
        return Result(
            step_id=step.step_id, delivery=step.delivery, status="completed", output=Raw(output), metadata=metadata
        )
    text = result.error or f"the executor reported {result.status} without a reason"
    if result.status == "held":
        return _failed(step, ErrorDetail(message=clean(text), code=OUTCOME_UNKNOWN), took_ms, result.stderr)
    should_retry = result.status == "retry" if result.should_retry is None else result.should_retry
    detail = _detail(text, result.code, result.category, should_retry, result.retry_after_ms)
    return _failed(step, detail, took_ms, result.stderr)


def of_exception(step: StepRequest, error: BaseException, reason: RunEnd | None, took_ms: float) -> Result | None:
    """The result of a run that raised. `reason`: why the run had been cancelled, or None."""
    if isinstance(error, NoCapacity):
        return GIVE_BACK
    if reason is not None and (isinstance(error, asyncio.CancelledError) or reason == "timeout"):
        if reason == "shutdown" and step.delivery_mode == "at_least_once":
            return GIVE_BACK
        return stopped(step, reason, took_ms)
    text = str(error) or type(error).__name__
    if isinstance(error, NoExecutor):
        return _failed(step, _detail(text, "no_executor", None, False, None), took_ms)
    if isinstance(error, ExecutionFailed):
        detail = _detail(text, error.code, error.category, error.should_retry, error.retry_after_ms)
        return _failed(step, detail, took_ms)
    # The executor failed at an unknown point of the run, so the step may have had its effects.
    lines = [clean(line, 1000) for part in traceback.format_exception(error) for line in part.splitlines()]
    detail = ErrorDetail(
        message=clean(f"{type(error).__name__}: {error}"), code=OUTCOME_UNKNOWN, backtrace=lines[-BACKTRACE_LINES_MAX:]
    )
    return _failed(step, detail, took_ms)


def _detail(
    text: str, code: str | None, category: str | None, should_retry: bool, retry_after_ms: int | None
) -> ErrorDetail:
    return ErrorDetail(
        message=clean(text),
        code=clean(code, 128) if code else None,
        category=clean(category, 128) if category else None,
        retryable=should_retry,
        retry_after_ms=None if retry_after_ms is None else max(0, int(retry_after_ms)),
    )


def _failed(step: StepRequest, error: ErrorDetail, took_ms: float, stderr: str | None = None) -> Result:
    metadata = _metadata(took_ms, stderr)
    return Result(step_id=step.step_id, delivery=step.delivery, status="failed", error=error, metadata=metadata)


def _metadata(took_ms: float, stderr: str | None) -> ResultMetadata:
    return ResultMetadata(
        execution_time_ms=round(took_ms, 3), stderr=None if stderr is None else clean(stderr, len(stderr))
    )
