"""A task that the database refused, or whose idempotency key belongs to another task, leaves memory."""

from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.state import BrokerState

from .deliveries import remove_delivery
from .step_outcomes import undeliver


def discard(state: BrokerState, task: Task, now: Now) -> None:
    """Remove a task whose rows are not stored. No message that depends on those rows is sent."""
    task.rejected = True
    unsent = [b for s in state.sessions.values() for b in s.unanswered_batches.values() if not b.released]
    for batch in [b for b in unsent if any(step.task is task for step in b.steps)]:
        # The batch is never sent; its other steps go into another batch.
        batch.answered = True
        del batch.session.unanswered_batches[batch.id]
        batch.session.unanswered -= len(batch.steps)
        for step in batch.steps:
            if step.task is not task and step.batch is batch:
                undeliver(state, step, "unstorable", now, avoid=False)
    for step in task.steps:
        remove_delivery(state, step)
    state.outbox.withdraw(task)
    state.count_open(task.namespace, -task.open)
    state.drop(task)
