"""P10: the history of every task replays to its rows, and the two databases agree."""

from stepwire_broker.core.commit import history

from .books import Books


def check_task_row(books: Books, task_id: int, state: str) -> None:
    by_history = books.tasks[task_id].state
    if by_history != state:
        books.fail("P10 the history replays", f"task {task_id} is {state}, by its history {by_history}")


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
