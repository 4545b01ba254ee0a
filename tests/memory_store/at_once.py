"""The store in memory for tests without time: a group is written in one call, by the shipped `Writing`, and a read is
answered in one call, by the shipped claims stage.
"""

from collections import Counter

from stepwire_broker.core.commit.decision import Read
from stepwire_broker.core.commit.history import ReplayDifference, differences, replay
from stepwire_broker.core.definitions.stored_rows import StoredControl, StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.commit_group import CommitGroup, Committed, Parked, TaskNew
from stepwire_broker.stages import claims
from stepwire_broker.store.lane import Rows, Writing

from .queries import MemoryQueries
from .tables import DataRefused, LoggedRow, Tables
from .writer import MemoryWriter


class StoreAtOnce:
    """`refuses` are tasks whose rows the database refuses, from the next group on."""

    def __init__(self, lanes: int = 1) -> None:
        self.tables = Tables(lanes)
        self.queries = MemoryQueries(self.tables)
        self.refuses: set[int] = set()
        self.refuses_submissions = False

    def begin(self, epoch: int) -> None:
        """Fence every writer of an earlier epoch."""
        for lane in self.tables.lanes:
            self.tables.take(lane, "b1", epoch)

    def write(self, group: CommitGroup) -> Committed:
        writer = MemoryWriter(self.tables, group.lane, self._refuse)
        outcome = Writing(group.lane, writer, group).attempt()
        assert isinstance(outcome, Committed), outcome
        return outcome

    def again(self, group: CommitGroup) -> None:
        """Write the absolute rows of a group a second time: nothing may change."""
        changed = (group.steps_dispatched, group.steps_completed, group.steps_changed)
        ids = [row.id for rows in changed for row in rows]
        assert len(ids) == len(set(ids)), "a step is in two lists of changes, and lists have no order"
        tasks = [row for row in group.tasks_changed if row.id in self.tables.tasks]
        self.tables.write(Rows([], [], *changed, group.steps_output, group.steps_stderr, tasks, []), [])

    def _refuse(self, rows: Rows) -> None:
        if self.refuses_submissions and rows.tasks_new:
            raise DataRefused("refused for the test")
        steps = (*rows.steps_dispatched, *rows.steps_completed, *rows.steps_changed, *rows.steps_output)
        touched = {self.tables.steps[row.id].stored.task_id for row in steps if row.id in self.tables.steps}
        touched |= {row.id for row in rows.tasks_changed} | {row.task_id for row in rows.history}
        if touched & self.refuses:
            raise DataRefused("refused for the test")

    def read(self, read: Read, now_ms: int, resident_bytes_max: int) -> claims.ReadDone:
        return claims.perform(self.queries, resident_bytes_max, read, now_ms)

    # -- rows ---------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[int, TaskNew]:
        return self.tables.tasks

    @property
    def steps(self) -> dict[int, StoredStep]:
        return {step_id: row.stored for step_id, row in self.tables.steps.items()}

    @property
    def history(self) -> dict[int, list[LoggedRow]]:
        return {task_id: rows for task_id, rows in self.tables.history.items() if rows}

    @property
    def parked(self) -> list[Parked]:
        return list(self.tables.parked.values())

    @property
    def controls(self) -> list[StoredControl]:
        return self.queries.controls()

    @property
    def active(self) -> set[int]:
        return {row.id for row in self.tables.workflows.values() if row.active}

    @property
    def open_tasks(self) -> int:
        return sum(counts.tasks for counts in self.queries.open_counts().values())

    @property
    def open_steps(self) -> int:
        return sum(self.open_by_namespace.values())

    @property
    def open_by_namespace(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for lane in self.queries.open_counts().values():
            counts.update(lane.steps)
        return dict(counts)

    def task(self, task_id: int) -> StoredTask:
        return self.tables.stored_task(task_id)

    def steps_of(self, task_id: int) -> list[StoredStep]:
        return self.tables.stored_steps(task_id)

    def forge_step(self, step_id: int, **columns: object) -> None:
        """Change columns behind the broker's back."""
        row = self.tables.steps[step_id]
        self.tables.steps[step_id] = row._replace(stored=row.stored._replace(**columns))

    def differences(self, task_id: int, workflow: Workflow) -> list[ReplayDifference]:
        """Where this task's rows and its history disagree."""
        replayed = replay(task_id, workflow, [row.facts for row in self.history[task_id]])
        return differences(replayed, self.task(task_id), self.steps_of(task_id))
