"""Waits for a task, and maps its state to an exit code."""

from typing import Any, Final

from stepwire.client import Client, WaitTimeout

from stepwire_broker.cli.failure import Exit, usage
from stepwire_broker.core.reading.durations import milliseconds

OF_STATE: Final = {"completed": Exit.OK, "failed": Exit.TASK_FAILED, "cancelled": Exit.TASK_CANCELLED}


def until_settled(client: Client, task_id: int, wait_s: float | None) -> dict[str, Any]:
    """Wait until the task has ended or waits on a held step, or the wait times out. Returns the task."""
    try:
        return client.wait(task_id, wait_s)
    except WaitTimeout:
        return client.task(task_id)


def exit_of(document: dict[str, Any]) -> Exit:
    """The exit code for a task in its current state."""
    return OF_STATE.get(document["state"], Exit.TASK_HELD if document["attention"] else Exit.TASK_RUNS)


def seconds(timeout: str | None, option: str = "--timeout") -> float | None:
    if timeout is None:
        return None
    ms = milliseconds(timeout)
    if ms is None:
        usage(f"{option} {timeout}: use a form like 30s or 5m")
    return ms / 1000
