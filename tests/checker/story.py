"""The story of a task: what its history adds up to, and every offence against the language."""

from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from .plans import Plan, StepPlan

Fact: TypeAlias = list[Any]  # [kind, at, …] or, of a step, [kind, at, step, …]


MOVING: Final = frozenset({"ready", "dispatched", "retry_wait"})
STEP_FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
TASK_FINAL: Final = frozenset({"completed", "failed", "cancelled"})
# By fact: the state before it, and the state after it.
STEP_MOVES: Final[dict[str, dict[str, str]]] = {
    "readied": {"waiting": "ready", "retry_wait": "ready"},
    "dispatched": {"ready": "dispatched"},
    "granted": {"dispatched": "dispatched"},
    "started": {"dispatched": "dispatched"},
    "undelivered": dict.fromkeys(("dispatched", "held"), "ready"),
    "completed": dict.fromkeys(("dispatched", "ready", "retry_wait", "held"), "completed"),
    "backed_off": {"dispatched": "retry_wait", "held": "retry_wait"},
    "failed": dict.fromkeys(("dispatched", "held", "ready", "retry_wait"), "failed"),
    "held": {"dispatched": "held"},
    "restored": dict.fromkeys(("waiting", "ready", "dispatched", "retry_wait"), "held"),
    "skipped": {"waiting": "skipped"},
    "cancelled": dict.fromkeys(("waiting", "ready", "retry_wait", "dispatched"), "cancelled"),
    "reopened": dict.fromkeys(
        ("completed", "failed", "cancelled", "skipped", "held", "ready", "retry_wait"), "waiting"
    ),
}
TASK_MOVES: Final[dict[str, dict[str, str]]] = {
    "activated": {"pending": "running"},
    "paused": {"running": "paused"},
    "resumed": {"paused": "running"},
    "task_reopened": dict.fromkeys(TASK_FINAL, "running"),
    "ended": {"running": "", "paused": ""},  # the fact names the state
}


class DeliveryStory(Struct, gc=False):
    """One delivery of a step."""

    number: int
    worker: str
    batch_id: str
    at: int
    seq: int  # of the group that wrote it
    attempt: int
    key_number: int
    inputs: tuple[int | None, ...]  # by dependency: the CRC-32 of its output, None without one
    granted_seq: int | None = None
    started_at: int | None = None


class Outcome(NamedTuple):
    """The outcome of a delivery, or of a step between deliveries."""

    kind: str  # completed, backed_off, failed, held, undelivered, cancelled
    delivery: int
    code: str
    at: int
    seq: int
    by_operator: bool = False
    bytes: int = 0
    crc32: int = 0


class Reopening(NamedTuple):
    """An operator's retry of a step: results of earlier deliveries no longer count."""

    accept_from: int  # the first delivery that counts
    seq: int


class StepStory(Struct):
    """The columns that a step's row must have, and the events that led to them."""

    plan: StepPlan
    index: int
    state: str = "waiting"
    attempt: int = 0
    delivery: int = 0
    accept_from: int = 0
    batch_id: str | None = None
    worker: str | None = None
    granted: bool = False
    lost_sessions: int = 0
    ready_ms: int | None = None
    dispatched_ms: int | None = None
    started_ms: int | None = None
    not_before_ms: int | None = None
    finished_ms: int | None = None
    run_ms: int | None = None
    reason: str | None = None
    key_number: int = 0
    output_bytes: int = 0
    output_crc32: int | None = None
    deliveries: list[DeliveryStory] = []
    outcomes: list[Outcome] = []
    reopenings: list[Reopening] = []

    def delivery_of(self, number: int) -> DeliveryStory | None:
        return self.deliveries[number - 1] if 0 < number <= len(self.deliveries) else None


class Offence(NamedTuple):
    rule: str
    step: int | None
    what: str


class TaskStory(Struct):
    plan: Plan
    uid: str = ""
    state: str = ""
    attention: str | None = None
    cancelling: bool = False
    created_ms: int = 0
    finished_ms: int | None = None
    submitted_seq: int = 0
    first_step_id: int = 0
    cancel_asked_at: int | None = None
    steps: list[StepStory] = []
    offences: list[Offence] = []
    operated: list[tuple[str, int | None, int]] = []  # action, step, seq
    ordered: tuple[str, int | None] | None = None  # the fact that must follow in the same group, and its step
    ended_states: list[str] = []
    facts: int = 0
    seq: int = 0  # of the group that is being read

    def offend(self, rule: str, step: int | None, what: str) -> None:
        self.offences.append(Offence(rule, step, what))

    def is_operated(self, action: str, step: int | None) -> bool:
        """Return whether an operator's command for this is in the same transaction."""
        return any(a == action and s in (step, None) and q == self.seq for a, s, q in self.operated)
