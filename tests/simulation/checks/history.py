"""P10: the history of every task replays to its rows, and the two databases agree."""

from stepwire_broker.core.commit import history
from stepwire_broker.store.lane import Rows

from .books import Books


def check_task_row(books: Books, task_id: int, state: str) -> None:
    by_history = books.tasks[task_id].state
    if by_history != state:
        books.fail("P10 the history replays", f"task {task_id} is {state}, by its history {by_history}")


def check_attention(books: Books, rows: Rows) -> None:
    """After a commit: the table of attention has the steps and tasks that need an operator, and no others."""
    tables = books.world.tables
    for row in (*rows.steps_dispatched, *rows.steps_completed, *rows.steps_changed):
        step = tables.steps.get(row.id)  # None: its task was left out, because another task has its key
        state = None if step is None else step.stored.state
        _check_noticed(books, row.id, state if state in ("held", "failed") else None)
    for task in rows.tasks_changed:
        _check_noticed(books, task.id, None if task.attention is None else f"task_{task.attention}")


def _check_noticed(books: Books, number: int, expected: str | None) -> None:
    noticed = books.world.tables.attention.get(number)
    kind = None if noticed is None else noticed.kind
    if kind != expected:
        books.fail("P5 what needs an operator is listed", f"{number} is listed as {kind}, and is {expected}")


def check_replays(books: Books) -> None:
    """At the end, for every task."""
    for task_id in books.world.tables.tasks:
        _check_replay(books, task_id)
    for difference in books.world.store.differences():
        books.fail("both databases agree", difference)


def _check_replay(books: Books, task_id: int) -> None:
    tables = books.world.tables
    facts = [row.facts for row in tables.history[task_id]]
    try:
        replayed = history.replay(task_id, books.workflow_of(task_id), facts)
    except history.CannotReplay as error:
        books.fail("P10 the history replays", str(error))
    wrong = history.differences(replayed, tables.stored_task(task_id), tables.stored_steps(task_id))
    if wrong:
        books.fail("P10 the history replays", str(wrong[:3]))
