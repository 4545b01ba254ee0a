"""C: once an erasure is committed, no row holds a payload of the task, and no message carries one."""

from collections.abc import Iterable
from typing import Any

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.model import facts
from stepwire_broker.store import erasure

from .books import Books

CHECK = "C an erased payload is in no row"


def note_erased(books: Books, task_id: int, fact: list[Any]) -> None:
    books.erased[task_id] = fact[1]


def check_committed(books: Books, task_ids: Iterable[int]) -> None:
    """Check the erased tasks among those that a commit wrote."""
    for task_id in task_ids:
        if task_id in books.erased:
            check_rows(books, task_id)


def check_all(books: Books) -> None:
    """At the end."""
    for task_id in books.erased:
        check_rows(books, task_id)


def check_rows(books: Books, task_id: int) -> None:
    tables = books.world.tables
    marker = erasing.marker(books.erased[task_id])
    task = tables.tasks[task_id]
    if (task.key, task.labels, task.context) != (None, marker, marker):
        books.fail(CHECK, f"task {task_id}: {task}")
    if any(owner.task_id == task_id for owner in tables.keys.values()):
        books.fail(CHECK, f"task {task_id} still owns a key")
    step_ids = set(tables.steps_of[task_id])
    for step_id in step_ids:
        stored, stderr = tables.steps[step_id].stored, tables.stderr.get(step_id)
        texts = {stored.output, stored.error, None if stderr is None else stderr.text}
        if texts - {None, marker.decode()}:
            books.fail(CHECK, f"step {step_id}: {texts}")
    for row in tables.parked.values():
        is_frame = row.code in erasure.FRAME_CODES and erasure.names_a_step(row.body, step_ids)
        if (row.task_id == task_id or is_frame) and row.body != marker:
            books.fail(CHECK, f"parked for task {task_id}: {row}")
    for row in tables.history[task_id]:
        for fact in facts.decode(row.facts):
            text = getattr(fact, "message", None)
            if text not in (None, erasing.TEXT):
                books.fail(CHECK, f"task {task_id}: {fact}")


def check_sent(books: Books, task_ids: Iterable[int]) -> None:
    """A message with steps of these tasks leaves the broker."""
    for task_id in task_ids:
        if task_id in books.erased:
            books.fail("C no message carries an erased payload", f"a step of task {task_id} was sent after its erasure")
