"""Sealed steps at a worker: the handler works with plaintext, and only sealed outputs and errors leave the worker.

A step is sealed if its context is. The broker stores no unsealed output of such a step.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, structs
from stepwire_protocol import sealed_payloads
from stepwire_protocol.messages import ErrorDetail, Result, StepRequest
from stepwire_protocol.sealed_payloads import SealedTask

from .sealing import NotUnsealed, SealKeys

ERROR_BYTES_MAX: Final = 5_000  # of an error's text as JSON: sealed, it fits into the 8 KiB that a broker stores
MESSAGE_CHARS_MAX: Final = 1_000

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def task_of(step: StepRequest) -> SealedTask | None:
    """The task for which the context of this step was sealed; None if it is not sealed."""
    raw = bytes(step.task_context)
    value = _decode(raw) if sealed_payloads.may_be(raw) else None
    if value is None or not sealed_payloads.is_sealed(value):
        return None
    try:
        return msgspec.convert(value.get("task"), SealedTask)
    except msgspec.ValidationError:
        raise NotUnsealed("the context is sealed, and does not name its task") from None


def unsealed(step: StepRequest, task: SealedTask, keys: SealKeys) -> StepRequest:
    """The step with plaintext: its context, and the outputs of the steps that it depends on. An `input` stays as it is,
    because it is made of clear members. Raises NotUnsealed."""
    context = keys.unseal("context", task, None, _decode(step.task_context))
    outputs = {
        name: Raw(keys.unseal("output", task, name, output)) if sealed_payloads.is_sealed(output) else output
        for name, output in _decode(step.previous_results).items()
    }
    return structs.replace(step, task_context=Raw(context), previous_results=Raw(_encode(outputs)))


def sealed(step: StepRequest, task: SealedTask, keys: SealKeys, result: Result) -> Result:
    """The result with a sealed output or error. `code` and `category` stay readable if they are words."""
    if result.status == "completed":
        output = keys.seal("output", task, step.step_name, bytes(result.output))
        return structs.replace(result, output=Raw(output))
    if result.error is None:
        return result
    return structs.replace(result, error=_sealed_error(step, task, keys, result.error))


def _sealed_error(step: StepRequest, task: SealedTask, keys: SealKeys, error: ErrorDetail) -> ErrorDetail:
    lines = error.backtrace if isinstance(error.backtrace, list) else [error.backtrace] if error.backtrace else []
    text: dict[str, Any] = {"message": error.message[:MESSAGE_CHARS_MAX], "backtrace": list(lines)}
    while len(plaintext := _encode(text)) > ERROR_BYTES_MAX:
        if not text["backtrace"]:
            text["message"] = text["message"][: len(text["message"]) // 2]
        text["backtrace"] = text["backtrace"][1:]  # the last lines explain most
    return structs.replace(
        error,
        message=sealed_payloads.ERROR_MESSAGE,
        code=sealed_payloads.plain_word(error.code),
        category=sealed_payloads.plain_word(error.category),
        backtrace=[keys.seal("error", task, step.step_name, plaintext).decode()],
    )


def may_be_sealed(step: StepRequest) -> bool:
    """False if the step certainly is not sealed. Cheap, because it is asked for every step."""
    return sealed_payloads.may_be(bytes(step.task_context))
