"""What a command is answered. The API gives each its HTTP status; the embedded broker raises or returns it."""

from typing import Literal, TypeAlias

from msgspec import Struct

from .hints import Hint

RefusedCode: TypeAlias = Literal[
    # the request itself
    "invalid",
    "not_found",
    "wrong_state",
    "version_conflict",  # (namespace, name, version) exists with other content
    "key_conflict",  # the idempotency key belongs to another submission
    # the broker, as it is configured
    "no_executor",
    # the broker, now; try again later
    "too_many_open_steps",
    "overloaded",
    "draining",
    "starting",
    "database_locked",
    "disk_full",
    "database_read_only",
    "database_unavailable",
    # the data, after all
    "refused_by_database",
]


class CommandRefused(Struct, frozen=True, tag="refused"):
    """The command was not carried out, and nothing of it is stored."""

    code: RefusedCode
    message: str
    hint: Hint | None = None
    retry_after_ms: int | None = None


class TasksSubmitted(Struct, frozen=True, tag="submitted"):
    """`task_ids[i]` is the task of the i-th submission; it is new when `created[i]`."""

    task_ids: list[int]
    created: list[bool]


class Applied(Struct, frozen=True, tag="applied"):
    workflow_id: int
    namespace: str
    name: str
    version: str
    created: bool


class Done(Struct, frozen=True, tag="done"):
    """The command took effect on this task. For AwaitTask: the task is terminal, or waits on a held step."""

    task_id: int
    state: str
    attention: str | None = None


class Quieted(Struct, frozen=True, tag="quieted"):
    """The worker gets nothing new from now on. Its next heartbeat's ack tells it so."""

    worker: str
    quit: bool


class ExecutorPaused(Struct, frozen=True, tag="executor_paused"):
    """It is handed nothing since then (UTC); None: it is again."""

    executor: str
    since_ms: int | None


class BreakerSet(Struct, frozen=True, tag="breaker_set"):
    """A handler's breaker is as it was put."""

    handler_class: str
    state: str
    is_forced: bool


class Routed(Struct, frozen=True, tag="routed"):
    """Steps go by this rule now, or (`is_set` is False) by it no longer."""

    match: str
    is_set: bool


Answer: TypeAlias = CommandRefused | TasksSubmitted | Applied | Done | Quieted | ExecutorPaused | BreakerSet | Routed
