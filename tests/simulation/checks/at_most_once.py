"""P5: an at_most_once step starts once, with a durable grant. An unknown outcome is held until an operator decides."""

from typing import Any

from stepwire_broker.core.model.live import LEVEL0
from stepwire_protocol import messages as wire

from tests.simulation.peer_node import RunningAtLevel0
from tests.simulation.worker_node import Running

from .books import Books, Run, StepBook
from .deliveries import REPORTED_BY_WORKER


def check_grant(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    if fact[3] != book.delivery:
        books.fail("P5 a grant names the current delivery", f"step {step_id}: {fact}, {book.delivery}")


def check_failed(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    is_unknown = fact[4] in ("outcome_unknown", "stopped") and fact[3] in book.granted
    if is_unknown and books.definition(step_id - 1 - fact[2], fact[2]).on_unknown != "fail":
        books.fail("P5 an unknown outcome is held", f"step {step_id}: {fact}")


def note_cancel(books: Books, message: wire.Cancel) -> None:
    """Note the runs that a worker is asked to stop. The other reasons name deliveries that have not started, or that
    no longer belong to the worker."""
    if message.reason in ("task_cancelled", "timeout"):
        for step_id, delivery in message.items:
            book = books.steps.get(step_id)
            if book is not None:
                book.cancelled.add(delivery)


def check_stopped(books: Books, step_id: int, book: StepBook, fact: list[Any], before: str) -> None:
    """A failure that is reported after a stop request, for a cancel or a time limit, leaves a held step as it is."""
    is_open = before == "held" and book.held_as is not None  # no operator has resolved it
    if is_open and fact[4] == "unstorable" and _has_succeeded(books, step_id, book):
        return  # a late success decides a held step; the database refused its rows
    if book.held_as == "stopped" or (is_open and fact[3] in book.cancelled):
        books.fail("P5 a stopped step stays held", f"step {step_id}: {fact}")


def check_unstorable(books: Books, step_id: int, book: StepBook, fact: list[Any], before: str) -> None:
    """A held step fails as unstorable only for a result of its own. A command whose rows are refused changes none."""
    if fact[4] == "unstorable" and before == "held" and book.held_as is not None:
        has_failed = book.held_as != "stopped" and any(run.result is not None for run in book.runs_of(book.delivery))
        if not has_failed and not _has_succeeded(books, step_id, book):
            books.fail("P5 a refused command leaves a held step as it is", f"step {step_id}: {fact}")


def _has_succeeded(books: Books, step_id: int, book: StepBook) -> bool:
    """A success has reached this life of the broker since an operator last had the step run again."""
    batches = [dispatch.batch_id for number, dispatch in book.dispatched.items() if number > book.reopened_delivery]
    succeeded = books.succeeded[books.owner_of(step_id).id]
    return any((step_id, batch_id) in succeeded for batch_id in batches)


def check_undelivered(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    delivery, code = fact[3], fact[4]
    if book.held_as is not None and code != "unknown_handler":
        books.fail("P5 a held step is dispatched again only if it did not run", f"step {step_id}: {fact}")
    if code == "unsent":
        if book.dispatched[delivery].batch_id in books.seen_batches:
            books.fail("P5 an unsent batch was never sent", f"step {step_id}: {fact}")
    elif delivery in book.granted and code not in (*REPORTED_BY_WORKER, "unknown_handler"):
        books.fail("P5 a granted delivery is not dispatched again", f"step {step_id}: {fact}")


def check_held(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    """The outcome is unknown for a reason: its worker died, fell silent, was too slow, or reported it as unknown."""
    book.held += 1
    book.held_as = fact[4]
    books.numbers["held"] += 1
    delivery = fact[3]
    worker, _, since_ms = book.dispatched[delivery]
    if delivery not in book.granted:
        books.fail("P5 only a granted at_most_once step is held", f"step {step_id}: {fact}")
    if worker.startswith(LEVEL0):
        if books.had_level0_lease(book, delivery):
            return
    elif books.is_cut_off(worker, step_id, since_ms):
        return
    for run in book.runs_of(delivery):
        if run.was_stopped or books.is_overdue(run) or run.is_unknown or books.is_result_overdue(run):
            return
    if books.has_deadline(step_id, fact[2]):
        return
    if books.tasks[step_id - 1 - fact[2]].cancel_asked:
        return  # a failure reported after a cancel does not decide the step
    books.fail("P5 a held step has a cause", f"step {step_id}, delivery {delivery} at {worker}: {fact}")


def check_reopened(books: Books, step_id: int, fact: list[Any]) -> None:
    if not any(books.tasks[step_id - 1 - fact[2]].operated.values()):
        books.fail("P5 only an operator reopens", f"step {step_id}: {fact}")


def check_go(books: Books, worker: str, message: wire.Go) -> None:
    for step_id, delivery in message.items:
        if delivery not in books.steps[step_id].granted:
            books.fail("P5 no go is sent before its commit", f"step {step_id}, delivery {delivery} to {worker}")


def check_granted(books: Books, book: StepBook, delivery: int, place: str) -> None:
    """The delivery of an at_most_once step starts, or is sent to a level-0 handler."""
    if delivery not in book.granted:
        books.fail("P5 an at_most_once step starts only when granted", place)


def check_started_once(books: Books, before: Run, running: Running | RunningAtLevel0) -> None:
    """An at_most_once step runs again between two operator's commands: only after a reported failure."""
    result = before.result
    has_failed = result is not None and result.status != "completed" and not before.is_unknown
    if not (has_failed and books.definition_of(running).retry_reported_failures):
        books.fail("P5 an at_most_once step starts once", f"{running.run.item}; before: delivery {before.delivery}")
