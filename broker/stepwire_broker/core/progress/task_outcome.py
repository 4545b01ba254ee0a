"""How a task ends, and when it needs an operator: both answer the requests that wait for the task."""

from stepwire_broker.core.answers.answers import Done
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import held
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.model.states import CANCELLED, FAILED, TASK_FINAL, TaskState
from stepwire_broker.core.state import BrokerState


def end(state: BrokerState, task: Task, now: Now) -> None:
    """End a task whose steps are all final."""
    failed = any(s.state is FAILED and not s.definition.allow_failure for s in task.steps)
    cancelled = any(s.state is CANCELLED for s in task.steps)
    if task.cancelling and cancelled:
        outcome = TaskState.CANCELLED
    elif failed:
        outcome = TaskState.FAILED
    else:
        outcome = TaskState.COMPLETED
    if task.attention is not None:
        state.record(task, facts.Noticed(now.wall, None))
    state.record(task, facts.TaskEnded(now.wall, outcome))
    _answer_waiters(state, task)


def update_attention(state: BrokerState, task: Task, now: Now) -> None:
    """Set the task's attention to `held` while the rest of the task depends on a held step, and clear it otherwise."""
    if task.state in TASK_FINAL:
        return
    attention = "held" if task.moving == 0 and task.open and held(task) else None
    if attention != task.attention:
        state.record(task, facts.Noticed(now.wall, attention))
        if attention:
            _answer_waiters(state, task)


def _answer_waiters(state: BrokerState, task: Task) -> None:
    for request in state.waiters.pop(task.id, ()):
        if state.asked.pop(request, None) is not None:
            state.answer(request, Done(task.id, task.state, task.attention), task, awaits=True)
