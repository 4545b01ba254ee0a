"""A task that the database refused, or whose idempotency key belongs to another task, leaves memory."""

from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.facts import StepFact
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.state import BrokerState

from .deliveries import remove_delivery
from .step_outcomes import undeliver


def steps_to_blame(task: Task) -> frozenset[int]:
    """The steps of a refused task whose end was in the refused group, and that no command ended.

    The database refuses the rows of a task as a whole, so several steps that ended in one group share the blame.
    """
    ended_since = {fact.step for fact in task.facts if isinstance(fact, StepFact)}  # in the group that is still open
    return frozenset(
        step.id
        for step in task.steps
        if step.is_final and not step.ended_by_command and step.position not in ended_since
    )


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
    state.count_open(task.lane, task.namespace, -task.open)
    state.drop(task)
