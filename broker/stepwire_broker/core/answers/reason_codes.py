"""Reason codes: every code by which the broker explains a step's state, with its sentence."""

from typing import Final

SENTENCES: Final[dict[str, str]] = {
    # the step is ready again
    "busy": "the worker had no free slot for the step",
    "draining": "the worker is stopping",
    "stale": "the worker had dropped the step",
    "unknown_handler": "the worker does not know the step's handler",
    "session_lost": "the worker sent nothing for a whole lease, or its process died",
    "session_replaced": "the worker began a new session and had not started the step",
    "not_held": "the worker no longer holds the step",
    "unaccepted": "the worker never accepted the step",
    "not_granted": "the step was not allowed to start",
    "unanswered": "the level-0 handler did not answer within its lease",
    "unsent": "the level-0 handler disconnected before the step was sent",
    "superseded": "the worker was asked not to start the step",
    # the step failed, or is held
    "timeout": "the step ran longer than its timeout",
    "deadline": "the step's deadline_ms is over",
    "task_deadline": "the task's deadline_ms is over",
    "queue_timeout": "the step was not started within its queue_timeout_ms",
    "worker_lost": "every worker that ran the step was lost: the step may kill workers",
    "too_large": "the step's request or result is larger than a message may be",
    "bad_message": "the worker could not read the step's request",
    "unstorable": "the database refused the step's data",
    "outcome_unknown": "the step was allowed to start, and its outcome is unknown",
    "stopped": "the worker was asked to stop the step: its effects are unknown, also if the worker reports a failure",
    "restored": "the database was restored from a backup, and the step may have started after the backup was made",
    "resolved_failed": "an operator decided that the held step has failed",
    # the step was cancelled
    "task_cancelled": "the task was cancelled",
}


def describe(code: str) -> str:
    return SENTENCES.get(code, code)
