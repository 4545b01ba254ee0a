"""One step of a compiled workflow: what runs it, when, and how often."""

from enum import StrEnum
from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct
from stepwire_protocol.messages import EMPTY_OBJECT, DeliveryMode

from .trigger_rules import TriggerRule

RETRY_LIMIT_DEFAULT: Final = 3
TIMEOUT_DEFAULT_MS: Final = 30_000

Mapping: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]  # (member, path); a path begins with context or results
OnUnknown: TypeAlias = Literal["hold", "fail"]


class StepKind(StrEnum):
    HANDLER = "handler"  # a handler does the work, on a worker: the step names a handler_class


class BackoffPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pause before the next attempt. `jitter: full` draws it evenly between 0 and the whole pause."""

    kind: Literal["exponential", "constant"] = "exponential"
    base_ms: int = 1_000
    max_ms: int = 300_000
    jitter: Literal["full", "none"] = "full"


class StepDefinition(Struct, frozen=True, kw_only=True):
    """One step of a workflow, with every default filled in and every name resolved to an index."""

    index: int
    name: str
    kind: StepKind
    handler_class: str
    depends_on: tuple[int, ...] = ()
    dependents: tuple[int, ...] = ()
    handler_config: Raw = EMPTY_OBJECT
    delivery_mode: DeliveryMode = "at_least_once"
    on_unknown: OnUnknown = "hold"
    retry_limit: int = RETRY_LIMIT_DEFAULT  # retries after the first attempt
    retry_reported_failures: bool = False
    backoff: BackoffPolicy = BackoffPolicy()
    timeout_ms: int = TIMEOUT_DEFAULT_MS  # one run, from its start
    queue_timeout_ms: int | None = None
    deadline_ms: int | None = None  # all attempts together, from when the step was first ready
    priority: int = 0
    trigger_rule: TriggerRule | None = None
    allow_failure: bool = False
    input: Mapping | None = None
    worker_selector: dict[str, str] | Literal["local"] | None = None
