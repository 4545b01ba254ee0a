"""A task's history, read as a language: which fact may follow which, and what they add up to.

Written from the design and from no code of the broker, so that a mistake there is not repeated here. One pass over the
facts of a task gives its story (what its rows must show) and every offence against the language.
"""

from collections.abc import Iterable
from typing import Final

from .plans import Plan
from .step_facts import STEP_FACTS
from .story import STEP_FINAL, STEP_MOVES, TASK_FINAL, Fact, StepStory, TaskStory
from .task_facts import TASK_FACTS

LANGUAGE_RULES: Final = (
    "the_history_begins_with_the_submission",
    "the_history_fits_the_workflow",
    "each_fact_follows_from_the_state",
    "a_final_state_is_final",
    "a_task_ends_with_its_steps",
    "a_task_ends_as_its_steps_ended",
    "no_step_is_ready_before_its_dependencies",
    "only_a_step_that_cannot_run_is_skipped",
    "no_retry_starts_before_its_back_off_ends",
    "delivery_numbers_rise_by_one",
    "nothing_is_dispatched_while_paused",
    "nothing_is_dispatched_after_a_cancel",
    "an_at_most_once_step_starts_only_when_granted",
    "a_granted_delivery_is_not_dispatched_again",
    "only_a_granted_at_most_once_step_is_held",
    "only_a_current_delivery_changes_state",
    "retries_are_bounded",
    "lost_sessions_are_bounded",
    "only_an_operator_reopens",
)


def read_story(plan: Plan, rows: Iterable[tuple[int, list[Fact]]]) -> TaskStory:
    """Read a task's history. `rows` are (sequence of the group, facts), in order."""
    story = TaskStory(plan, steps=[StepStory(step, i) for i, step in enumerate(plan.steps)])
    steps = story.steps
    count = 0
    for story.seq, facts in rows:
        for fact in facts:
            kind = fact[0]
            if count == 0 and kind != "submitted":
                story.offend("the_history_begins_with_the_submission", None, f"it begins with {fact}")
                story.state = "running"
            count += 1
            apply = STEP_FACTS.get(kind)
            if apply is not None:
                index = fact[2]
                if not 0 <= index < len(steps):
                    story.offend("the_history_fits_the_workflow", None, f"{fact} names a step that does not exist")
                    continue
                step = steps[index]
                before = step.state
                after = STEP_MOVES[kind].get(before)
                if after is None:
                    _misplaced(story, step, fact)
                    continue
                if story.state in TASK_FINAL or story.state == "pending":
                    _untimely(story, step, fact)
                if story.ordered is not None and kind == story.ordered[0] and story.ordered[1] in (index, None):
                    story.ordered = None
                step.state = after
                apply(story, step, fact, before)
            elif kind in TASK_FACTS:
                TASK_FACTS[kind](story, fact)
            else:
                story.offend("the_history_fits_the_workflow", None, f"{fact} is of an unknown kind")
        if story.ordered is not None:
            story.offend(
                "each_fact_follows_from_the_state",
                story.ordered[1],
                f"an operator's command, and no {story.ordered[0]}",
            )
            story.ordered = None
    story.facts = count
    _at_the_end(story)
    return story


def _misplaced(story: TaskStory, step: StepStory, fact: Fact) -> None:
    rule = "a_final_state_is_final" if step.state in STEP_FINAL else "each_fact_follows_from_the_state"
    story.offend(rule, step.index, f"{fact} in state {step.state}")


def _untimely(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", step.index, f"{fact} after the task had {story.state}")
    elif fact[0] != "readied":
        story.offend("each_fact_follows_from_the_state", step.index, f"{fact} while the task was not loaded")


def _at_the_end(story: TaskStory) -> None:
    if not story.facts:
        story.offend("the_history_begins_with_the_submission", None, "it has none")
    elif story.state not in TASK_FINAL and all(step.state in STEP_FINAL for step in story.steps):
        story.offend("a_task_ends_with_its_steps", None, f"every step is final, and the task is {story.state}")
