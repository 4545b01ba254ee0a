"""P4: a step runs on one worker at a time, and a delivery that was taken back neither leaves nor starts again."""

from typing import Any, Final

from stepwire_protocol import messages as wire

from tests.simulation.peer_node import PeerNode, RunningAtLevel0
from tests.simulation.worker_node import Running, WorkerNode

from .books import Books, Run, StepBook

# The live process itself reports that it will not run the delivery; or the commit of the dispatch was refused.
REPORTED_BY_WORKER: Final = ("not_held", "session_replaced", "stale", "busy", "draining", "unstorable")


def check_number(books: Books, book: StepBook, step_id: int, delivery: int) -> None:
    if delivery <= book.delivery:
        books.fail("P4 delivery numbers rise", f"step {step_id} has delivery {delivery} after {book.delivery}")


def check_taken_back(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    """The broker takes a delivery back: its worker must not hold it, and a level-0 handler must have had its lease."""
    delivery, code = fact[3], fact[4]
    worker_id = book.dispatched[delivery].worker
    # A handler that has answered is idle again, even if the database refused its result.
    is_returned = (step_id, book.dispatched[delivery].batch_id) in books.returned
    has_answered = is_returned or any(run.result is not None for run in book.runs_of(delivery))
    if code == "unanswered" and not has_answered and not books.had_level0_lease(book, delivery):
        books.fail("P4 a level-0 handler has its whole lease", f"step {step_id} at {worker_id}: {fact}")
    worker = next((w for w in books.world.workers if w.is_alive and w.id == worker_id), None)
    if worker is not None and code in REPORTED_BY_WORKER and code != "unstorable":
        held = worker.session.holdings.get((step_id, delivery))
        if held is not None and held.state is not None:
            books.fail("P4 a step that a worker holds goes to no other", f"step {step_id} at {worker_id}: {fact}")


def check_level0_batch(books: Books, to: str, message: wire.StepsLevel0) -> None:
    if message.to != to or message.batch_id in books.seen_batches:
        books.fail("P4 a level-0 batch is sent once, to one handler", f"{message.batch_id} to {to}")


def check_resent(books: Books, message: wire.Steps) -> None:
    """Every delivery in a resent batch is still under way."""
    for step in message.steps:
        book = books.steps[step.step_id]
        if book.delivery != step.delivery or book.state != "dispatched":
            books.fail(
                "P4 a delivery that was taken back is not resent",
                f"step {step.step_id}, delivery {step.delivery}: it is {book.state}, delivery {book.delivery}",
            )


def check_entered(
    books: Books, book: StepBook, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode
) -> None:
    item = running.run.item
    step_id, delivery = item
    if (worker.id, step_id, delivery) in books.entered_items:
        books.fail("P4 a delivery runs once", f"{item} at {worker.id}")
    books.entered_items.add((worker.id, step_id, delivery))
    if delivery in book.taken_back and not worker.at_level0:
        books.fail("P4 a delivery that was taken back does not start", f"{item} at {worker.id}")
    if (worker.id, step_id, delivery) in books.disowned_items:
        books.fail("P4 a disowned delivery does not start", f"{item} at {worker.id}")


def check_overlap(
    books: Books, book: StepBook, before: Run, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode
) -> None:
    """Another run of the step is not over yet."""
    if before.ended_ms is not None or not before.worker.is_alive or before.life != before.worker.life:
        return
    # A delivery from before an operator's retry may start after it: no message could call it back in time.
    if running.run.item[1] > book.reopened_delivery and not _may_overlap(books, book, before):
        books.fail(
            "P4 runs overlap only with a cause",
            f"step {running.run.item[0]} runs at {before.running.worker} (delivery {before.delivery}) and {worker.id}",
        )
    books.numbers["overlaps"] += 1


def _may_overlap(books: Books, book: StepBook, before: Run) -> bool:
    if before.reopened != book.reopened or before.was_stopped or books.is_overdue(before):
        return True
    if before.worker.at_level0:
        return before.delivery in book.taken_back  # the broker cannot stop a level-0 handler
    return books.is_cut_off(before.running.worker, before.running.run.item[0], before.at_ms)
