"""The dependents of a step that is final: they become ready, are skipped or cancelled, and the task may end."""

from stepwire_broker.core.definitions import trigger_rules
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import outputs
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import COMPLETED, WAITING
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.state import BrokerState

from .readiness import make_ready
from .task_outcome import end, update_attention


def advance(state: BrokerState, step: Step, now: Now) -> None:
    """Decide the steps that depend on a final step, and end the task when all its steps are final."""
    task = step.task
    if state.shadows.of_step:
        copies.real_ended(state, step, now)
    final = [step]
    while final:
        for index in final.pop().definition.dependents:
            dependent = task.steps[index]
            dependent.waits -= 1
            if dependent.waits == 0 and dependent.state is WAITING and not _decide(state, dependent, now):
                final.append(dependent)
    if task.open == 0:
        end(state, task, now)
    else:
        update_attention(state, task, now)


def _decide(state: BrokerState, step: Step, now: Now) -> bool:
    """Make a step ready, skip or cancel it: all its dependencies are final. False when the step is final at once."""
    task, definition = step.task, step.definition
    if task.cancelling:
        state.record(task, facts.StepCancelled(now.wall, step.position, "task_cancelled"))
        return False
    if definition.trigger_rule is None:
        runs = all(task.steps[i].state is COMPLETED for i in definition.depends_on)
    elif _lacks_payloads(step):
        state.undecided_steps.append(step)
        return True
    else:
        runs = trigger_rules.evaluate(
            definition.trigger_rule,
            [s.state for s in task.steps],
            step.payload_context or task.context or b"{}",
            step.fetched_outputs or outputs(task),
        )
    if runs:
        make_ready(state, step, now)
        return True
    state.record(task, facts.Skipped(now.wall, step.position))
    return False


def _lacks_payloads(step: Step) -> bool:
    """True if the step's rule compares a payload that is too large to stay in memory."""
    assert step.definition.trigger_rule is not None
    task = step.task
    if not trigger_rules.needs_payloads(step.definition.trigger_rule):
        return False
    if task.context is None and step.payload_context is None:
        return True
    return step.fetched_outputs is None and any(
        task.steps[i].state is COMPLETED and task.steps[i].output is None for i in step.definition.depends_on
    )


def wait_again(state: BrokerState, step: Step, now: Now) -> None:
    """Decide a reopened step, or let it wait: after a restore its dependencies may not be final."""
    if step.waits:
        update_attention(state, step.task, now)
    else:
        decide_again(state, step, now)


def decide_again(state: BrokerState, step: Step, now: Now) -> None:
    """Decide a waiting step whose dependencies are final, for example when the payloads of its rule are fetched."""
    if step.state is WAITING and step.waits == 0 and not _decide(state, step, now):
        advance(state, step, now)
