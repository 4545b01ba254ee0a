"""P6: level 0 gets only steps that are its own, and a program that does not know a handler fails none of its steps."""

from typing import Any

from stepwire_broker.core.model.live import LEVEL0
from stepwire_protocol import messages as wire

from tests.simulation.broker_node import BrokerNode
from tests.simulation.peer_node import HANDLER

from .books import Books, StepBook

UNKNOWN = "unknown_handler"


def note_sent_to_worker(books: Books, broker: BrokerNode, message: wire.Steps) -> None:
    for step in message.steps:
        books.handlers_of_workers.setdefault((broker.id, step.handler_class), books.world.now)


def check_batch(books: Books, broker: BrokerNode, message: wire.StepsLevel0) -> None:
    """After a worker was sent a step of a handler, its steps go to level 0 only by name, over all restarts and deaths.
    A batch that was decided earlier may leave later, because its lane was slow."""
    configured = books.world.settings.bus.level0.handlers
    for step in message.steps:
        handler = step.handler_class
        if handler not in configured and (
            configured == (HANDLER,) or _is_of_worker(books, broker, handler, step.step_id)
        ):
            books.fail(
                "P6 level 0 gets no step of a worker's handler", f"step {step.step_id} ({handler}): {message.to}"
            )
        if (message.to, handler) in books.refused_handlers:
            books.fail("P6 a program is not asked again", f"step {step.step_id} ({handler}): {message.to}")


def _is_of_worker(books: Books, broker: BrokerNode, handler: str, step_id: int) -> bool:
    sent_ms = books.handlers_of_workers.get((broker.id, handler))
    dispatched_ms = books.world.tables.steps[step_id].stored.dispatched_ms
    decided_ms = broker.clock.true_of_wall(dispatched_ms, books.world.now)
    return sent_ms is not None and sent_ms < decided_ms


def note_undelivered(books: Books, task_id: int, step_id: int, book: StepBook, fact: list[Any]) -> None:
    """Note which handler the program of this delivery does not know, and check that the program said it."""
    delivery, code = fact[3], fact[4]
    worker, batch_id, _ = book.dispatched[delivery]
    if code != UNKNOWN or not worker.startswith(LEVEL0):
        return
    books.numbers["returned by level 0"] += 1
    if (step_id, batch_id) not in books.returned:
        books.fail("P6 only its program returns a step", f"step {step_id} at {worker}: {fact}")
    if batch_id not in books.mixed_refusals:
        handler = books.definition(task_id, fact[2]).handler_class
        books.refused_handlers.add((worker.removeprefix(LEVEL0).partition("/")[0], handler))


def check_failure(books: Books, step_id: int, book: StepBook, fact: list[Any]) -> None:
    """No attempt is used, and no step fails, because a program does not know a handler."""
    delivery, code = fact[3], fact[4]
    if code == UNKNOWN and delivery in book.dispatched and book.dispatched[delivery].worker.startswith(LEVEL0):
        books.fail("P6 an unknown handler at level 0 fails no step", f"step {step_id}: {fact}")
