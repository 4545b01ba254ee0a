"""`stepwire task submit`: submits one task or many, and waits for them if asked to."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click
import msgspec
from stepwire.client import Client, ClientError, Submitted, generated_key
from stepwire_protocol.patterns import split_name

from stepwire_broker.cli import completing, output, warnings
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import Exit, Failure, leave, usage
from stepwire_broker.cli.options import Options, StepwireCommand

from .context_option import read_context
from .show import print_task
from .waiting import exit_of, goes_on, seconds, task_goes_on, until_settled

TOO_LARGE: Final = "too_large"
BATCH_TASKS_MAX: Final = 1000  # tasks in one request of `submit -n`; several requests let the progress bar advance
IDS_NAMED_MAX: Final = 10


@click.command(cls=StepwireCommand)
@click.argument("workflow", shell_complete=completing.workflows)
@click.option("--namespace", metavar="NAME", shell_complete=completing.namespaces, help="The workflow's namespace.")
@click.option(
    "--version", metavar="VERSION", shell_complete=completing.versions, help="The workflow's version. [the active one]"
)
@click.option(
    "--context", metavar="J|@FILE|-", default="{}", help="A JSON object, the file that holds it, or - for stdin."
)
@click.option("--key", metavar="KEY", help="Idempotency key: submitting it again returns the same task.")
@click.option("--seal", is_flag=True, help="Seal the context with the first key of $STEPWIRE_SEAL_KEYS_FILE.")
@click.option("--priority", metavar="N", type=click.IntRange(-100, 100), help="A higher priority runs sooner.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Label for finding the task later.")
@click.option("--wait", is_flag=True, help="Wait until the task has ended or is held; the exit code tells which.")
@click.option("--follow", is_flag=True, help="Same as --wait, and show the progress.")
@click.option("--timeout", metavar="DURATION", help="Maximum time to wait, e.g. 30s.")
@click.option(
    "-n", "count", metavar="N", type=click.IntRange(1, 10_000_000), default=1, help="Submit N identical tasks."
)
@click.pass_obj
def submit(
    options: Options,
    /,
    workflow: str,
    key: str | None,
    count: int,
    wait: bool,
    follow: bool,
    timeout: str | None,
    **rest: Any,
) -> None:
    """Submit a task of WORKFLOW. WORKFLOW may have the form NAMESPACE::NAME."""
    request = _request(workflow, **rest)
    wait_s = seconds(timeout)
    if follow and count > 1:
        usage("--follow shows one task: for several, use --wait")
    with broker_client(options, waits=True) as client:
        if count > 1:
            task_ids = _submit_many(options, client, request, key, count)
            with goes_on("the tasks go on", "stepwire task list"):
                if not wait or options.output == "text":
                    _print_many(options, task_ids)
                _warn(options, client, request)
                leave(_await_many(options, client, task_ids, wait_s) if wait else Exit.OK)
        submitted = _submit(client, request, key)
        with task_goes_on(submitted.task_id):
            if wait or follow:
                output.note(options, f"task {submitted.task_id}")
            found = _warn(options, client, request)
            if wait or follow:
                _await(options, client, submitted.task_id, wait_s, is_followed=follow)
    existing = "" if submitted.created else " (an earlier submission has this key)"
    data = {
        "task_id": submitted.task_id,
        "created": submitted.created,
        "idempotency_key": submitted.key,
        "warnings": found,
    }
    is_quiet = options.verbosity < 0  # then only the id, for scripts
    output.one(options, data, str(submitted.task_id) if is_quiet else f"task {submitted.task_id}{existing}")
    output.note(options, f"next: stepwire task show {submitted.task_id}")


def _request(
    workflow: str,
    namespace: str | None,
    version: str | None,
    context: str,
    seal: bool,
    priority: int | None,
    labels: tuple[str, ...],
) -> dict[str, Any]:
    """The arguments of `Client.submit` for these options, without the key."""
    namespace, workflow = split_name(workflow, namespace)
    return {
        "workflow": workflow,
        "context": read_context(context),
        "namespace": namespace,
        "version": version,
        "priority": priority,
        "labels": dict(map(_label, labels)) or None,
        "seal": seal,
    }


def _submit(client: Client, request: dict[str, Any], key: str | None) -> Submitted:
    """Submit one task. The key is generated here, so that a submission whose outcome is unknown can be repeated."""
    used = key or generated_key()
    with _repeatable(f"--key {used}"):
        submitted = client.submit(**request, key=used)
    return submitted if key is not None else submitted._replace(created=True)


@contextmanager
def _repeatable(options: str) -> Iterator[None]:
    """A submission. If its outcome is unknown, name the options that repeat it without a second task."""
    hint = f"the submission may be stored; repeat it without a second task: add {options}"
    try:
        yield
    except KeyboardInterrupt:
        raise Failure(Exit.INTERRUPTED, "interrupted before the broker answered", hint) from None
    except ClientError as error:
        if not error.may_be_done:
            raise
        raise Failure(Exit.UNREACHABLE, error.message.rstrip("."), hint) from None


def _warn(options: Options, client: Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Print and return the warnings about the workflow: no worker offers one of its handlers."""
    found = warnings.of_stored(client, request["workflow"], request["namespace"], request["version"])
    warnings.show(options, found)
    return found


def _await(options: Options, client: Client, task_id: int, wait_s: float | None, *, is_followed: bool) -> NoReturn:
    if is_followed:
        from .watch import follow

        document = follow(options, client, task_id, wait_s)
        if options.output == "json":
            output.one(options, document, "")
    else:
        document = until_settled(options, client, task_id, wait_s)
        print_task(options, document)
    leave(exit_of(document))


def _submit_many(options: Options, client: Client, request: dict[str, Any], key: str | None, count: int) -> list[int]:
    task_ids: list[int] = []
    key = key or generated_key()
    batch = BATCH_TASKS_MAX
    with output.progress(options, "submitted", count) as advance, _repeatable(f"--key {key}"):
        while len(task_ids) < count:
            numbers = range(len(task_ids), min(len(task_ids) + batch, count))
            try:
                task_ids += client.submit_many([{**request, "key": f"{key}/{n}"} for n in numbers])
            except ClientError as error:
                if error.code != TOO_LARGE or len(numbers) == 1:
                    raise
                batch = len(numbers) // 2  # tasks of many steps: the broker bounds the steps of one request
                continue
            advance(len(numbers))
    return task_ids


def _print_many(options: Options, task_ids: list[int]) -> None:
    if options.output == "jsonl":
        for task_id in task_ids:
            click.echo(msgspec.json.encode({"task_id": task_id}).decode())
        return
    if options.verbosity < 0:
        text = "\n".join(map(str, task_ids))
    elif len(task_ids) <= IDS_NAMED_MAX:
        text = f"{len(task_ids)} tasks: {_named(task_ids)}"
    else:
        text = f"{len(task_ids)} tasks, the first {task_ids[0]}, the last {task_ids[-1]}"
    output.one(options, {"task_ids": task_ids}, text)


def _await_many(options: Options, client: Client, task_ids: list[int], wait_s: float | None) -> Exit:
    """Wait for every task, and print their states. Returns the highest of their exit codes.

    The states are printed also after an interruption: JSON output has the ids nowhere else.
    """
    until_s = None if wait_s is None else time.monotonic() + wait_s
    states: dict[int, dict[str, Any]] = {n: {"task_id": n, "state": None, "attention": None} for n in task_ids}
    worst = Exit.OK
    try:
        with output.progress(options, "finished", len(task_ids)) as advance:
            for task_id in task_ids:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                task = until_settled(options, client, task_id, left_s)
                states[task_id] |= {"state": task["state"], "attention": task["attention"]}
                worst = max(worst, exit_of(task))
                advance(1)
    finally:
        _print_states(options, list(states.values()))
    return worst


def _print_states(options: Options, tasks: list[dict[str, Any]]) -> None:
    if options.output == "jsonl":
        for task in tasks:
            click.echo(msgspec.json.encode(task).decode())
        return
    of_state: dict[str, list[int]] = {}
    for task in tasks:
        of_state.setdefault(task["attention"] or task["state"] or "not waited for", []).append(task["task_id"])
    parts = []
    for state, task_ids in of_state.items():
        is_named = len(of_state) > 1 and state != "completed"
        parts.append(f"{len(task_ids)} {state}" + (f": {_named(task_ids)}" if is_named else ""))
    if options.output == "json" or options.verbosity >= 0:
        output.one(options, {"task_ids": [task["task_id"] for task in tasks], "tasks": tasks}, "; ".join(parts))


def _named(task_ids: list[int]) -> str:
    more = f" and {len(task_ids) - IDS_NAMED_MAX} more" if len(task_ids) > IDS_NAMED_MAX else ""
    return ", ".join(map(str, task_ids[:IDS_NAMED_MAX])) + more


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        usage(f"--label {text}: use a form like region=eu")
    return name, value
