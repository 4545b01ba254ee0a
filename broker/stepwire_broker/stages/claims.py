"""Station two, claims: read tasks from the database into memory. The core decides which tasks are read.

These functions run in a reader's thread and see committed rows.
"""

from typing import Final, TypeAlias

from stepwire_broker.core.commit.decision import (
    FetchPayloads,
    LoadById,
    LoadBySteps,
    LoadPage,
    LookAround,
    Read,
    ReadCatalogue,
)
from stepwire_broker.core.commit.ports import LoadQueries
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.definitions.workflow import stored_workflow
from stepwire_broker.core.model.events import CatalogueRead, FoundOrder, LoadedPayloads, LoadedTasks, LookedAround
from stepwire_broker.core.model.states import TASK_FINAL
from stepwire_broker.core.sharing.order_texts import read_command

ORDERS_MAX: Final = 256  # of one look


ReadDone: TypeAlias = LoadedTasks | LoadedPayloads | LookedAround | CatalogueRead


def perform(queries: LoadQueries, resident_bytes_max: int, read: Read, now_ms: int) -> ReadDone:
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
        case LookAround():
            return _looked_around(queries, read)
        case ReadCatalogue():
            return _catalogue(queries, read)


def _catalogue(queries: LoadQueries, read: ReadCatalogue) -> CatalogueRead:
    found = queries.catalogue(read.known)
    return CatalogueRead(
        read.request,
        found.revision,
        tuple(found.controls),
        tuple(map(stored_workflow, found.workflows)),
        frozenset(found.active),
        found.blocks,
    )


def _looked_around(queries: LoadQueries, read: LookAround) -> LookedAround:
    found = [
        FoundOrder(order.lane, order.id, order.age_ms, read_command(order.request))
        for order in queries.open_orders(read.lanes, ORDERS_MAX)
    ]
    return LookedAround(read.request, tuple(found), queries.controls_revision())


def _by_steps(queries: LoadQueries, resident_bytes_max: int, read: LoadBySteps) -> LoadedTasks:
    """Load the tasks of these steps. A task that has ended is not loaded, because any result for it is late."""
    tasks_of_steps = queries.tasks_of_steps(read.step_ids)
    wanted = {task_id for task_id, state in tasks_of_steps.values() if read.any_state or state not in TASK_FINAL}
    loaded = Loaded([], [])
    if wanted:
        loaded = queries.load_tasks(sorted(wanted), resident_bytes_max)
    loaded_steps = {step.id for step in loaded.steps}
    return LoadedTasks(loaded, read.request, frozenset(read.step_ids) - loaded_steps)
