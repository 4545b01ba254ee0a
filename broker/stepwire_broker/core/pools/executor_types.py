"""The five pools, one for each stage, and the items of a commit group that belong to the members of each."""

from enum import StrEnum
from typing import Final

from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.states import StepState


class ExecutorType(StrEnum):
    REQUESTS = "task_request_processor"  # tasks of submissions
    CLAIMS = "task_claimer"  # tasks loaded from the database
    DISPATCH = "step_enqueuer"  # steps handed out to workers
    RESULTS = "step_result_processor"  # results of steps
    FINISH = "task_finalizer"  # tasks that end


_DISPATCHED: Final = StepState.DISPATCHED.value
_ANSWERED: Final = frozenset({StepState.COMPLETED, StepState.FAILED, StepState.RETRY_WAIT, StepState.HELD})


def items_of(group: CommitGroup) -> dict[ExecutorType, int]:
    """Count the items of each pool in one transaction. A pool without an item holds no batch of it."""
    dispatched, answered = len(group.steps_dispatched), len(group.steps_completed)
    for step in group.steps_changed:
        dispatched += step.state == _DISPATCHED
        answered += step.state in _ANSWERED
    counts = {
        ExecutorType.REQUESTS: sum(len(submission.tasks) for submission in group.submissions),
        ExecutorType.DISPATCH: dispatched,
        ExecutorType.RESULTS: answered,
        ExecutorType.FINISH: sum(task.finished_ms is not None for task in group.tasks_changed),
    }
    return {kind: count for kind, count in counts.items() if count}
