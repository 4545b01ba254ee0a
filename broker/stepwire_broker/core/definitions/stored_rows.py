"""Rows of tasks, steps and workflows as the loader reads them from the database."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from stepwire_broker.core.membership.members import Members


class StoredStep(NamedTuple):
    """Columns of steps in the order the loader selects them. `output` is None when it is too large to stay resident."""

    id: int
    task_id: int
    position: int
    state: str
    attempt: int
    delivery: int
    accept_from: int
    batch_id: str | None
    worker: str | None
    granted: int
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    deadline_ms: int | None
    run_ms: int | None
    error: str | None
    reason: str | None
    key_number: int
    earlier: str | None
    handle: str | None
    output: str | None
    output_bytes: int


class StoredTask(NamedTuple):
    """Columns of tasks as the loader selects them. `context` is None when it is too large to stay resident."""

    id: int
    uid: str
    workflow_id: int
    lane: int
    namespace: str
    key: str | None
    state: str
    attention: str | None
    cancelling: int
    priority: int
    labels: str | None
    context: str | None
    context_bytes: int
    created_ms: int
    finished_ms: int | None
    deadline_ms: int | None
    stored: int  # 0: it was in a broker's memory, and its next change need not say so


class LeftBehind(NamedTuple):
    """Where to go on reading the tasks that the former owner of a lane had in memory: after this rank and this id, and
    only tasks that are older than the ownership."""

    lane: int
    rank_ms: int = -(2**63)
    id: int = 0
    before_id: int = 2**63 - 1


class StoredWorkflow(NamedTuple):
    id: int
    namespace: str
    name: str
    version: str
    digest: str
    document: str
    created_ms: int
    active: int


class Loaded(NamedTuple):
    """The result of a load of tasks."""

    tasks: list[StoredTask]
    steps: list[StoredStep]  # of these tasks, in the order of the tasks and by position
    wants: tuple[str, ...] = ()  # everything that stored tasks wait for, once each
    left_behind: tuple[tuple[int, LeftBehind | None], ...] = ()  # each lane, and where to go on; None: all were read


class Payloads(NamedTuple):
    """The result of a load of payloads: by task id and by step id."""

    contexts: dict[int, bytes]
    outputs: dict[int, bytes]


class StoredControl(NamedTuple):
    """A row of `controls`."""

    kind: str
    name: str
    value: str
    position: int


class StoredOrder(NamedTuple):
    """A command that another broker stored for the owner of a lane, and that has no answer yet."""

    lane: int
    id: int
    age_ms: int  # by the clock of the database
    request: str  # JSON


class Catalogue(NamedTuple):
    """The rows that every broker keeps in memory, as of one moment."""

    revision: int  # the highest of `controls`
    controls: list[StoredControl]
    workflows: list[StoredWorkflow]  # those that were asked for
    active: list[int]
    blocks: dict[int, int]  # by number: the lane


class TakenLane(Struct, frozen=True):
    """A lane as it is when this broker begins to own it. Its rows were read after the lane was taken."""

    lane: int
    epoch: int  # of the lane: the fence of its writer
    end: int  # the sequence of its last group
    ids: tuple[int, int]  # reserved in it for this broker, for tasks and steps: the first and the last
    open_tasks: int
    open_steps: Mapping[str, int]  # of open tasks, by namespace
    lease_ms: int  # the longest lease that workers may hold from a former owner; 0 if no broker owned the lane before
    blocks: tuple[int, ...] = ()  # the numbers of its blocks of ids
    unproven_ms: int = 0  # of the former owner's own lease, while it may still answer workers: added to the time above


class Opened(Struct, frozen=True):
    """The database content from which the core starts, read when the database was opened."""

    deployment: str  # 32 hex digits, drawn when the database was created
    epoch: int  # of this start; no other start of any broker on this database has it
    blocks: dict[int, int]  # by number: the lane of each block of ids in the database
    lanes: tuple[TakenLane, ...]  # may be empty: other brokers own the lanes
    workflows: list[StoredWorkflow]
    controls: list[StoredControl] = []  # by kind and name
    members: Members | None = None  # None: no other broker can use this database
    revision: int = 0  # the highest of `controls`
    is_shared: bool = False  # several brokers can use this database at a time

    @property
    def open_tasks(self) -> int:
        return sum(taken.open_tasks for taken in self.lanes)

    @property
    def open_steps(self) -> int:
        return sum(sum(taken.open_steps.values()) for taken in self.lanes)
