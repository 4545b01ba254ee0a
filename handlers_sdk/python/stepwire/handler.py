"""A registered handler, and the results that are made of its return values and exceptions."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import UNSET, Raw
from stepwire_protocol import limits, strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import ErrorDetail, Result, ResultMetadata, StepRequest

from .errors import OUTCOME_UNKNOWN, ConfigurationError, Retry, StepError
from .session import Offer
from .texts import clean
from .tracebacks import backtrace, summary, text_of

Kind: TypeAlias = Literal["async", "thread", "process"]

CODE_CHARS_MAX: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,128}")

_encode: Final = msgspec.json.Encoder().encode
_decode_any: Final = msgspec.json.Decoder().decode
_DIGITS: Final = bytes(0x30 if 0x30 <= c <= 0x39 else 0x20 for c in range(256))
_BIG: Final = b"0" * 16
_BACKSLASH: Final = 0x5C
_BRACKETS_SAFE: Final = limits.DEPTH_MAX - 8  # with at most this many brackets, the output cannot be too deep
_EMPTY_METADATA: Final = ResultMetadata()
_UNSUPPORTED: Final = re.compile(r"Encoding objects of type (\S+) is unsupported")
# The same sentences in every SDK.
_NOT_A_NUMBER: Final = "it holds NaN or Infinity, which JSON does not have: return null instead"
_TOO_LONG: Final = "it holds an integer outside ±(2^53 - 1): return it as text"
_HALF_A_PAIR: Final = "it holds half of a surrogate pair: return well-formed text, or Base64"
_REFUSED: Final = {
    "not_a_number": _NOT_A_NUMBER,
    "integer_out_of_range": _TOO_LONG,
    "lone_surrogate": _HALF_A_PAIR,
    "nul_character": "it holds U+0000, which databases cannot store: remove it, or return the text as Base64",
}


class Handler:
    """A function with its settings. The type of its input is the annotation of its second parameter."""

    __slots__ = ("decode", "function", "kind", "offer", "takes_input", "version")

    def __init__(self, function: Callable[..., Any], kind: Kind, offer: Offer, version: str | None = None) -> None:
        self.function = function
        self.kind = kind
        self.offer = offer
        self.version = version
        self.takes_input, self.decode = _input_of(function)

    @property
    def name(self) -> str:
        return self.offer.pattern


def make_handler(
    function: Callable[..., Any],
    name: str,
    *,
    concurrency: int | None = None,
    timeout_ms: int | None = None,
    process: bool = False,
    shadow_safe: bool = False,
    version: str | None = None,
) -> Handler:
    """Make a handler of a function. Raises ConfigurationError for faults that would otherwise only show at run time."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"handler name {name!r}: it needs 1 to 128 letters, digits, _ . : - and, for patterns, *"
        )
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"handler {name!r}: concurrency is {concurrency}: it needs to be at least 1")
    if timeout_ms is not None and timeout_ms < 1:
        raise ConfigurationError(f"handler {name!r}: timeout_ms is {timeout_ms}: it needs to be at least 1")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if is_async and process:
        raise ConfigurationError(f"handler {name!r}: process=True is for plain functions, and this one is async")
    if process and ("<" in function.__qualname__ or not function.__module__):
        raise ConfigurationError(
            f"handler {name!r}: process=True needs a function at the top of a module, not {function.__qualname__}"
        )
    kind: Kind = "async" if is_async else "process" if process else "thread"
    return Handler(function, kind, Offer(name, concurrency, timeout_ms, shadow_safe), version)


def bad_input(handler: Handler, step: StepRequest, why: str) -> Result:
    """The result of a handler that was not called, because the input does not fit its annotation."""
    text = f"the input of {step.step_name!r} does not fit handler {handler.name!r}: {why}"
    return _error(step, "bad_input", text, retryable=False)


def not_opened(step: StepRequest, code: str, text: str, *, category: str | None = None) -> Result:
    """The result of a handler that was not called, because this worker cannot open the step. A retry may succeed."""
    detail = ErrorDetail(message=clean(text), code=code, category=category, retryable=True)
    return Result(step_id=step.step_id, delivery=step.delivery, status="error", error=detail, metadata=_EMPTY_METADATA)


def read_input(handler: Handler, step: StepRequest) -> Any:
    """The decoded input. Raises msgspec.DecodeError, of which ValidationError is a subclass."""
    return handler.decode(step.task_context if step.input is UNSET else step.input)


def completed(handler: Handler, step: StepRequest, value: Any, took_ms: float) -> Result:
    """The result of a handler that returned: its output, or an error if a language or a database cannot represent
    it."""
    try:
        output = encode_output(value)
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        text = f"the output of {handler.name!r} cannot be sent as JSON: {_advice(value) or _reason(error)}"
        return sdk_failure(step, "bad_output", text, took_ms=took_ms)
    metadata = _metadata(took_ms, handler.version)
    return Result(
        step_id=step.step_id, delivery=step.delivery, status="completed", output=Raw(output), metadata=metadata
    )


def failed(handler: Handler, step: StepRequest, error: BaseException, took_ms: float) -> Result:
    """The result of a handler that raised.

    The message of an unexpected exception begins with its type: `'nope'` alone would not explain a KeyError. A
    StepError's message is the handler's own sentence, and a subclass of the handler's own names its code.
    """
    if isinstance(error, StepError):
        own_name = None if type(error).__module__ == StepError.__module__ else type(error).__name__
        code = error.code or own_name
        detail = ErrorDetail(
            message=clean(text_of(error) or type(error).__name__),
            code=clean(code, CODE_CHARS_MAX) if code else None,
            category=clean(error.category, CODE_CHARS_MAX) if error.category else None,
            retryable=error.retryable,
            retry_after_ms=error.after_ms if isinstance(error, Retry) else None,
        )
    else:
        detail = ErrorDetail(
            message=clean(summary(error)),
            code=clean(type(error).__name__, CODE_CHARS_MAX),
            backtrace=backtrace(error),
        )
    metadata = _metadata(took_ms, handler.version)
    return Result(step_id=step.step_id, delivery=step.delivery, status="failed", error=detail, metadata=metadata)


def stopped(step: StepRequest, reason: str, took_ms: float, version: str | None = None) -> Result:
    """The result of a run that stopped because of a timeout or a cancel."""
    text = "the run exceeded its timeout" if reason == "timeout" else f"the run was cancelled: {reason}"
    code = "timeout" if reason == "timeout" else "cancelled"
    if step.delivery_mode == "at_most_once":
        code = OUTCOME_UNKNOWN
    metadata = _metadata(took_ms, version)
    detail = ErrorDetail(message=text, code=code)
    return Result(step_id=step.step_id, delivery=step.delivery, status="failed", error=detail, metadata=metadata)


def sdk_failure(
    step: StepRequest, code: str, text: str, *, retryable: bool = False, took_ms: float | None = None
) -> Result:
    """The result of a handler that was called, but whose outcome the SDK cannot report."""
    if step.delivery_mode == "at_most_once":
        return _error(step, OUTCOME_UNKNOWN, f"{code}: {text}", retryable=None, took_ms=took_ms)
    return _error(step, code, text, retryable=retryable, took_ms=took_ms)


def encode_output(value: Any) -> bytes:
    """The output as JSON. Raises ValueError and others.

    The strict check is slow. It runs only for suspect outputs: long numbers, U+0000, many brackets, Raw.
    """
    body = _encode(value)
    # Called for every step. For bytes, `find` takes half the time of `in`, and `in` with a number a sixth.
    if body.find(b"null") >= 0 and not isinstance(value, Raw) and _has_no_number(value):
        raise ValueError(_NOT_A_NUMBER)  # the encoder writes null in its place
    is_suspect = (
        isinstance(value, Raw)
        or (_BACKSLASH in body and b"\\u0000" in body)
        or (len(body) > _BRACKETS_SAFE and body.count(b"{") + body.count(b"[") > _BRACKETS_SAFE)
        or body.translate(_DIGITS).find(_BIG) >= 0
    )
    if is_suspect:
        try:
            if isinstance(value, Raw):
                msgspec.json.decode(body)  # raises unless the body is exactly one value
            # The depth counts from the outside of a results message.
            strict_json.parse(b'{"results":[{"output":' + body + b"}]}", bytes_max=len(body) + 64)
        except (InvalidMessage, msgspec.DecodeError) as refusal:
            text = _REFUSED.get(refusal.code) if isinstance(refusal, InvalidMessage) else None
            raise ValueError(text or str(refusal)) from None
    return body


def _has_no_number(value: Any) -> bool:
    """Whether the output holds NaN or an infinity."""
    waiting = [msgspec.to_builtins(value)]
    while waiting:
        match waiting.pop():
            case float() as number if not math.isfinite(number):
                return True
            case dict() as members:
                waiting.extend(members.values())
            case list() | tuple() as elements:
                waiting.extend(elements)
    return False


def _reason(error: Exception) -> str:
    """The sentence about an output that cannot be sent: what is wrong, and what to return instead."""
    if isinstance(error, UnicodeEncodeError):
        return _HALF_A_PAIR
    if isinstance(error, OverflowError):
        return _TOO_LONG
    unsupported = _UNSUPPORTED.search(str(error))
    if unsupported:
        return f"it holds a value of the type {unsupported[1]}, which has no form in JSON: return plain data"
    return str(error)


def _advice(value: Any) -> str | None:
    """Advice to the author of a handler whose output is something that was never run. None for other outputs."""
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that the coroutine was never awaited
        return "the handler returns the call of an async function: await it"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return "the handler uses yield or returns a generator: return a value, for example a list"
    return None


def _metadata(took_ms: float, version: str | None) -> ResultMetadata:
    """The metadata of a result. The time is rounded to microseconds: brokers would check more digits as a long
    integer."""
    return ResultMetadata(execution_time_ms=round(took_ms, 3), handler_version=version)


def _error(step: StepRequest, code: str, text: str, *, retryable: bool | None, took_ms: float | None = None) -> Result:
    detail = ErrorDetail(message=clean(text), code=code, retryable=retryable)
    metadata = _EMPTY_METADATA if took_ms is None else _metadata(took_ms, None)
    return Result(step_id=step.step_id, delivery=step.delivery, status="error", error=detail, metadata=metadata)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _input_of(function: Callable[..., Any]) -> tuple[bool, Callable[[Any], Any]]:
    """Whether the function takes an input, and the decoder of that input."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return True, _decode_any
    if not parameters:
        raise ConfigurationError(f"handler {_name_of(function)} takes no parameter: it needs at least the Context")
    if len(parameters) == 1:
        return False, _decode_any
    if any(p.default is p.empty for p in parameters[2:]):
        raise ConfigurationError(
            f"handler {_name_of(function)}: it can have at most two parameters, the Context and the input"
        )
    try:
        hint = get_type_hints(target).get(parameters[1].name, Any)
    except (NameError, AttributeError, TypeError):
        hint = parameters[1].annotation
        if hint is parameters[1].empty or isinstance(hint, str):
            raise ConfigurationError(
                f"handler {_name_of(function)}: the type {hint!r} of its input is not defined in the handler's module"
            ) from None
    if hint is Any or hint is inspect.Parameter.empty:
        return True, _decode_any
    try:
        return True, msgspec.json.Decoder(hint).decode
    except TypeError as error:
        raise ConfigurationError(
            f"handler {_name_of(function)}: its input type cannot be read from JSON: {error}"
        ) from None
