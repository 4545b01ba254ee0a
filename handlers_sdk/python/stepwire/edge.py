"""The edge between the wire and the handlers of a worker: opens a step before its handler, and closes its result after.

A step is opened by replacing its references to secrets. The result is closed by removing their values.
"""

from typing import Final, NamedTuple

from msgspec import structs
from stepwire_protocol.messages import Result, StepRequest

from . import secret_values
from .handler import not_opened
from .secret_files import SecretUnavailable
from .secret_values import SecretResolver

SECRET_UNAVAILABLE: Final = "secret_unavailable"


class OpenedStep(NamedTuple):
    """A step as its handler receives it, and the values of its secrets by name."""

    step: StepRequest
    values: dict[str, str]


class Edge:
    """The secrets of a worker."""

    def __init__(self, secrets: str | SecretResolver | None) -> None:
        self._resolver = secret_values.resolver_of(secrets)

    def is_needed(self, step: StepRequest) -> bool:
        """False if the step can be passed to its handler as it is. Cheap, because it is asked for every step."""
        return secret_values.may_need(step)

    def open(self, step: StepRequest) -> OpenedStep | Result:
        """The step for its handler, or the result of a step that cannot be opened: its handler is not called."""
        try:
            return OpenedStep(*secret_values.resolved(step, self._resolver))
        except SecretUnavailable as error:
            # The secret may arrive, or another worker may have it, so the step's policy decides about a retry.
            return not_opened(step, SECRET_UNAVAILABLE, str(error), category=error.category)

    def close(self, opened: OpenedStep, result: Result) -> Result:
        """The result as it may leave the worker."""
        if opened.values and result.status == "completed":
            return structs.replace(result, output=secret_values.without_values(result.output, opened.values))
        return result
