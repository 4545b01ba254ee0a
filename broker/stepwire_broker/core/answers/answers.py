"""The answers to commands. The API gives each its HTTP status; the embedded broker raises or returns it."""

from typing import Final, Literal, TypeAlias

from msgspec import Struct, json

from .hints import Hint

RefusedCode: TypeAlias = Literal[
    # the request itself
    "invalid",
    "too_large",
    "not_found",
    "wrong_state",
    "version_conflict",  # (namespace, name, version) exists with other content
    "key_conflict",  # the idempotency key belongs to another submission
    # the broker, as it is configured
    "no_executor",
    # the broker, now; try again later
    "too_many_open_steps",
    "quota",  # of a namespace; with `retry_after_ms` only if the same submission may be accepted later
    "overloaded",
    "draining",
    "starting",
    "database_locked",
    "disk_full",
    "database_read_only",
    "database_unavailable",
    "broker_dark",  # the broker could not renew its lease: the command may have been carried out
    "commit_unknown",  # the broker stopped or lost a lane: the command may have been carried out
    # the data, which the database refused
    "refused_by_database",
]


class Answer(Struct, frozen=True):
    """The answer to a command. The answers to operators are defined next to the handlers of their commands."""


class CommandRefused(Answer, frozen=True):
    """The command was not carried out, and nothing is stored. Only with `commit_unknown` or `broker_dark`
    it may have been."""

    code: RefusedCode
    message: str
    hint: Hint | None = None
    retry_after_ms: int | None = None
    limit: str = ""  # the limit of a namespace that a submission exceeded
    owner: str = ""  # the namespace


# Refusals of an order that say nothing about its command: the same broker, or the next owner, carries it out later.
PASSING: Final[frozenset[RefusedCode]] = frozenset(
    {"draining", "starting", "database_locked", "disk_full", "database_read_only", "database_unavailable"}
)


class ResultTaken(Answer, frozen=True):
    """The result of a step is stored, or can no longer matter: its worker may forget it."""


class TasksSubmitted(Answer, frozen=True):
    """`task_ids[i]` is the task of the i-th submission; it is new when `created[i]`."""

    task_ids: list[int]
    created: list[bool]


class Applied(Answer, frozen=True):
    workflow_id: int
    namespace: str
    name: str
    version: str
    created: bool


class Done(Answer, frozen=True):
    """The command took effect on this task. For AwaitTask: the task is terminal, or waits on a held step."""

    task_id: int
    state: str
    attention: str | None = None


def answer_text(answer: Answer) -> str:
    """Return the answer as JSON with its kind, for another broker: see sharing/order_texts.py."""
    return json.encode([type(answer).__name__, answer]).decode()
