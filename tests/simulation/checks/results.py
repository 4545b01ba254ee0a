"""P3: a result is applied once, what it decided is final, and its acknowledgement follows the commit."""

from typing import Any

from stepwire_broker.core.definitions.stored_rows import StoredStep
from stepwire_broker.core.model.commit_group import HistoryRow
from stepwire_protocol import messages as wire

from .books import FINAL, TASK_FINAL, Books, StepBook, json


def check_step_fact(books: Books, task_id: int, step_id: int, fact: list[Any]) -> None:
    state, task_state = books.steps[step_id].state, books.tasks[task_id].state
    if state in FINAL and fact[0] != "reopened":
        books.fail("P3 a final state is final", f"step {step_id} was {state}, and then {fact}")
    if task_state in TASK_FINAL:
        books.fail("P3 a final state is final", f"task {task_id} was {task_state}, and then {fact}")


def check_task_fact(books: Books, task_id: int, fact: list[Any]) -> None:
    state = books.tasks[task_id].state
    if task_id in books.erased:
        books.fail("C an erased task stays as it is", f"task {task_id} was erased, and then {fact}")
    if state in TASK_FINAL and fact[0] not in ("task_reopened", "operated", "erased"):
        books.fail("P3 a final state is final", f"task {task_id} was {state}, and then {fact}")


def check_output(books: Books, step_id: int, output: bytes) -> None:
    """A step's stored output is one that a handler of that step returned for that delivery."""
    book = books.steps[step_id]
    if books.world.tables.steps[step_id].stored.task_id in books.erased:
        return  # erased in the transaction that completed it
    returned = books.outputs.get((step_id, book.completed_delivery), set())
    if output not in returned and step_id not in books.resolved_outputs:
        books.fail("P3 an outcome is what its handler returned", f"step {step_id} is stored with {output!r}")


def note_refused(books: Books, rows: HistoryRow) -> None:
    """The database will refuse these rows of a task."""
    for fact in json(rows.facts):
        if fact[0] in ("completed", "failed", "cancelled", "skipped"):
            books.refused_ends.add(rows.task_id + 1 + fact[2])


def check_blamed(books: Books, step_id: int, fact: list[Any]) -> None:
    """A step fails as unstorable only if rows with an end of this step were refused."""
    if fact[4] == "unstorable" and step_id not in books.refused_ends:
        books.fail("P3 only a refused result fails its step", f"step {step_id}: {fact}")


def check_ack(books: Books, worker: str, ack: wire.Ack) -> None:
    """An ack leaves the broker: the store must hold the result, or the fact that makes it too late."""
    for rid in ack.rids:
        message = books.results.get((worker, rid))
        if message is None:
            books.fail("P3 an ack names a sent result", f"{worker} was sent an ack of {rid}")
        for result in message.results:
            row = books.world.tables.steps.get(result.step_id)
            if row is not None and _would_apply(
                books.steps[result.step_id], row.stored, result, message.batch_id, worker
            ):
                books.fail(
                    "P3 no ack is sent before its commit",
                    f"{worker} was sent the ack of {rid}, and the store has {row.stored}",
                )


def _would_apply(book: StepBook, row: StoredStep, result: wire.Result, batch_id: str, worker: str) -> bool:
    """The store has not applied this result, and could: the step is open for results of this delivery."""
    if row.state in FINAL or row.state == "waiting":
        return False
    delivery = int(result.delivery)  # type: ignore[arg-type]
    dispatch = book.dispatched.get(delivery)
    if dispatch is None or dispatch[:2] != (worker, batch_id) or delivery <= book.reopened_delivery:
        return False
    return result.status == "completed" or (delivery == row.delivery and row.state == "dispatched")
