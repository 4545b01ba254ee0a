"""The queries that a store answers, one per method. Each adapter implements them in its own SQL.

A query runs in a reader's thread, sees committed rows, and returns at most a page.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from stepwire_protocol import limits

from stepwire_broker.core.commit.ports import LoadQueries
from stepwire_broker.core.definitions.stored_rows import StoredControl, StoredWorkflow
from stepwire_broker.core.model.commit_group import StepStderr

from .audit_chain import AuditChain, AuditRow
from .rows import (
    AuditFilter,
    EventRow,
    HistoryCursor,
    HistoryItem,
    LaneRow,
    ListPoint,
    OpenCounts,
    ParkedRow,
    SettledTask,
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
    """Every query of the broker. Rows that do not exist are left out, or are None."""

    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
        """Return a whole task. Outputs are included in the order of the steps, up to `outputs_bytes_max` in sum."""

    def erased_tasks(self) -> list[tuple[str, int]]:
        """Return the uid of each erased task, and when it was erased. Reads every task."""

    def task_state(self, task_id: int) -> str | None: ...

    def namespace_of(self, number: int) -> str | None:
        """Return the namespace of the task or the step that has this number."""

    def tasks(self, wanted: TaskFilter) -> list[TaskRow]:
        """The newest first."""

    def open_counts(self) -> dict[int, OpenCounts]:
        """By lane. A lane without open tasks is not here."""

    def open_task_ids(self, after: int, limit: int) -> list[int]:
        """Return the tasks of all brokers that have not ended, in the order of their ids."""

    def tasks_with_history(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[TaskWithHistory]:
        """Read these tasks and their whole history, as of one moment."""

    def list_end(self, wanted: TaskFilter | StepFilter, rows: int) -> ListPoint | None:
        """Return the point that this number of rows after `wanted.before` has in the list that `wanted` selects from,
        whatever else it selects; the last possible point if fewer rows follow. None: no row follows. A list of steps,
        except those held or failed, counts tasks."""

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step_id: int) -> StepRow | None: ...

    def steps(self, wanted: StepFilter) -> list[StepRow]:
        """Return steps without outputs, the newest first."""

    def step_stderr(self, step_id: int) -> StepStderr | None:
        """Return the end of the standard error of the step's latest run that reported any."""

    def stored_wants(self) -> list[str]:
        """Return everything that stored tasks of all lanes wait for, once each, in order."""

    def stored_counts(self, wants: Sequence[str], limit: int) -> dict[str, int]:
        """Count the stored tasks of all lanes by what they wait for, at most `limit` in sum. Read from the index."""

    def stored_counts_by_workflow(self, wants: Sequence[str], limit: int) -> dict[tuple[str, int], int]:
        """Count the same tasks by what they wait for and by workflow. Reads the tasks."""

    def oldest_stored_ms(self, wants: Sequence[str]) -> int | None:
        """Return when the oldest was submitted of those stored tasks that are loaded next, one of each lane and of each
        of `wants`."""

    def held_count(self) -> int:
        """Return the number of steps that wait for an operator."""

    # -- workflows ----------------------------------------------------------------------------------------------------

    def workflows(self) -> list[StoredWorkflow]:
        """Return every version of every workflow, with its document."""

    def workflow(self, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
        """Return this version, or the active version when `version` is None."""

    def workflow_rows(self, namespace: str | None) -> list[WorkflowRow]:
        """Return versions by name, and the versions of each name in the order in which they were applied."""

    # -- controls -----------------------------------------------------------------------------------------------------

    def controls(self) -> list[StoredControl]:
        """Return what operators and workers set at run time, by kind and name."""

    # -- orders -------------------------------------------------------------------------------------------------------

    def order_answers(self, order_ids: Sequence[int]) -> dict[int, str]:
        """Return the answers to these orders, as JSON. Orders without an answer are left out."""

    def settled_tasks(self, task_ids: Sequence[int]) -> list[SettledTask]:
        """Return those of these tasks that have ended, or that need an operator."""

    # -- history ------------------------------------------------------------------------------------------------------

    def lanes(self) -> list[LaneRow]:
        """Return every lane that ever existed: a follower of the history keeps a cursor for each."""

    def task_events(
        self, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[HistoryItem]:
        """Return a task's history in order, from the beginning or after (lane_id, seq, position)."""

    def events_from(self, lane_id: int, first: HistoryCursor, limit: int, task_id: int | None = None) -> list[EventRow]:
        """Return a lane's history in order, from the row at `first` inclusive; with `task_id`, only of that task. A
        later commit is later in its lane, so a follower skips nothing."""

    # -- the audit ----------------------------------------------------------------------------------------------------

    def audit_chains(self) -> list[AuditChain]:
        """Return the chain of each lane that has one, by lane."""

    def audit_rows(self, wanted: AuditFilter) -> list[AuditRow]:
        """The newest first."""

    # -- refused input ------------------------------------------------------------------------------------------------

    def parked(self, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
        """The newest first."""
