"""The facts of tasks: each function applies one kind of fact to the story, and checks what the language says of it."""

from collections.abc import Callable
from typing import Final

from .story import MOVING, STEP_FINAL, TASK_FINAL, TASK_MOVES, Fact, TaskStory

# The fact that must follow an operator's command.
ORDERS: Final = {
    "retry": "reopened",
    "resolve_retry": "reopened",
    "resolve_completed": "completed",
    "resolve_failed": "failed",
}


def _submitted(story: TaskStory, fact: Fact) -> None:
    _, at, workflow_id, uid, state, first_step_id = fact
    if story.state:
        story.offend("the_history_begins_with_the_submission", None, f"{fact} a second time")
        return
    if workflow_id != story.plan.id:
        story.offend("the_history_fits_the_workflow", None, f"{fact}, and its row has workflow {story.plan.id}")
    story.uid, story.state, story.created_ms, story.submitted_seq = uid, state, at, story.seq
    story.first_step_id = first_step_id


def _moved(story: TaskStory, fact: Fact) -> None:
    after = TASK_MOVES[fact[0]].get(story.state)
    if after is None:
        rule = "a_final_state_is_final" if story.state in TASK_FINAL else "each_fact_follows_from_the_state"
        story.offend(rule, None, f"{fact} in state {story.state}")
        return
    story.state = after
    if fact[0] == "task_reopened":
        if not story.is_operated("retry", None):
            story.offend("only_an_operator_reopens", None, f"{fact} without an operator's command in its group")
        story.finished_ms = None
        story.cancelling = False
        story.cancel_asked_at = None


def _cancel_asked(story: TaskStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", None, f"{fact} in state {story.state}")
    story.cancelling = True
    story.cancel_asked_at = fact[1]


def _operated(story: TaskStory, fact: Fact) -> None:
    action, index = fact[2], fact[3]
    if action.startswith("resolve_") and story.steps[index].state != "held":
        story.offend("each_fact_follows_from_the_state", index, f"{fact} in state {story.steps[index].state}")
    story.operated.append((action, index, story.seq))
    story.ordered = (ORDERS[action], index) if action in ORDERS else None


def _noticed(story: TaskStory, fact: Fact) -> None:
    if fact[2] == story.attention:
        story.offend("each_fact_follows_from_the_state", None, f"{fact} changes nothing")
    states = [step.state for step in story.steps]
    if fact[2] is not None and ("held" not in states or any(state in MOVING for state in states)):
        story.offend("each_fact_follows_from_the_state", None, f"{fact} with {states}")
    story.attention = fact[2]


def _ended(story: TaskStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", None, f"{fact} in state {story.state}")
        return
    states = [step.state for step in story.steps]
    unfinished = {s.plan.name: s.state for s in story.steps if s.state not in STEP_FINAL}
    if unfinished:
        story.offend("a_task_ends_with_its_steps", None, f"{fact} with {unfinished}")
    if story.cancelling and "cancelled" in states:
        expected = "cancelled"
    elif any(step.state == "failed" and not step.plan.allow_failure for step in story.steps):
        expected = "failed"
    else:
        expected = "completed"
    if fact[2] != expected:
        story.offend("a_task_ends_as_its_steps_ended", None, f"{fact} with {states}")
    story.state = fact[2]
    story.finished_ms = fact[1]
    story.ended_states.append(fact[2])


TASK_FACTS: Final[dict[str, Callable[[TaskStory, Fact], None]]] = {
    "submitted": _submitted,
    "activated": _moved,
    "paused": _moved,
    "resumed": _moved,
    "task_reopened": _moved,
    "cancel_asked": _cancel_asked,
    "operated": _operated,
    "noticed": _noticed,
    "ended": _ended,
}
