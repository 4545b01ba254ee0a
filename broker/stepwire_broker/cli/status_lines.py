"""The text of `stepwire db status`: what every database contains, after the lines of its own kind."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.phrases import counted

from . import output
from .db_access import counts_text, time_text
from .options import Options

if TYPE_CHECKING:
    from stepwire_broker.store.contents import Contents

LABEL_WIDTH: Final = 21


def print_status(options: Options, status: "Contents", own: Iterator[tuple[str, str]]) -> None:
    lines = [*own, *_lines(status)]
    output.one(options, status, "\n".join(f"{name:<{LABEL_WIDTH}}{text}" for name, text in lines), indent=LABEL_WIDTH)
    if status.held_steps:
        output.note(options, "next: stepwire step list --state held")


def _lines(status: "Contents") -> Iterator[tuple[str, str]]:
    yield "deployment", status.deployment
    yield "last epochs", counts_text(status.brokers, "none")
    yield "tasks", counts_text(status.tasks, "none")
    yield "steps of open tasks", counts_text(status.open_steps, "none")
    yield "held steps", str(status.held_steps)
    if status.oldest_open_task is not None and status.oldest_open_since_ms is not None:
        yield "oldest open", f"task {status.oldest_open_task}, since {time_text(status.oldest_open_since_ms)}"
    yield "set aside", f"{counted(status.parked, 'input')} that the broker accepted and the database refused"
    yield "rules", f"{counted(status.rules, 'routing rule')} set at run time"
    yield "handlers", f"{counted(status.offered_handlers, 'handler')} that workers have offered"
    yield "to prune", f"{counted(status.expired_tasks, 'task')} past the retention time"
    yield "last prune", "never" if status.last_prune is None else _last_prune(status.last_prune)
    if status.restored is not None:
        made = "" if status.last_backup_ms is None else f", from a backup of {time_text(status.last_backup_ms)}"
        yield "restored", f"{time_text(status.restored['restored_ms'])}{made}"


def _last_prune(last: dict[str, Any]) -> str:
    counts = removed_text(last["tasks"], last["steps"], last["parked"])
    return f"{time_text(last['ended_ms'])}: {counts}, in {(last['ended_ms'] - last['started_ms']) / 1000:.1f} s"


def removed_text(tasks: int, steps: int, parked: int) -> str:
    return f"{counted(tasks, 'task')}, {counted(steps, 'step')}, {counted(parked, 'input')} set aside"
