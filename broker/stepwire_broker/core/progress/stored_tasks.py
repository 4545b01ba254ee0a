"""Tasks that are only in the database: whether one of them can run now, and how much memory is left for new tasks.

New tasks wait behind stored tasks that can run, so that the oldest go first. Stored tasks that no worker can run do not
delay new tasks, and they do not fill the memory that tasks with a worker need.
"""

from collections.abc import Iterable
from typing import Final

from stepwire_broker.core import takers
from stepwire_broker.core.commit.wants import handlers_in, wants_of
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.state import BrokerState

PAGE_TASKS: Final = 1_000  # loaded in one read


def wants_of_new(workflow: Workflow) -> str | None:
    """The handlers that a new task of this workflow waits for."""
    return wants_of(workflow.steps[index].handler_class for index in workflow.roots)


def can_run(state: BrokerState, wants: str | None) -> bool:
    """True if a connected worker or level-0 peer offers a handler that the task waits for."""
    return wants is None or any(takers.is_offered(state, name) for name in handlers_in(wants))


def note_stored(state: BrokerState, lane: int, wants: Iterable[str | None]) -> None:
    """Count new tasks of this lane that are only in the database, one for each element of `wants`."""
    tasks = 0
    distinct: set[str | None] = set()
    for each in wants:
        tasks += 1
        distinct.add(each)
    state.count_unloaded(lane, tasks)
    state.wants.update(each for each in distinct if each is not None)
    if any(can_run(state, each) for each in distinct):
        own = state.lanes[lane]
        own.stored_may_run = own.stored_since_page = True


def room_for_new(state: BrokerState) -> int:
    """The number of new tasks that may go into memory now."""
    limits = state.settings.limits
    if any(lane.stored_may_run for lane in state.lanes.values()) or state.resident_bytes > limits.active_bytes:
        return 0  # tasks that were submitted earlier and are not loaded yet go first
    room = limits.max_active_tasks - len(state.tasks) - state.reserved_tasks
    # Stored tasks can always be loaded when their handler appears, even if new tasks never stop coming.
    return room - max(1, min(PAGE_TASKS, limits.max_active_tasks // 8)) if state.unloaded else room


def without_worker(state: BrokerState, workflow: Workflow) -> bool:
    """True if no worker could run a new task of this workflow now."""
    return not can_run(state, wants_of_new(workflow))
