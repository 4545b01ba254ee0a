"""The source of a worker's secrets, and the replacement of references in a step.

A reference counts in `handler_config`, and in the input of the handler: `input` if the workflow defines one, otherwise
the task's context. Outputs of other steps are data: a reference in `previous_results` stays a reference.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Raw, structs
from stepwire_protocol import secret_references
from stepwire_protocol.messages import StepRequest

from . import secret_files
from .redaction import OUTPUT_CHARS_MIN, Redactor, remember
from .secret_files import SecretUnavailable

DIRECTORY: Final = "STEPWIRE_SECRETS_DIR"

SecretResolver: TypeAlias = Callable[[str], str | None]  # the value of the secret with this name, or None

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class SecretValues(NamedTuple):
    """A step with the values of its secrets, and these values by their names."""

    step: StepRequest
    values: dict[str, str]


def resolver_of(source: str | SecretResolver | None) -> SecretResolver:
    """The resolver for a directory, for a function, or for a worker without secrets."""
    if callable(source):
        return source
    if source:
        directory = source
        return lambda name: secret_files.read_secret(directory, name)
    return _no_source


def may_need(step: StepRequest) -> bool:
    """False if the step certainly names no secret."""
    return secret_references.may_hold(bytes(step.handler_config)) or secret_references.may_hold(bytes(_input_of(step)))


def resolved(step: StepRequest, resolver: SecretResolver) -> SecretValues:
    """The step with the value in the place of each reference. Raises SecretUnavailable.

    Each secret is read once for a step, so its values agree with each other, and again for the next step, so a rotated
    secret is used at once.
    """
    values: dict[str, str] = {}

    def value_of(name: str) -> str:
        if name not in values:
            values[name] = _value_of(name, resolver)
        return values[name]

    changes: dict[str, Any] = {"handler_config": _replaced(step.handler_config, value_of)}
    changes["task_context" if step.input is UNSET else "input"] = _replaced(_input_of(step), value_of)
    step = structs.replace(step, **changes)
    remember(values)
    return SecretValues(step, values)


def without_values(output: Raw, values: dict[str, str]) -> Raw:
    """The output with the names of secrets in the place of these values, if they are long enough."""
    redactor = Redactor()
    for name, value in values.items():
        if len(value) >= OUTPUT_CHARS_MIN:
            redactor.add(name, value)
    return Raw(_encode(redactor.redacted(_decode(output)))) if redactor.is_active else output


def _replaced(raw: Raw, value_of: Callable[[str], str]) -> Raw:
    if not secret_references.may_hold(bytes(raw)):
        return raw
    value = _decode(raw)
    for _, fault in secret_references.faults(value):
        raise SecretUnavailable(fault)  # the broker checks references, but not the outputs of which it makes an `input`
    return Raw(_encode(secret_references.replaced(value, value_of)))


def _value_of(name: str, resolver: SecretResolver) -> str:
    try:
        value = resolver(name)
    except SecretUnavailable:
        raise
    except Exception as error:  # its text may hold anything
        text = f"secret {name!r}: the resolver of this worker failed with {type(error).__name__}"
        raise SecretUnavailable(text, is_service_at_fault=True) from None
    if value is None:
        raise SecretUnavailable(f"secret {name!r}: the resolver of this worker does not know it")
    if not isinstance(value, str) or not value:
        raise SecretUnavailable(f"secret {name!r}: the resolver of this worker returned no text")
    return value


def _input_of(step: StepRequest) -> Raw:
    return step.task_context if step.input is UNSET else step.input


def _no_source(name: str) -> str:
    raise SecretUnavailable(
        f"secret {name!r}: this worker reads no secrets: set {DIRECTORY} to a directory of files, or pass "
        "Worker(secrets=...)"
    )
