"""P6: retries are bounded and have a cause, and a deadline is a duration that no wall clock changes."""

from typing import Any

from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from tests.simulation.broker_node import BrokerNode
from tests.simulation.peer_node import RunningAtLevel0
from tests.simulation.worker_node import Running

from .books import Books, Run, StepBook


def check_timeout(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    """The handler took too long, or its worker was cut off."""
    delivery = fact[3]
    if fact[4] != "timeout" or delivery not in book.dispatched:
        return
    worker, _, since_ms = book.dispatched[delivery]
    if books.is_cut_off(worker, step_id, since_ms) or books.has_deadline(step_id, fact[2]):
        return
    runs = book.runs_of(delivery)
    if not any(run.was_stopped or books.is_overdue(run) or books.is_result_overdue(run) for run in runs):
        books.fail("P6 a timeout has a cause", f"step {step_id}, delivery {delivery} at {worker}: {fact}")


def check_retries(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    limit = books.definition(step_id - 1 - fact[2], fact[2]).retry_limit
    if book.backed_off > limit:
        books.fail("P6 retries are bounded", f"step {step_id}: {book.backed_off} retries, limit {limit}")


def check_lost_sessions(books: Books, step_id: int, book: StepBook) -> None:
    if book.lost > books.world.settings.bus.lost_sessions_max:
        books.fail("P6 lost sessions are bounded", f"step {step_id} has lost {book.lost}")


def check_attempt(books: Books, step: wire.StepRequest | wire.StepRequestLevel0) -> None:
    if step.metadata.attempt > step.metadata.retry_limit:
        books.fail("P6 retries are bounded", f"step {step.step_id} starts with attempt {step.metadata.attempt}")


def check_run_again(books: Books, book: StepBook, before: Run, running: Running | RunningAtLevel0) -> None:
    """An at_least_once step runs again between two operator's commands: for a cause that the protocol names."""
    result = before.result
    books.numbers["runs again"] += 1
    has_failed = result is not None and result.status != "completed"
    if has_failed or books.is_overdue(before) or before.was_stopped:
        return
    if books.is_result_overdue(before):
        return  # an at_most_once step would have been held
    if before.worker.at_level0:
        books.numbers["runs again, level 0"] += 1
        has_cause = before.delivery in book.taken_back
    else:
        books.numbers["runs again, lost"] += 1
        has_cause = books.is_cut_off(before.running.worker, running.run.item[0], before.at_ms)
    if not has_cause:
        books.fail("P6 no step runs again without a cause", f"{running.run.item}; {before.delivery}")


# -- deadlines --------------------------------------------------------------------------------------------------------


def note_readied(books: Books, task_id: int, book: StepBook, fact: list[Any]) -> None:
    """Note when a step with a deadline first became ready, as long as it stays in memory."""
    if books.definition(task_id, fact[2]).deadline_ms is not None and book.readied is None:
        broker = books.owner_of(task_id)
        decided_ms = broker.clock.true_of_wall(fact[1], books.world.now)
        if not book.delivery and not book.backed_off and not book.reopened:
            book.readied = broker.id, broker.life, decided_ms


def forget_readied(books: Books, page: events.LoadedTasks) -> None:
    """A deadline that is loaded from the database uses the wall clock, which may be wrong."""
    for row in page.loaded.steps:
        book = books.steps.get(row.id)
        if book is not None:
            book.readied = None


def check_deadline(books: Books, broker: BrokerNode, book: StepBook, step: wire.StepRequest) -> None:
    """While a step stays in memory, its deadline is a duration, whatever happens to the wall clock."""
    left_ms = step.metadata.deadline_ms
    if left_ms is None or book.readied is None or book.readied[:2] != (broker.id, broker.life):
        return
    deadline_ms = books.definition(step.task_id, step.step_id - step.task_id - 1).deadline_ms
    gone_ms = books.world.now - book.readied[2]
    # The message may have been built long before it is sent.
    if not deadline_ms - 1.02 * gone_ms - 50.0 <= left_ms <= deadline_ms:
        books.fail(
            "P6 a deadline does not follow the wall clock", f"step {step.step_id}: {left_ms} left after {gone_ms:.0f}"
        )
