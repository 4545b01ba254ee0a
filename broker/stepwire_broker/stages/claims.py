"""Station two, claims: tasks come from the database into memory. What the core asks to be read, and how it is read.

These run in a reader's thread on a read-only connection and see what is committed.
"""

from typing import Any, NamedTuple

from stepwire_broker.core.commit.decision import FetchPayloads, LoadById, LoadBySteps, LoadPage, Read
from stepwire_broker.core.commit.ports import Queries
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.model.events import LoadedPayloads, LoadedTasks
from stepwire_broker.core.model.states import TASK_FINAL


class Reader(NamedTuple):
    """How this broker reads: its queries, its epoch, and what is too large to stay in memory."""

    queries: Queries
    epoch: int
    resident_bytes_max: int


def perform(connection: Any, reader: Reader, read: Read, now_ms: int) -> LoadedTasks | LoadedPayloads:
    """Read what the core asked for; the answer is an event."""
    queries = reader.queries
    match read:
        case LoadPage():
            loaded = queries.load_page(
                connection, read.limit, reader.epoch, read.wants, now_ms, reader.resident_bytes_max
            )
            return LoadedTasks(loaded, read.request)
        case LoadById():
            return LoadedTasks(queries.load_tasks(connection, read.task_ids, reader.resident_bytes_max), read.request)
        case LoadBySteps():
            return _by_steps(connection, reader, read)
        case FetchPayloads():
            payloads = queries.load_payloads(connection, read.task_ids, read.step_ids)
            return LoadedPayloads(payloads, read.request)


def _by_steps(connection: Any, reader: Reader, read: LoadBySteps) -> LoadedTasks:
    """A step of a task that is over needs nothing in memory: whatever is said of it now is late."""
    found = reader.queries.tasks_of_steps(connection, read.step_ids)
    wanted = {task_id for task_id, state in found.values() if read.any_state or state not in TASK_FINAL}
    loaded = Loaded([], [])
    if wanted:
        loaded = reader.queries.load_tasks(connection, sorted(wanted), reader.resident_bytes_max)
    brought = {step.id for step in loaded.steps}
    return LoadedTasks(loaded, read.request, frozenset(read.step_ids) - brought)
