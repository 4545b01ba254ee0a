"""The states of steps and tasks, and every transition: in this state, this fact leads to that state.

`python -m stepwire_broker.core.model.states` draws them as the page docs/states.md.
"""

from enum import StrEnum
from typing import Final

from . import facts


class StepState(StrEnum):
    WAITING = "waiting"  # a dependency is not final
    READY = "ready"  # may run, and waits for a worker
    DISPATCHED = "dispatched"  # sent to a worker, which may or may not have started the step
    RETRY_WAIT = "retry_wait"  # an attempt failed, and the next one is scheduled
    COMPLETED = "completed"
    FAILED = "failed"
    HELD = "held"  # at_most_once, and the outcome is unknown: an operator decides
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # can no longer run: its rule is false, or a dependency did not complete


class TaskState(StrEnum):
    PENDING = "pending"  # stored, never loaded
    RUNNING = "running"
    PAUSED = "paused"  # nothing is dispatched; running steps finish
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING, READY, DISPATCHED, RETRY_WAIT = (
    StepState.WAITING,
    StepState.READY,
    StepState.DISPATCHED,
    StepState.RETRY_WAIT,
)
COMPLETED, FAILED, HELD, CANCELLED, SKIPPED = (
    StepState.COMPLETED,
    StepState.FAILED,
    StepState.HELD,
    StepState.CANCELLED,
    StepState.SKIPPED,
)
RUNNING: Final = TaskState.RUNNING

STEP_FINAL: Final = frozenset({COMPLETED, FAILED, CANCELLED, SKIPPED})
TASK_FINAL: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED})

STEP_TRANSITIONS: Final[dict[type[facts.StepFact], dict[StepState, StepState]]] = {
    facts.Readied: {WAITING: READY, RETRY_WAIT: READY},
    facts.Dispatched: {READY: DISPATCHED},
    facts.Granted: {DISPATCHED: DISPATCHED},
    facts.Started: {DISPATCHED: DISPATCHED},
    # A level-0 program reports, after the step was held, that it does not know the handler.
    facts.Undelivered: {DISPATCHED: READY, HELD: READY},
    # A late success completes a step that has not ended, which saves another run.
    facts.Completed: {DISPATCHED: COMPLETED, READY: COMPLETED, RETRY_WAIT: COMPLETED, HELD: COMPLETED},
    facts.BackedOff: {DISPATCHED: RETRY_WAIT, HELD: RETRY_WAIT},
    facts.Failed: {DISPATCHED: FAILED, HELD: FAILED, READY: FAILED, RETRY_WAIT: FAILED},
    facts.Held: {DISPATCHED: HELD},
    facts.Restored: {WAITING: HELD, READY: HELD, DISPATCHED: HELD, RETRY_WAIT: HELD},
    facts.Skipped: {WAITING: SKIPPED},
    facts.StepCancelled: {
        WAITING: CANCELLED,
        READY: CANCELLED,
        RETRY_WAIT: CANCELLED,
        DISPATCHED: CANCELLED,
    },
    facts.Reopened: {
        COMPLETED: WAITING,
        FAILED: WAITING,
        CANCELLED: WAITING,
        SKIPPED: WAITING,
        HELD: WAITING,
        # A dependency runs again.
        READY: WAITING,
        RETRY_WAIT: WAITING,
    },
}

TASK_TRANSITIONS: Final[dict[type[facts.TaskFact], dict[TaskState, TaskState | None]]] = {
    facts.Activated: {TaskState.PENDING: TaskState.RUNNING},
    facts.Paused: {TaskState.RUNNING: TaskState.PAUSED},
    facts.Resumed: {TaskState.PAUSED: TaskState.RUNNING},
    facts.TaskReopened: dict.fromkeys(sorted(TASK_FINAL), TaskState.RUNNING),
    # TaskEnded carries the final state.
    facts.TaskEnded: {TaskState.RUNNING: None, TaskState.PAUSED: None},
}


def drawing() -> str:
    """Return both state machines as Mermaid diagrams."""
    lines = [
        "# States of steps and tasks",
        "",
        "Each arrow is a transition, labelled with the fact that causes it. The page is generated from",
        "`stepwire_broker.core.model.states` by `python -m stepwire_broker.core.model.states`; do not edit it.",
        "",
    ]
    lines += ["## Step states", "", "```mermaid", "stateDiagram-v2", "    [*] --> waiting"]
    for step_fact, moves in STEP_TRANSITIONS.items():
        lines += [f"    {a} --> {b}: {step_fact.__struct_config__.tag}" for a, b in moves.items() if a is not b]
    lines += [f"    {state} --> [*]" for state in StepState if state in STEP_FINAL]
    lines += ["```", "", "## Task states", "", "```mermaid", "stateDiagram-v2"]
    lines += ["    [*] --> running", "    [*] --> pending: the active set is full"]
    for task_fact, ways in TASK_TRANSITIONS.items():
        for before, after in ways.items():
            for end in [after] if after else sorted(TASK_FINAL):
                lines.append(f"    {before} --> {end}: {task_fact.__struct_config__.tag}")
    lines += [f"    {state} --> [*]" for state in TaskState if state in TASK_FINAL]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    print(drawing(), end="")
