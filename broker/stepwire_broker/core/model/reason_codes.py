"""Why a step stands where it stands, in the broker's words: every code with its sentence."""

from typing import Final

SENTENCES: Final[dict[str, str]] = {
    # it went back to ready
    "busy": "the worker had no room for it",
    "draining": "the worker is going away",
    "stale": "the worker had dropped it",
    "unknown_handler": "the worker does not know its handler",
    "session_lost": "the worker fell silent for a whole lease, or its process died",
    "session_replaced": "the worker began a new session and had not started it",
    "not_held": "the worker does not hold it any more",
    "unaccepted": "the worker never accepted it",
    "not_granted": "it was not allowed to start",
    "unanswered": "the level-0 handler it went to did not answer within its lease",
    "unsent": "its level-0 handler had gone before it was sent",
    "superseded": "the worker was told not to start it",
    "broker_restarted": "the broker restarted and nobody holds it",
    # it failed, or is held
    "timeout": "it ran longer than its timeout_ms",
    "deadline": "its deadline_ms is over",
    "task_deadline": "the task's deadline_ms is over",
    "queue_timeout": "it was not started within its queue_timeout_ms",
    "worker_lost": "every worker that ran it was lost: it may be what kills them",
    "too_large": "its request or its result is larger than a message may be",
    "bad_message": "the worker could not read its request",
    "unstorable": "the database refused its data",
    "outcome_unknown": "it was allowed to start, and nobody knows what became of it",
    "stopped": "its worker was told to stop it and then reported a failure: what it had done by then is not known",
    "restored": "the database was restored from a backup, and it may have been started since that was made",
    # it was cancelled
    "task_cancelled": "its task was cancelled",
}


def describe(code: str) -> str:
    return SENTENCES.get(code, code)
