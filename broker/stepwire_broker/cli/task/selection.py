"""The options that select tasks: the same for `task list`, and for `task cancel` and `task retry` of many tasks."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from stepwire.client import Client

from stepwire_broker.cli import completing
from stepwire_broker.cli.failure import usage
from stepwire_broker.core.reading.durations import milliseconds
from stepwire_broker.timestamps import parse_rfc3339

PAGE_TASKS: Final = 500
_OPTIONS: Final = (
    click.option("--state", metavar="STATE", shell_complete=completing.task_states, help="Only tasks in this state."),
    click.option(
        "--workflow",
        metavar="NAME",
        shell_complete=completing.workflows,
        help="Only tasks of this workflow: NAME or NAMESPACE::NAME.",
    ),
    click.option(
        "--namespace", metavar="NAME", shell_complete=completing.namespaces, help="Only tasks of this namespace."
    ),
    click.option("--label", metavar="NAME=VALUE", help="Only tasks with this label."),
    click.option("--key", metavar="KEY", help="Only the task with this idempotency key."),
    click.option(
        "--since", metavar="TIME", help="Only tasks created at or after TIME: 1h, 7d, or 2026-11-18T10:00:00Z."
    ),
)
NAMES: Final = ("state", "workflow", "namespace", "label", "key", "since")


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """The arguments of `Client.tasks` for these options."""
    _check_state(values["state"])
    workflow, namespace = values["workflow"], values["namespace"]
    if workflow is not None and namespace is None and "::" in workflow:
        namespace, _, workflow = workflow.rpartition("::")
    return {
        "state": values["state"],
        "workflow": workflow,
        "namespace": namespace,
        "label": values["label"],
        "idempotency_key": values["key"],
        "since": _since(values["since"]),
    }


def _check_state(state: str | None) -> None:
    from stepwire_broker.core.model.states import StepState, TaskState

    if state in tuple(StepState) and state not in tuple(TaskState):
        usage(f"{state} is a state of steps: stepwire step list --state {state}")


def select(
    client: Client, wanted: Mapping[str, str | None], states: tuple[str, ...], most: int
) -> tuple[list[dict[str, Any]], bool]:
    """At most `most` tasks in one of these states, the newest first in each, and whether there are more."""
    tasks: list[dict[str, Any]] = []
    for state in states:
        cursor: str | None = None
        while len(tasks) <= most:
            page = client.tasks(**{**wanted, "state": state}, limit=PAGE_TASKS, cursor=cursor)
            tasks += page["tasks"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    return tasks[:most], len(tasks) > most


def _since(text: str | None) -> str | None:
    """A time as the API reads it; a duration counts back from now."""
    if text is None or parse_rfc3339(text) is not None:
        return text
    ms = milliseconds(text)
    if ms is not None:
        return (datetime.now(UTC) - timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        usage(f"--since {text}: use a duration like 90s, 1h or 7d, or a time like 2026-11-18T10:00:00Z")
    return local.astimezone(UTC).isoformat(timespec="milliseconds")  # a time without a zone is local time
