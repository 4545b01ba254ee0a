"""Waiting for a task: how long, and what the exit code says of its end."""

from typing import Any, Final

from stepwire.client import Client, WaitTimeout

from stepwire_broker.core.definitions.durations import milliseconds

from .failure import Exit, usage

OF_STATE: Final = {"completed": Exit.OK, "failed": Exit.TASK_FAILED, "cancelled": Exit.TASK_CANCELLED}


def until_settled(client: Client, task_id: int, wait_s: float | None) -> dict[str, Any]:
    """The task when it has ended, hangs on a held step, or the time is over."""
    try:
        return client.wait(task_id, wait_s)
    except WaitTimeout:
        return client.task(task_id)


def exit_of(document: dict[str, Any]) -> Exit:
    """The code for a task as it stands."""
    return OF_STATE.get(document["state"], Exit.TASK_HELD if document["attention"] else Exit.TASK_RUNS)


def seconds(timeout: str | None, option: str = "--timeout") -> float | None:
    if timeout is None:
        return None
    ms = milliseconds(timeout)
    if ms is None:
        usage(f"{option} {timeout}: it needs a form like 30s or 5m")
    return ms / 1000
