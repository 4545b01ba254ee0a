"""Station two, claims: read tasks from the database into memory. The core decides which tasks are read.

These functions run in a reader's thread and see committed rows.
"""

from stepwire_broker.core.commit.decision import FetchPayloads, LoadById, LoadBySteps, LoadPage, Read
from stepwire_broker.core.commit.ports import LoadQueries
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.model.events import LoadedPayloads, LoadedTasks
from stepwire_broker.core.model.states import TASK_FINAL


def perform(queries: LoadQueries, resident_bytes_max: int, read: Read, now_ms: int) -> LoadedTasks | LoadedPayloads:
    """Do a read that the core decided on. Returns the event for the core.

    Payloads larger than `resident_bytes_max` stay in the database."""
    match read:
        case LoadPage():
            loaded = queries.load_page(read.limit, read.lanes, read.wants, now_ms, resident_bytes_max)
            return LoadedTasks(loaded, read.request)
        case LoadById():
            return LoadedTasks(queries.load_tasks(read.task_ids, resident_bytes_max), read.request)
        case LoadBySteps():
            return _by_steps(queries, resident_bytes_max, read)
        case FetchPayloads():
            payloads = queries.load_payloads(read.task_ids, read.step_ids)
            return LoadedPayloads(payloads, read.request)


def _by_steps(queries: LoadQueries, resident_bytes_max: int, read: LoadBySteps) -> LoadedTasks:
    """Load the tasks of these steps. A task that has ended is not loaded, because any result for it is late."""
    tasks_of_steps = queries.tasks_of_steps(read.step_ids)
    wanted = {task_id for task_id, state in tasks_of_steps.values() if read.any_state or state not in TASK_FINAL}
    loaded = Loaded([], [])
    if wanted:
        loaded = queries.load_tasks(sorted(wanted), resident_bytes_max)
    loaded_steps = {step.id for step in loaded.steps}
    return LoadedTasks(loaded, read.request, frozenset(read.step_ids) - loaded_steps)
