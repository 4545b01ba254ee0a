"""Turns the exit code and the output of a program into the result of its step.

An at_most_once step is completed or failed only if the program exits by itself and reports that. A program that was
killed or cancelled, or whose output cannot be used, has not reported its outcome.
"""

import signal
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from stepwire.errors import OUTCOME_UNKNOWN
from stepwire.texts import clean
from stepwire_protocol import limits, strict_json
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.executors.contract import ExecutionResult, Status

from .program import ProgramEnded

COMPLETED: Final = 0
PERMANENT: Final = 65  # EX_DATAERR: a retry cannot help
RETRYABLE: Final = 75  # EX_TEMPFAIL: a retry may help
UNKNOWN: Final = 81  # the effect may have happened, and the program cannot find out
BY_SIGNAL_FROM: Final = 128  # a shell exits with this number plus the signal that killed its command

BAD_OUTPUT: Final = "bad_output"
TIMEOUT: Final = "timeout"
KEPT_CHARS_MAX: Final = 200  # of an output that cannot be used

_NULL: Final = Raw(b"null")
_WHITE_SPACE: Final = b" \t\r\n"
_decode: Final = msgspec.json.Decoder().decode


class ErrorDocument(Struct, frozen=True):
    """An error document on standard output. Any other output is not one."""

    message: str
    code: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    category: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    retryable: bool | None = None
    retry_after_ms: Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)] | None = None


_decode_document: Final = msgspec.json.Decoder(ErrorDocument).decode


def outcome_of(ended: ProgramEnded, *, at_most_once: bool, stdout_bytes_max: int) -> ExecutionResult:
    if ended.too_much:
        text = f"the program was killed, because its output exceeds {stdout_bytes_max} bytes: {_shown(ended.stdout)}"
        return _unreported(BAD_OUTPUT, text, at_most_once, retryable=False)
    if ended.cancelled_for is not None:
        is_timeout = ended.cancelled_for == TIMEOUT
        text = (
            "the program ran longer than its timeout"
            if is_timeout
            else f"the program was cancelled: {ended.cancelled_for}"
        )
        return _unreported(TIMEOUT if is_timeout else "cancelled", _with_stderr(text, ended), at_most_once)
    if ended.exit_code == COMPLETED:
        return _completed(ended.stdout, at_most_once)
    if ended.exit_code is None and ended.killed_by is None:
        return _unreported(
            "no_exit_code", "the exit code is unknown: other code in the broker waited for the process", at_most_once
        )
    return _failed(ended, at_most_once)


def _completed(stdout: bytes, at_most_once: bool) -> ExecutionResult:
    output = stdout.strip(_WHITE_SPACE)
    if not output:
        return ExecutionResult(status="completed", output=_NULL)
    why = _refused(output)
    if why is not None:
        text = f"the output is not one JSON value that can be stored: {why}; it begins with {_shown(output)}"
        return _unreported(BAD_OUTPUT, text, at_most_once, retryable=False)
    return ExecutionResult(status="completed", output=Raw(output))


def _refused(output: bytes) -> str | None:
    """The reason why the output cannot be stored, or None. Checked at the depth of a results message, and as one
    value."""
    try:
        strict_json.parse(b'{"results":[{"output":' + output + b"}]}", bytes_max=len(output) + 64)
    except InvalidMessage as refusal:
        if refusal.code != "not_json":
            return str(refusal)
    try:
        _decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return None


def _failed(ended: ProgramEnded, at_most_once: bool) -> ExecutionResult:
    document = None if ended.exit_code is None else _error_document(ended.stdout)
    code, default = _code_and_text(ended)
    if ended.exit_code == UNKNOWN:
        return ExecutionResult(
            status="held", error=_message(ended, document, "the program cannot know whether the effect happened")
        )
    if at_most_once and _was_killed(ended):
        return ExecutionResult(status="held", error=_with_stderr(default, ended))
    if at_most_once and document is not None and document.code == OUTCOME_UNKNOWN:
        return ExecutionResult(status="held", error=_message(ended, document, default))
    retryable = {PERMANENT: False, RETRYABLE: True}.get(ended.exit_code or 0, document.retryable if document else None)
    return ExecutionResult(
        status="failed" if retryable is False else "retry",
        error=_message(ended, document, default),
        code=document.code if document and document.code else code,
        category=document.category if document else None,
        should_retry=retryable is not False,
        retry_after_ms=document.retry_after_ms if document and retryable is not False else None,
    )


def _unreported(code: str, text: str, at_most_once: bool, *, retryable: bool = True) -> ExecutionResult:
    """The result of a program that started and did not report its outcome."""
    if at_most_once:
        return ExecutionResult(status="held", error=clean(f"{code}: {text}"))
    status: Status = "retry" if retryable else "failed"
    return ExecutionResult(status=status, error=clean(text), code=code, should_retry=retryable)


def _was_killed(ended: ProgramEnded) -> bool:
    """True if a signal killed the program, or killed the command of a shell that reports this in its exit code."""
    return ended.killed_by is not None or 0 < (ended.exit_code or 0) - BY_SIGNAL_FROM < signal.SIGRTMIN


def _code_and_text(ended: ProgramEnded) -> tuple[str, str]:
    if ended.killed_by is None:
        return f"exit_{ended.exit_code}", f"the program ended with exit code {ended.exit_code}"
    try:
        name = signal.Signals(ended.killed_by).name
    except ValueError:
        name = f"signal_{ended.killed_by}"
    return name, f"the program was killed by {name}"


def _error_document(stdout: bytes) -> ErrorDocument | None:
    try:
        return _decode_document(stdout)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _message(ended: ProgramEnded, document: ErrorDocument | None, default: str) -> str:
    if document is not None and document.message.strip():
        return clean(document.message)
    return _stderr_tail(ended) or default


def _with_stderr(text: str, ended: ProgramEnded) -> str:
    tail = _stderr_tail(ended)
    return f"{text}; standard error ends with: {tail}" if tail else text


MESSAGE_CHARS_MAX: Final = 2_000


def stderr_of(ended: ProgramEnded) -> str:
    """The end of standard error as it is stored with the step. If it was cut, it begins with a whole line."""
    text = ended.stderr.decode("utf-8", "replace")
    if ended.stderr_cut:
        text = text.partition("\n")[2] or text
    return text


def _stderr_tail(ended: ProgramEnded) -> str:
    """The end of standard error. If the text was cut, it begins with a whole line."""
    text = ended.stderr.decode("utf-8", "replace").strip()
    is_cut = ended.stderr_cut or len(text) > MESSAGE_CHARS_MAX
    text = text[-MESSAGE_CHARS_MAX:]
    if is_cut:
        _, line_end, rest = text.partition("\n")
        text = f"…\n{rest}" if line_end and rest.strip() else f"…{text}"
    return clean(text, MESSAGE_CHARS_MAX + 2)


def _shown(output: bytes) -> str:
    return repr(clean(output[: 4 * KEPT_CHARS_MAX].decode("utf-8", "replace"), KEPT_CHARS_MAX))
