"""W: a worker answers every batch that it receives in its session (protocol/SPEC.md, W3)."""

from typing import Final

from stepwire_protocol import messages as wire
from stepwire_protocol.messages import Item

from tests.simulation.worker_node import WorkerNode

from .books import Books

ANSWER_MS: Final = 300.0
WAITING_MS: Final = 1_000
RETURNS_MAX: Final = 30  # of one step by one worker; the steps of a seed seldom change their lengths


def expect_answer(books: Books, worker: WorkerNode, message: wire.Steps) -> None:
    peer = worker.session.brokers.get(message.broker)
    if peer is not None and peer.session == message.session and worker.now() < peer.lease.until_ms:
        key = (worker.id, message.batch_id)
        books.unanswered[key] = books.unanswered.get(key, 0) + 1
        books.world.schedule.after(ANSWER_MS, _check_answered, books, worker, worker.life, key, message)


def _check_answered(books: Books, worker: WorkerNode, life: int, key: tuple[str, str], message: wire.Steps) -> None:
    if not worker.is_alive or worker.life != life or worker.is_paused:
        return
    peer = worker.session.brokers.get(message.broker)
    if key in books.unanswered and peer is not None and peer.session == message.session:
        books.fail("W3 a worker answers every batch", f"batch {key[1]} at {key[0]}")


def check_slots(books: Books, worker: WorkerNode) -> None:
    """A handler was entered: the worker keeps to its slots, and each handler to its concurrency."""
    entered = worker.entered()
    if entered.total() > worker.slots:
        books.fail("W a worker runs at most as many steps as it has slots", f"{entered.total()} at {worker.id}")
    if worker.concurrency is not None and max(entered.values()) > worker.concurrency:
        books.fail("W a handler keeps to its concurrency", f"{entered} at {worker.id}")


def check_lease(books: Books, worker: WorkerNode, item: Item) -> None:
    """A handler was entered: its worker is sure that no broker considers it dead. Also during a broker's restart."""
    held = worker.session.holdings.get(item) if len(books.world.brokers) > 1 else None
    peer = worker.session.brokers.get("b1") if held is None else held.peer
    if peer is None or worker.now() >= peer.lease.until_ms:
        books.fail("W a step starts within the lease", f"{item} at {worker.id}")


def check_waiting(books: Books, worker: WorkerNode, message: wire.Heartbeat) -> None:
    """Steps that wait for long at a worker could have run elsewhere. It may keep twice as many as its program declared,
    and as many as it ran in that time."""
    waiting = sum(state == "queued" and age_ms >= WAITING_MS for _, _, state, age_ms in message.holding)
    since_ms = worker.now() - WAITING_MS
    # Steps that wait for their handler's concurrency may use as many places as there are slots.
    may_wait = (
        2 * (worker.prefetch or 0)
        + (worker.slots if worker.concurrency else 0)
        + sum(ended_ms >= since_ms for ended_ms in worker.ended_ms)
    )
    if len(books.world.brokers) > 1:
        may_wait = 2 * (may_wait + worker.slots)  # the credit of several brokers may reach twice the capacity
    if waiting > may_wait:
        books.fail("W a worker does not hoard steps", f"{waiting} wait at {worker.id}, and {may_wait} may")


def check_credit(books: Books, worker: WorkerNode, message: wire.Heartbeat) -> None:
    """A worker that is quiet, full or drains wants no further step."""
    if any(message.free.values()) and (worker.is_quiet or worker.is_full or worker.is_draining):
        books.fail("W a worker that accepts no steps offers no credit", f"{message.free} at {worker.id}")


def check_drained(books: Books, worker: WorkerNode) -> None:
    """The time to drain is over. A worker that holds nothing has quit before."""
    books.numbers["drains that took their whole time"] += 1
    if worker.session.is_idle:
        books.fail("W a drained worker quits", worker.id)


def count_returned(books: Books, worker: WorkerNode, message: wire.Refuse) -> None:
    """A worker that returns steps while it has credit left receives them again at once."""
    for step_id, _ in message.items if message.code == "busy" else ():
        books.sent_back[worker.id, step_id] += 1
        if books.sent_back[worker.id, step_id] > RETURNS_MAX:
            books.fail("W a worker does not return a step again and again", f"step {step_id} at {worker.id}")


def note_cancelled(books: Books, worker: WorkerNode, message: wire.Cancel) -> None:
    """A delivery that has not started when the cancel arrives never will, whether it has arrived yet or not."""
    peer = worker.session.brokers.get(message.broker)
    if peer is None or peer.session != message.session or worker.now() >= peer.lease.until_ms:
        return
    for step_id, delivery in message.items:
        held = worker.session.holdings.get((step_id, delivery))
        if held is None or held.reported_state in ("queued", "asking"):
            books.disowned_items.add((worker.id, step_id, delivery))
