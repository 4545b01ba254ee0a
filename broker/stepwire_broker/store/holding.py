"""Changes of stored tasks while no broker runs, made by the core, so that the history has every change.

A database that may lack its latest commits becomes a new deployment. Every at_most_once step that has not ended in it
is held: it may have started since, and only an operator can find out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.definitions.stored_rows import Opened
from stepwire_broker.core.definitions.workflow import stored_workflow
from stepwire_broker.core.loading import residency
from stepwire_broker.core.model.apply import unlink
from stepwire_broker.core.model.commit_group import Committed
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.model.states import TaskState
from stepwire_broker.core.progress.step_outcomes import hold_restored
from stepwire_broker.core.reading.document_problems import InvalidWorkflow
from stepwire_broker.core.state import BrokerState, Identity

from .errors import StoreRefused
from .lane import LaneWriter, Writing
from .stored_state import StoredState

PAGE_TASKS: Final = 500
BLOCKS_UNKNOWN: Final = 1_000  # of ids, that lost commits may have used, when their number is unknown

Progress: TypeAlias = Callable[[str, int, int], object]  # the name of the work, the amount done, the whole amount


class StoredTasks:
    """The tasks of all lanes, a page at a time, and the core that changes them."""

    def __init__(
        self, broker_id: str, opened: Opened, writers: Mapping[int, LaneWriter], stored: StoredState, now: Now
    ) -> None:
        self.now = now
        self.state = _core(broker_id, opened, now)
        self._writers = writers
        self._stored = stored

    def load(self, task_ids: Sequence[int]) -> list[Task]:
        state = self.state
        loaded = self._stored.read(lambda queries: queries.load_tasks(task_ids, 0))
        rows = iter(loaded.steps)
        return [
            residency.restored(workflow, row, [next(rows) for _ in workflow.steps])
            for row, workflow in ((row, state.workflows[row.workflow_id]) for row in loaded.tasks)
        ]

    def write(self) -> None:
        """Write what the core has changed since, one group in each lane."""
        for lane in list(self.state.outbox.lanes):
            group = self.state.outbox.close(lane, self.now)
            if group is None:
                continue
            outcome = Writing(lane, self._writers[lane], group).attempt()
            if not isinstance(outcome, Committed) or outcome.rejected:
                raise StoreRefused(f"a change could not be written: {outcome}")
            self.state.outbox.committed(lane, group.seq)

    def forget(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            unlink(task)

    def hold(self, open_tasks: int, progress: Progress) -> "HeldSteps":
        """Hold every step that must not start twice."""
        tasks_held = steps_held = checked = after = 0
        while task_ids := self._open_task_ids(after):
            after = task_ids[-1]
            tasks = self.load(task_ids)
            for task in tasks:
                count = hold_restored(self.state, task, self.now)
                steps_held += count
                tasks_held += count > 0
                # A task that was never loaded stays unloaded. Every other task is stored as if its broker had died.
                task.evicting = task.state is TaskState.PENDING
            self.write()
            self.forget(tasks)
            checked += len(task_ids)
            progress("tasks checked", checked, open_tasks)
        return HeldSteps(tasks_held, steps_held)

    def _open_task_ids(self, after: int) -> list[int]:
        return self._stored.read(lambda queries: queries.open_task_ids(after, PAGE_TASKS))


class HeldSteps(NamedTuple):
    tasks: int
    steps: int


def _core(broker_id: str, opened: Opened, now: Now) -> BrokerState:
    identity = Identity(broker_id, opened.epoch, opened.deployment, batch_key=b"")
    state = BrokerState.begin(Settings(), identity, opened, now)
    for row in opened.workflows:
        try:
            state.workflows[row.id] = stored_workflow(row)
        except InvalidWorkflow as error:
            raise StoreRefused(f"workflow {row.namespace}::{row.name} {row.version} cannot be read: {error}") from error
    return state
