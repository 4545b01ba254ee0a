"""One command for many tasks: a loop of requests that goes on over single refusals and reports them at the end."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import click
import msgspec
from stepwire.client import Client, ClientError

from stepwire_broker.cli import output
from stepwire_broker.cli.confirmation import confirm
from stepwire_broker.cli.connection import UNREACHABLE, broker_client, failure_of, open_client
from stepwire_broker.cli.failure import Exit, leave, usage
from stepwire_broker.cli.options import Options

from .listing import COLUMNS, row
from .selection import NAMES, filters, select

SELECTED_MAX: Final = 100_000
SAMPLES_MAX: Final = 20
REQUESTS_IN_FLIGHT: Final = 8

Change = Callable[[Client, int], dict[str, Any]]


class Verb(NamedTuple):
    """The words for a change in messages, and the states of the tasks that a filter selects."""

    infinitive: str
    participle: str
    states: tuple[str, ...]


CANCEL: Final = Verb("cancel", "cancelled", ("running", "paused", "pending"))
RETRY: Final = Verb("retry", "retried", ("failed",))


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    dry_run = click.option("--dry-run", is_flag=True, help="Only print how many tasks match, and some of them.")
    most = click.option(
        "--limit", type=click.IntRange(1, SELECTED_MAX), metavar="N", help="With a filter: at most N tasks."
    )
    return most(dry_run(command))


def is_single(task_ids: tuple[int, ...], values: Mapping[str, str | None], dry_run: bool) -> bool:
    """True for one named task. Raises Failure unless tasks are either named or selected by a filter."""
    is_filter = any(values[name] is not None for name in NAMES)
    if bool(task_ids) == is_filter:
        usage("name the tasks by their ids, or select them by a filter: --state, --workflow, --since, …")
    return len(task_ids) == 1 and not dry_run


def run(
    options: Options,
    verb: Verb,
    task_ids: tuple[int, ...],
    values: Mapping[str, str | None],
    *,
    dry_run: bool,
    limit: int | None,
    change: Change,
    ends: bool = True,
) -> bool:
    """Change all tasks that are named or selected. Tasks of a filter are changed after a confirmation. A refusal ends
    the command; with `ends=False` the answer is False then."""
    with broker_client(options) as client:
        if task_ids:
            tasks = [client.task(task_id) for task_id in task_ids] if dry_run else []
            chosen = list(dict.fromkeys(task_ids))
        else:
            tasks = _selected(client, verb, values, limit)
            chosen = [task["task_id"] for task in reversed(tasks)]  # the task that waited longest first
        if not chosen:
            output.note(options, f"no matching task can be {verb.participle}")
            output.one(options, [], "") if options.output == "json" else None
            return True
        if dry_run:
            _print_samples(options, verb, tasks)
            return True
    if not task_ids:
        _confirm(options, verb, tasks)
    results = _change_all(options, verb, chosen, change)
    is_complete = _report(options, verb, results, len(chosen))
    if ends and not is_complete:
        leave(Exit.FAILURE)
    return is_complete


def _selected(client: Client, verb: Verb, values: Mapping[str, str | None], limit: int | None) -> list[dict[str, Any]]:
    wanted = filters(values)
    states = verb.states if wanted["state"] is None else (wanted["state"],)
    tasks, has_more = select(client, wanted, states, limit or SELECTED_MAX)
    if has_more and limit is None:
        usage(f"more than {SELECTED_MAX} tasks match: narrow the filter, or take the first with --limit N")
    return tasks


def _print_samples(options: Options, verb: Verb, tasks: list[dict[str, Any]]) -> None:
    samples = tasks[:SAMPLES_MAX]
    if options.output == "text":
        output.several(options, list(map(row, samples)), COLUMNS, "")
        more = f", {len(samples)} of them above" if len(samples) < len(tasks) else ""
        output.note(options, f"{_count(tasks)} would be {verb.participle}{more}; nothing has changed")
    else:
        output.one(options, {"count": len(tasks), "samples": samples}, "")


def _confirm(options: Options, verb: Verb, tasks: list[dict[str, Any]]) -> None:
    if options.output == "text" and not options.yes:
        samples = tasks[:SAMPLES_MAX]
        output.several(options, list(map(row, samples)), COLUMNS, "")
        if len(samples) < len(tasks):
            output.note(options, f"… and {len(tasks) - len(samples)} more")
    if not confirm(options, f"{verb.infinitive.capitalize()} {_count(tasks)}?"):
        output.note(options, "nothing has changed")
        leave(Exit.FAILURE)


class _Loop:
    """Requests for one task after the other, in several threads. A broker that does not answer ends the loop."""

    def __init__(self, task_ids: list[int], change: Change, advance: Callable[[int], None]) -> None:
        self.results: list[dict[str, Any]] = []
        self.unreachable: ClientError | None = None
        self._ids: Iterator[int] = iter(task_ids)
        self._change = change
        self._advance = advance
        self._lock = threading.Lock()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def work(self, client: Client) -> None:
        while (task_id := self._next()) is not None:
            try:
                task = self._change(client, task_id)
            except ClientError as error:
                if error.status == UNREACHABLE:
                    self.unreachable = error
                    self.stop()
                    return
                self._add({"task_id": task_id, "error": {"code": error.code, "detail": error.message}})
            else:
                self._add({"task_id": task_id, "state": task["state"], "attention": task["attention"]})

    def _next(self) -> int | None:
        with self._lock:
            return None if self._is_stopped else next(self._ids, None)

    def _add(self, result: dict[str, Any]) -> None:
        with self._lock:
            self.results.append(result)
            self._advance(1)


def _change_all(options: Options, verb: Verb, task_ids: list[int], change: Change) -> list[dict[str, Any]]:
    with ExitStack() as stack, output.progress(options, verb.participle, len(task_ids)) as advance:
        loop = _Loop(task_ids, change, advance)
        clients = [
            stack.enter_context(open_client(options, waits=True)) for _ in range(min(REQUESTS_IN_FLIGHT, len(task_ids)))
        ]
        threads = [threading.Thread(target=loop.work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            loop.stop()
            for thread in threads:
                thread.join()
    if loop.unreachable is not None:
        done = sum("error" not in one for one in loop.results)
        raise failure_of(options, loop.unreachable).about(f"{done} of {len(task_ids)} tasks are {verb.participle}")
    return loop.results


def _report(options: Options, verb: Verb, results: list[dict[str, Any]], count: int) -> bool:
    refused = [one for one in results if "error" in one]
    if options.output == "json":
        click.echo(msgspec.json.encode(results).decode())
    elif options.output == "jsonl":
        for one in results:
            click.echo(msgspec.json.encode(one).decode())
    else:
        output.echo(f"{len(results) - len(refused)} of {count} tasks are {verb.participle}")
    for one in refused[:SAMPLES_MAX]:
        output.echo(one["error"]["detail"], err=True)
    if len(refused) > SAMPLES_MAX:
        output.echo(f"… and {len(refused) - SAMPLES_MAX} more refusals: see -o json", err=True)
    return not refused and len(results) == count


def _count(tasks: list[dict[str, Any]]) -> str:
    return f"{len(tasks)} task{'s' * (len(tasks) != 1)}"
