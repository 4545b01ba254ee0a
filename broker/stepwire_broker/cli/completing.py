"""The values that a shell completes: names and ids that the broker knows. Without a broker there are none.

A shell waits for the answer at each TAB: one request, without retries, with a short timeout, and no message on stderr.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from .options import Options

TIMEOUT_S: Final = 0.4
ITEMS_MAX: Final = 100
TASK_STATES: Final = ("pending", "running", "paused", "completed", "failed", "cancelled")
STEP_STATES: Final = (
    "waiting",
    "ready",
    "dispatched",
    "retry_wait",
    "completed",
    "failed",
    "held",
    "cancelled",
    "skipped",
)

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Item = tuple[str, str]  # the value and a description, which zsh and fish show


def _of_broker(path: str, items: Callable[[dict[str, Any], click.Context], Iterator[Item]]) -> Completer:
    """A completer of the items in the document at this path of the API."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        document = _get(context, path)
        found = {} if document is None else dict(items(document, context))
        return [CompletionItem(value, help=about) for value, about in found.items() if value.startswith(incomplete)]

    return complete


def _get(context: click.Context, path: str) -> dict[str, Any] | None:
    import msgspec
    from stepwire.client.outages import Outages
    from stepwire.client.transport import Transport

    from .connection import address
    from .failure import Failure

    try:
        url, token_file, is_insecure_allowed = address(context.ensure_object(Options))
        answer = Transport(
            url, lambda: _token(token_file), TIMEOUT_S, Outages(0, 0, None), is_insecure_allowed=is_insecure_allowed
        ).get_once(path)
        document: dict[str, Any] = msgspec.json.decode(answer.body)
    except (Failure, OSError, ValueError):  # nothing to complete is no error
        return None
    return document if answer.status == 200 else None


def _token(token_file: str | None) -> str | None:
    import os
    from pathlib import Path

    from stepwire_broker.api.token import TOKEN_FILE, first_token

    return os.environ.get("STEPWIRE_TOKEN") or first_token(Path(token_file or TOKEN_FILE))


def _workflows(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["workflows"]:
        yield f"{one['namespace']}::{one['name']}", "workflow"


def _versions(document: dict[str, Any], context: click.Context) -> Iterator[Item]:
    """The versions of the workflow that the command line names; of all workflows if it names none."""
    wanted = context.params.get("workflow") or context.params.get("name")
    for one in document["workflows"]:
        if wanted is None or wanted in (one["name"], f"{one['namespace']}::{one['name']}"):
            yield one["version"], "active" if one["active"] else ""


def _namespaces(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["workflows"]:
        yield one["namespace"], ""


def _tasks(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["tasks"]:
        yield str(one["task_id"]), f"{one['namespace']}::{one['workflow']} {one['state']}"


def _steps(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["steps"]:
        yield f"{one['task_id']}/{one['name']}", f"{one['handler_class']} {one['state']}"


def _workers(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["workers"]:
        yield one["worker"], ", ".join(one["handlers"])


def _handlers(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["workers"]:
        for handler_class in one["handlers"]:
            yield handler_class, "handler"


def _executors(document: dict[str, Any], _: click.Context) -> Iterator[Item]:
    for one in document["executors"]:
        yield one["executor"], "executor"


def _of(*values: str) -> Completer:
    return lambda context, param, incomplete: [CompletionItem(each) for each in values if each.startswith(incomplete)]


workflows: Final = _of_broker("/v1/workflows", _workflows)
versions: Final = _of_broker("/v1/workflows", _versions)
namespaces: Final = _of_broker("/v1/workflows", _namespaces)
tasks: Final = _of_broker(f"/v1/tasks?limit={ITEMS_MAX}", _tasks)
open_tasks: Final = _of_broker(f"/v1/tasks?state=running&limit={ITEMS_MAX}", _tasks)
paused_tasks: Final = _of_broker(f"/v1/tasks?state=paused&limit={ITEMS_MAX}", _tasks)
failed_tasks: Final = _of_broker(f"/v1/tasks?state=failed&limit={ITEMS_MAX}", _tasks)
steps: Final = _of_broker(f"/v1/steps?limit={ITEMS_MAX}", _steps)
held_steps: Final = _of_broker(f"/v1/steps?state=held&limit={ITEMS_MAX}", _steps)
workers: Final = _of_broker("/v1/workers", _workers)
handlers: Final = _of_broker("/v1/workers", _handlers)
executors: Final = _of_broker("/v1/executors", _executors)
task_states: Final = _of(*TASK_STATES)
step_states: Final = _of(*STEP_STATES)
