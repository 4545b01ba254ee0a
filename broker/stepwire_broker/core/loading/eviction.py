"""Memory limits: how many tasks may be loaded, and which tasks leave memory.

Tasks that have ended leave when their writes are durable. Tasks that must wait for long leave when other tasks could
run.
"""

from itertools import islice
from typing import Final

from stepwire_broker.core import takers
from stepwire_broker.core.commit.outbox import NEVER_MS, reload_conditions
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.model.states import HELD, READY, RETRY_WAIT, STEP_FINAL, TASK_FINAL, WAITING, TaskState
from stepwire_broker.core.progress.stored_tasks import PAGE_TASKS
from stepwire_broker.core.state import BrokerState

EVICT_TASKS: Final = 2_000  # examined in one pass
SWEEP_AFTER: Final = 10_000
FAR_OFF_MS: Final = 5_000  # a task that waits longer than this may wait in the database
BUDGET_REST_MS: Final = 30_000  # how long a retry that its handler's budget delays waits in the database


def room(state: BrokerState) -> int:
    """Return the number of tasks that may be loaded now."""
    return state.settings.limits.max_active_tasks - len(state.tasks) - state.reserved_tasks


def is_full(state: BrokerState) -> bool:
    """True if the payloads in memory exceed their limit."""
    return state.resident_bytes > state.settings.limits.active_bytes


def settle(state: BrokerState, wrote: list[Task], dirty: dict[int, Task]) -> None:
    """Remove tasks whose writes are durable and that have ended or are being evicted."""
    for task in wrote:
        if task.id in dirty or not task.steps:
            continue
        if task.state in TASK_FINAL:
            state.remember_ended(task)
            state.drop(task)
        elif task.evicting:
            _, wants = reload_conditions(task)
            if wants is not None:
                state.wants.add(wants)
            state.count_unloaded(task.lane, 1)
            state.evicted += 1
            state.drop(task)
    worth_a_read = max(1, min(PAGE_TASKS, state.settings.limits.max_active_tasks // 8))
    if state.waits_for_room and room(state) >= worth_a_read and not is_full(state):
        state.waits_for_room = False
        state.page_after_mono = 0
    if state.evicted > SWEEP_AFTER:
        state.evicted = 0
        state.ready.sweep()


def make_room(state: BrokerState, now: Now) -> None:
    """Evict tasks that must wait for long, so that they do not starve tasks that could run."""
    examined = list(islice(state.tasks.values(), state.evict_from, state.evict_from + EVICT_TASKS))
    for task in examined:
        if not task.evicting and _is_idle(state, task, now):
            for step in task.steps:
                is_late = step.state is READY and allowance.waits_for_budget(state, step, now)
                step.rests_until_ms = now.wall + BUDGET_REST_MS if is_late else None
            task.evicting = True
            task.dirty = True
            state.outbox.mark(task)
    state.evict_from = state.evict_from + EVICT_TASKS if len(examined) == EVICT_TASKS else 0


def _is_idle(state: BrokerState, task: Task, now: Now) -> bool:
    if task.dirty or task.facts or task.state in TASK_FINAL or task.dispatched or task.id in state.waiters:
        return False
    for step in task.steps:
        if step.state in STEP_FINAL or step.state is HELD or (step.state is WAITING and step.waits):
            continue
        if step.state is RETRY_WAIT and (step.not_before_ms or 0) - now.wall > FAR_OFF_MS:
            continue
        if step.state is READY and (
            task.state is TaskState.PAUSED
            or not takers.can_be_taken(state, state.route_of(step))
            or allowance.is_shut(state, step.definition.handler_class, FAR_OFF_MS, now)
            or allowance.waits_for_budget(state, step, now)
        ):
            continue
        return False
    wake_ms, _ = reload_conditions(task)
    return wake_ms is None or wake_ms == NEVER_MS or wake_ms - now.wall > FAR_OFF_MS
