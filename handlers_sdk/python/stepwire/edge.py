"""The edge between the wire and the handlers of a worker: opens a step before its handler, and closes its result after.

A step is opened by unsealing its context and the outputs before it, and by replacing its references to secrets. The
result is closed by removing the values of secrets, and by sealing it.
"""

import resource
from typing import Final, NamedTuple

from msgspec import structs
from stepwire_protocol.messages import Result, StepRequest
from stepwire_protocol.sealed_payloads import SealedTask

from . import sealed_steps, secret_values
from .handler import not_opened
from .sealing import FILE, NotUnsealed, SealKeys
from .secret_files import SecretUnavailable
from .secret_values import SecretResolver

SECRET_UNAVAILABLE: Final = "secret_unavailable"
NOT_UNSEALED: Final = "not_unsealed"


class OpenedStep(NamedTuple):
    """A step as its handler receives it, the values of its secrets by name, and the task of a sealed step."""

    step: StepRequest
    values: dict[str, str]
    task: SealedTask | None


class Edge:
    """The secrets and the seal keys of a worker. A process that has any writes no core dumps."""

    def __init__(self, secrets: str | SecretResolver | None, seal_keys_file: str | None = None) -> None:
        self._resolver = secret_values.resolver_of(secrets)
        self._keys = SealKeys.of_file(seal_keys_file) if seal_keys_file else None
        if secrets or seal_keys_file:
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    def is_needed(self, step: StepRequest) -> bool:
        """False if the step can be passed to its handler as it is. Cheap, because it is asked for every step."""
        return secret_values.may_need(step) or sealed_steps.may_be_sealed(step)

    def open(self, step: StepRequest) -> OpenedStep | Result:
        """The step for its handler, or the result of a step that cannot be opened: its handler is not called."""
        task: SealedTask | None = None
        try:
            task = sealed_steps.task_of(step)
            plain = step if task is None else sealed_steps.unsealed(step, task, self._needed_keys())
            return OpenedStep(*secret_values.resolved(plain, self._resolver), task)
        except NotUnsealed as error:
            return not_opened(step, NOT_UNSEALED, str(error))  # another worker may have the key
        except SecretUnavailable as error:
            # The secret may arrive, or another worker may have it, so the step's policy decides about a retry.
            result = not_opened(step, SECRET_UNAVAILABLE, str(error), category=error.category)
            return result if task is None else sealed_steps.sealed(step, task, self._needed_keys(), result)

    def close(self, opened: OpenedStep, result: Result) -> Result:
        """The result as it may leave the worker."""
        if opened.values and result.status == "completed":
            result = structs.replace(result, output=secret_values.without_values(result.output, opened.values))
        if opened.task is None:
            return result
        return sealed_steps.sealed(opened.step, opened.task, self._needed_keys(), result)

    def _needed_keys(self) -> SealKeys:
        if self._keys is None:
            raise NotUnsealed(f"the step is sealed, and this worker has no keys: set {FILE}")
        return self._keys
