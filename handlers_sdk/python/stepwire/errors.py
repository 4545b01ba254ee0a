"""What a handler raises to say more than "it failed", and what the SDK raises at whoever set it up.

An ordinary exception is a failure that the step's policy may retry. These four say something else.
"""

from typing import Final

OUTCOME_UNKNOWN: Final = "outcome_unknown"


class ConfigurationError(ValueError):
    """The worker or client cannot be built as asked. The message names the setting and what it needs."""


class StepError(Exception):
    """A failure with a code of its own; retried by the step's policy, like any exception."""

    retryable: bool | None = True

    def __init__(self, message: str = "", *, code: str | None = None, category: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.category = category


class Permanent(StepError):
    """Trying again cannot help: a declined card, an address that does not exist."""

    retryable = False


class Retry(StepError):
    """Try again, but not before `after` seconds."""

    def __init__(
        self, message: str = "", *, after: float, code: str | None = None, category: str | None = None
    ) -> None:
        super().__init__(message, code=code, category=category)
        if not 0 <= after <= 10 * 365 * 86_400:
            raise ConfigurationError(f"Retry(after={after!r}): seconds, 0 or more, at most ten years")
        self.after_ms = int(after * 1000)


class OutcomeUnknown(StepError):
    """It may or may not have happened, and the handler cannot find out.

    An at_least_once step is tried again; an at_most_once step is held for an operator.
    """

    retryable = None

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message, code=OUTCOME_UNKNOWN, category=category)
