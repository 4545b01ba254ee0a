"""The answer to why a step or task is not running: a code for programs, and a sentence for people."""

from collections.abc import Callable
from typing import Final, NamedTuple

from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.workflow import Workflow

from .model.live import Step, Task
from .model.states import StepState
from .state import BrokerState

# The meaning of each code; a message adds names and numbers. A task is explained by its step with the first code.
CODES: Final[dict[str, str]] = {
    "held": "the outcome of the step is unknown, and an operator must decide",
    "paused": "the task is paused",
    "executor_paused": "the executor of the step is paused",
    "database_stalled": "the database accepts no writes now, so nothing is dispatched",
    "lane_moving": "the lane of the task moves to another broker, which hands the step out",
    "broker_draining": "the broker is stopping and dispatches nothing",
    "no_executor": "the executor that the step is routed to is not configured",
    "no_worker_offers": "no connected worker offers the step's handler_class",
    "worker_elsewhere": "a worker offers the step's handler_class, and it is not connected to the broker of the task",
    "no_worker_matches": "workers offer the handler_class, and none has the labels that the step or its rule requires",
    "workers_too_small": "workers offer the handler_class, and none accepts a message as large as the step needs",
    "outside_grant": "workers offer the handler_class, and the grant of no such worker allows the step",
    "workers_leaving": "every worker that could run the step accepts nothing new",
    "runs_alone": "workers died while they ran the step, so it runs alone, and every worker has such a step",
    "breaker_open": "the breaker of the handler is open: the handler failed too often, and is not called for a while",
    "breaker_half_open": "the breaker of the handler is half-open: a few steps test the handler",
    "retries_wait": "the step is a retry, and the retry budget of its handler is used up",
    "workers_busy": "every worker that could run the step is full",
    "executor_full": "the executor of the step is full, or reports that it has no capacity",
    "no_poll_waits": "workers over HTTP could run the step, but no such worker requests steps now",
    "back_off": "an attempt failed, and the next one is scheduled",
    "not_loaded": "the task waits in the database until memory has space",
    "payload_fetched": "the step's payload, or a payload that its rule compares, is being read from the database",
    "queued": "the step is in the queue, and will be dispatched",
    "committing": "the step's state is changing: the next state is being written",
    "worker_awaited": "the step was dispatched before this broker started, and its worker may still have it",
    "handed_out": "a worker has the step, and has not started it",
    "result_awaited": "the step has run, and its result has not arrived yet",
    "running": "a worker runs the step",
    "waits_for": "a dependency is not final",
    "completed": "the step is completed",
    "failed": "the step has failed",
    "cancelled": "the step was cancelled",
    "skipped": "the step can no longer run",
}

# What an open step with this code is, or waits for: the words by which steps are counted.
WAITS_FOR: Final[dict[str, str]] = {
    "held": "held",
    "paused": "paused",
    **dict.fromkeys(("executor_paused", "no_executor", "executor_full"), "waiting for an executor"),
    **dict.fromkeys(
        (
            "no_worker_offers",
            "worker_elsewhere",
            "no_worker_matches",
            "outside_grant",
            "workers_too_small",
            "workers_leaving",
            "runs_alone",
            "workers_busy",
            "no_poll_waits",
        ),
        "waiting for a worker",
    ),
    **dict.fromkeys(("breaker_open", "breaker_half_open"), "waiting for a breaker"),
    **dict.fromkeys(("retries_wait", "back_off"), "waiting for a retry"),
    **dict.fromkeys(
        ("database_stalled", "lane_moving", "broker_draining", "not_loaded", "payload_fetched", "queued", "committing"),
        "waiting for the broker",
    ),
    **dict.fromkeys(("worker_awaited", "handed_out", "result_awaited"), "with a worker"),
    "running": "running",
}


class Why(NamedTuple):
    code: str
    message: str
    since_ms: int | None  # UTC; None if unknown
    hint: Hint | None = None  # the operator's next action


class WhyTask(NamedTuple):
    """Why a task is not finished. `step` is the step that it waits for, or None if the task itself is the reason."""

    why: Why
    step: Step | None


def paused(task: Task) -> Why:
    return Why("paused", "the task is paused", None, Hint(HintCode.RESUME_TASK, task_id=task.id))


def committing(since_ms: int | None) -> Why:
    return Why("committing", "its state is changing: the next state is being written", since_ms)


def live_step(state: BrokerState, step: Step) -> Step | None:
    """Return the same step in memory, if its state in memory is the same."""
    live = state.steps.get(step.id)
    if live is None or (live.state, live.delivery, live.attempt) != (step.state, step.delivery, step.attempt):
        return None
    return live


def skipped_because(workflow: Workflow, position: int, state_of: Callable[[int], str]) -> str:
    """Return why a step was skipped: its rule, or the first dependency that did not complete. `state_of` returns the
    state of the step at a position."""
    definition = workflow.steps[position]
    if definition.trigger_rule is not None:
        return "its trigger rule is false"
    for index in definition.depends_on:
        if (state := state_of(index)) in _NOT_COMPLETED:
            return f"`{workflow.steps[index].name}` {_NOT_COMPLETED[StepState(state)]}"
    return "a dependency did not complete"  # and has been retried since


_NOT_COMPLETED: Final = {
    StepState.FAILED: "failed",
    StepState.SKIPPED: "was skipped",
    StepState.CANCELLED: "was cancelled",
}
