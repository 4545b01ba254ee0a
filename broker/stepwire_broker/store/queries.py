"""The questions that a store answers, one a method. Each adapter answers them in its own SQL.

A query runs in a reader's thread, sees what is committed, and returns at most a page.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from stepwire_protocol import limits

from stepwire_broker.core.commit.ports import LoadQueries
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow

from .rows import (
    EventRow,
    HistoryCursor,
    HistoryItem,
    LaneRow,
    OpenCounts,
    ParkedRow,
    StepFilter,
    StepRow,
    TaskFilter,
    TaskRecord,
    TaskRow,
    TaskWithHistory,
    WorkflowRow,
)

PAGE_ROWS_MAX: Final = 1_000


class Queries(LoadQueries, Protocol):
    """Every question that the broker asks its store. Rows that do not exist are left out, or are None."""

    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
        """With outputs in the order of the steps, while their sum is at most `outputs_bytes_max`."""

    def task_state(self, task_id: int) -> str | None: ...

    def tasks(self, wanted: TaskFilter) -> list[TaskRow]:
        """The newest first."""

    def open_counts(self) -> OpenCounts: ...

    def open_task_ids(self, after: int, limit: int) -> list[int]:
        """Tasks that have not ended, whichever broker owns them, in the order of their ids."""

    def tasks_with_history(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[TaskWithHistory]:
        """Read these tasks and everything that happened to them, as of one moment."""

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step_id: int) -> StepRow | None: ...

    def steps(self, wanted: StepFilter) -> list[StepRow]:
        """The newest first, without outputs."""

    def held_count(self) -> int:
        """The number of steps that wait for an operator."""

    # -- workflows ----------------------------------------------------------------------------------------------------

    def workflows(self) -> list[StoredWorkflow]:
        """Every version of every workflow, with its document."""

    def workflow(self, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
        """The named version, or the active one when `version` is None."""

    def workflow_rows(self, namespace: str | None) -> list[WorkflowRow]:
        """By name, and the versions of each name in the order they were applied."""

    # -- history ------------------------------------------------------------------------------------------------------

    def lanes(self) -> list[LaneRow]:
        """Every lane that ever existed: a follower of the history keeps a cursor for each."""

    def task_events(
        self, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[HistoryItem]:
        """A task's history in order, from the beginning or after (lane_id, seq, position)."""

    def events_from(self, lane_id: int, first: HistoryCursor, limit: int, task_id: int | None = None) -> list[EventRow]:
        """A lane's history in order, from the row at `first`, that row included; with `task_id`, of that task only.
        A later commit is later in its lane, so a follower skips nothing."""

    # -- refused input ------------------------------------------------------------------------------------------------

    def parked(self, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
        """The newest first."""
