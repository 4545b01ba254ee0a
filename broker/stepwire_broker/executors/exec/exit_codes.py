"""What a program's end means for its step: a table of exit codes, and what it said.

An at_most_once step is only completed or failed by the program's own word. A program that was killed, told to end, or
whose output cannot be taken has not said what it did.
"""

import signal
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from stepwire.errors import OUTCOME_UNKNOWN
from stepwire.handler import clean
from stepwire_protocol import limits, strict_json
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.executors.contract import ExecutionResult, Status

from .program import ProgramEnded

COMPLETED: Final = 0
PERMANENT: Final = 65  # EX_DATAERR: trying again cannot help
RETRYABLE: Final = 75  # EX_TEMPFAIL: trying again may help
UNKNOWN: Final = 81  # it may or may not have happened, and the program cannot find out
BY_SIGNAL_FROM: Final = 128  # how a shell reports that what it ran was killed

BAD_OUTPUT: Final = "bad_output"
TIMEOUT: Final = "timeout"
KEPT_CHARS_MAX: Final = 200  # of an output that cannot be taken

_NULL: Final = Raw(b"null")
_WHITE_SPACE: Final = b" \t\r\n"
_decode: Final = msgspec.json.Decoder().decode


class Said(Struct, frozen=True):
    """An error document on standard output. What is not like this is not one."""

    message: str
    code: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    category: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    retryable: bool | None = None
    retry_after_ms: Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)] | None = None


_decode_said: Final = msgspec.json.Decoder(Said).decode


def outcome_of(ended: ProgramEnded, *, at_most_once: bool, stdout_bytes_max: int) -> ExecutionResult:
    if ended.too_much:
        text = f"it wrote more than {stdout_bytes_max} bytes, and was killed; it began with {_shown(ended.stdout)}"
        return _no_word(BAD_OUTPUT, text, at_most_once, retryable=False)
    if ended.told_to_end is not None:
        is_timeout = ended.told_to_end == TIMEOUT
        text = "it ran longer than it may" if is_timeout else f"it was told to end: {ended.told_to_end}"
        return _no_word(TIMEOUT if is_timeout else "cancelled", _with_stderr(text, ended), at_most_once)
    if ended.exit_code == COMPLETED:
        return _completed(ended.stdout, at_most_once)
    if ended.exit_code is None and ended.killed_by is None:
        return _no_word("no_exit_code", "how it ended is not known: something else has waited for it", at_most_once)
    return _failed(ended, at_most_once)


def _completed(stdout: bytes, at_most_once: bool) -> ExecutionResult:
    output = stdout.strip(_WHITE_SPACE)
    if not output:
        return ExecutionResult(status="completed", output=_NULL)
    why = _refused(output)
    if why is not None:
        text = f"its output is not one JSON value that can be stored: {why}; it begins with {_shown(output)}"
        return _no_word(BAD_OUTPUT, text, at_most_once, retryable=False)
    return ExecutionResult(status="completed", output=Raw(output))


def _refused(output: bytes) -> str | None:
    """As deep as it will be inside a results message; and one value by itself, not two that would fit in there."""
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
    said = None if ended.exit_code is None else _said(ended.stdout)
    code, default = _in_words(ended)
    if ended.exit_code == UNKNOWN:
        return ExecutionResult(status="held", error=_message(ended, said, "it does not know whether it happened"))
    if at_most_once and _was_killed(ended):
        return ExecutionResult(status="held", error=_with_stderr(default, ended))
    if at_most_once and said is not None and said.code == OUTCOME_UNKNOWN:
        return ExecutionResult(status="held", error=_message(ended, said, default))
    retryable = {PERMANENT: False, RETRYABLE: True}.get(ended.exit_code or 0, said.retryable if said else None)
    return ExecutionResult(
        status="failed" if retryable is False else "retry",
        error=_message(ended, said, default),
        code=said.code if said and said.code else code,
        category=said.category if said else None,
        should_retry=retryable is not False,
        retry_after_ms=said.retry_after_ms if said and retryable is not False else None,
    )


def _no_word(code: str, text: str, at_most_once: bool, *, retryable: bool = True) -> ExecutionResult:
    """The program has begun, and what it did is not its own word."""
    if at_most_once:
        return ExecutionResult(status="held", error=clean(f"{code}: {text}"))
    status: Status = "retry" if retryable else "failed"
    return ExecutionResult(status=status, error=clean(text), code=code, should_retry=retryable)


def _was_killed(ended: ProgramEnded) -> bool:
    """Itself, or, as a shell reports it, what it ran: then it has not come to its own end."""
    return ended.killed_by is not None or 0 < (ended.exit_code or 0) - BY_SIGNAL_FROM < signal.SIGRTMIN


def _in_words(ended: ProgramEnded) -> tuple[str, str]:
    if ended.killed_by is None:
        return f"exit_{ended.exit_code}", f"it ended with exit code {ended.exit_code}"
    try:
        name = signal.Signals(ended.killed_by).name
    except ValueError:
        name = f"signal_{ended.killed_by}"
    return name, f"it was killed by {name}"


def _said(stdout: bytes) -> Said | None:
    try:
        return _decode_said(stdout)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _message(ended: ProgramEnded, said: Said | None, default: str) -> str:
    if said is not None and said.message.strip():
        return clean(said.message)
    return _last_words(ended) or default


def _with_stderr(text: str, ended: ProgramEnded) -> str:
    words = _last_words(ended)
    return f"{text}; it said: {words}" if words else text


MESSAGE_CHARS_MAX: Final = 2_000


def _last_words(ended: ProgramEnded) -> str:
    """The end of what it wrote to standard error: whole lines, if it was cut."""
    text = ended.stderr.decode("utf-8", "replace").strip()
    is_cut = ended.stderr_cut or len(text) > MESSAGE_CHARS_MAX
    text = text[-MESSAGE_CHARS_MAX:]
    if is_cut:
        _, line_end, rest = text.partition("\n")
        text = f"…\n{rest}" if line_end and rest.strip() else f"…{text}"
    return clean(text, MESSAGE_CHARS_MAX + 2)


def _shown(output: bytes) -> str:
    return repr(clean(output[: 4 * KEPT_CHARS_MAX].decode("utf-8", "replace"), KEPT_CHARS_MAX))
