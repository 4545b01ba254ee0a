"""W: a worker answers every batch that it receives in its session (protocol/SPEC.md, W3)."""

from typing import Final

from stepwire_protocol import messages as wire

from tests.simulation.worker_node import WorkerNode

from .books import Books

ANSWER_MS: Final = 300.0


def expect_answer(books: Books, worker: WorkerNode, message: wire.Steps) -> None:
    peer = worker.session.brokers.get("b1")
    if peer is not None and peer.session == message.session and worker.now() < peer.lease.until_ms:
        key = (worker.id, message.batch_id)
        books.unanswered[key] = books.unanswered.get(key, 0) + 1
        books.world.schedule.after(ANSWER_MS, _check_answered, books, worker, worker.life, key, message.session)


def _check_answered(books: Books, worker: WorkerNode, life: int, key: tuple[str, str], session: str) -> None:
    if not worker.is_alive or worker.life != life or worker.is_paused:
        return
    peer = worker.session.brokers.get("b1")
    if key in books.unanswered and peer is not None and peer.session == session:
        books.fail("W3 a worker answers every batch", f"batch {key[1]} at {key[0]}")


def note_cancelled(books: Books, worker: WorkerNode, message: wire.Cancel) -> None:
    """A delivery that has not started when the cancel arrives never will, whether it has arrived yet or not."""
    peer = worker.session.brokers.get("b1")
    if peer is None or peer.session != message.session or worker.now() >= peer.lease.until_ms:
        return
    for step_id, delivery in message.items:
        held = worker.session.holdings.get((step_id, delivery))
        if held is None or held.state in ("queued", "asking"):
            books.disowned_items.add((worker.id, step_id, delivery))
