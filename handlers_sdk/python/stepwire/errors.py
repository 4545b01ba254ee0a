"""Every exception of the SDK. All of them are a `StepwireError`.

    StepwireError
    ├── ConfigurationError      a worker, handler, workflow or client cannot be set up like this
    ├── StepError               raised by handlers: the step failed
    │   ├── Permanent           the step failed, and a retry cannot help
    │   ├── Retry               the step failed, and may be retried after a pause
    │   └── OutcomeUnknown      the handler cannot know whether the step had its effect
    ├── ClientError             raised by `Client`: the broker refused, or did not answer
    │   ├── Unreachable
    │   ├── NotFound
    │   ├── Denied
    │   ├── WrongState
    │   ├── Overloaded
    │   └── WaitTimeout
    └── MissingPayload          raised by a document of `Client` whose token lacks the scope `inspect`

A handler may raise any exception. An ordinary one is a failure that the step's policy may retry; a StepError is more
precise.
"""

from typing import Any, Final

from stepwire_protocol.errors import StepwireError as StepwireError

OUTCOME_UNKNOWN: Final = "outcome_unknown"
RETRY_AFTER_MAX_S: Final = 10 * 365 * 86_400


class ConfigurationError(StepwireError, ValueError):
    """A worker, handler, workflow or client cannot be set up as requested. The message names the setting at fault."""


class StepError(StepwireError):
    """The step failed, with a code from the handler. The step's policy decides about a retry, as for any exception."""

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

    The broker retries an at_least_once step, and holds an at_most_once step for an operator.
    """

    retryable = None

    def __init__(self, message: str = "", *, category: str | None = None) -> None:
        super().__init__(message, code=OUTCOME_UNKNOWN, category=category)


class ClientError(StepwireError):
    """The broker refused a call, or did not answer it.

    `status` is the HTTP status, or 0 without an answer. The broker sets `code` (the problem), `hint` (the next action)
    and `next` (the hint for programs: a code with parameters). With `retry_after_ms`, the same call may succeed after
    that time. `may_be_done`: the call was sent at least once without an answer, so the broker may have performed it.
    """

    may_be_done = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        hint: str = "",
        next: dict[str, Any] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{message.rstrip('.')}; {hint}" if hint else message)
        self.message = message
        self.status = status
        self.code = code
        self.hint = hint
        self.next = next
        self.retry_after_ms = retry_after_ms


class Unreachable(ClientError):
    """No answer arrived in the time that the client waits for one (`outage_s`)."""


class NotFound(ClientError):
    """404: no task, step, workflow, worker or executor has this id or name."""


class Denied(ClientError):
    """401 or 403: the token is missing or wrong, or does not allow this call."""


class MissingPayload(StepwireError, KeyError):
    """The answer has no such member, because the token lacks the scope `inspect`."""

    __str__ = Exception.__str__  # a KeyError would quote its text


class WrongState(ClientError):
    """409: the state of the task or step does not allow the call, or the key or version exists with other content."""


class Overloaded(ClientError):
    """429 or 503: the broker accepted nothing, also not in the time that the client waits (`outage_s`)."""


class WaitTimeout(ClientError):
    """The time to wait is over. The task continues."""

    def __init__(self, task_id: int, state: str) -> None:
        super().__init__(f"task {task_id} is still {state}", code="still_running")
        self.task_id = task_id
