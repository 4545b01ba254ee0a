"""Every exception of the SDK. All of them are a `StepwireError`.

    StepwireError
    ├── ConfigurationError      a worker, handler, workflow or client cannot be set up like this
    ├── StepError               raised by handlers: the step failed
    │   ├── Permanent           and no retry can help
    │   ├── Retry               and may be retried after a pause
    │   └── OutcomeUnknown      or not: the handler cannot know
    └── ClientError             raised by `Client`: the broker refused, or did not answer
        ├── Unreachable
        ├── NotFound
        ├── Denied
        ├── WrongState
        ├── Overloaded
        └── WaitTimeout

A handler may raise any exception. An ordinary one is a failure that the step's policy may retry; a StepError is more
precise.
"""

from typing import Any, Final

OUTCOME_UNKNOWN: Final = "outcome_unknown"
RETRY_AFTER_MAX_S: Final = 10 * 365 * 86_400


class StepwireError(Exception):
    """The base of every exception that this SDK raises, or that handlers raise for it."""


class ConfigurationError(StepwireError, ValueError):
    """A worker, handler, workflow or client cannot be set up as requested. The message names the setting at fault."""


class StepError(StepwireError):
    """The step failed, with a code of its own; retried by the step's policy, like any exception."""

    retryable: bool | None = True

    def __init__(self, message: str = "", *, code: str | None = None, category: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.category = category


class Permanent(StepError):
    """The step failed, and a retry cannot help: a declined card, an address that does not exist."""

    retryable = False


class Retry(StepError):
    """The step failed, and must not be retried before `after` seconds."""

    def __init__(
        self, message: str = "", *, after: float, code: str | None = None, category: str | None = None
    ) -> None:
        super().__init__(message, code=code, category=category)
        if not 0 <= after <= RETRY_AFTER_MAX_S:
            raise ConfigurationError(f"Retry(after={after!r}): seconds, 0 or more, at most ten years")
        self.after_ms = int(after * 1000)


class OutcomeUnknown(StepError):
    """The effect may or may not have happened, and the handler cannot find out.

    An at_least_once step is retried; an at_most_once step is held for an operator.
    """

    retryable = None

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message, code=OUTCOME_UNKNOWN, category=category)


class ClientError(StepwireError):
    """The broker refused a call, or did not answer it.

    `status` is the HTTP status, 0 without an answer. `code` and `hint` come from the broker: what is wrong, and what to
    do next; `next` is the same hint for programs: a code and its parameters.
    """

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", hint: str = "", next: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.status = status
        self.code = code
        self.hint = hint
        self.next = next


class Unreachable(ClientError):
    """No answer came. A call that is not safe to repeat may have been carried out all the same."""


class NotFound(ClientError):
    """404: no task, step, workflow, worker or executor has this id or name."""


class Denied(ClientError):
    """401 or 403: the token is missing or wrong, or does not allow this call."""


class WrongState(ClientError):
    """409: the state of the task or step does not allow this, or the key or version already means something else."""


class Overloaded(ClientError):
    """429 or 503, also after the retries: nothing was accepted."""


class WaitTimeout(ClientError):
    """The wait is over, and the task still runs and goes on."""

    def __init__(self, task_id: int, state: str) -> None:
        super().__init__(f"task {task_id} is still {state}", code="still_running")
        self.task_id = task_id
