"""L7: a worker promises each of its places to one broker at a time (protocol/SPEC.md, section 9).

Independently of the worker, a ledger notes what each broker may still believe: the credit of every message that it may
not have read. A broker without a session does not count. A broker that decided a batch just before it read of a smaller
credit sends the batch all the same, so a worker may hold more than it has room for, and at most twice as many.
"""

import msgspec

from tests.simulation.worker_node import WorkerNode

from .books import Books


class _Offer(msgspec.Struct):
    """The members of a message of a worker that name credit."""

    type: str
    n: int = 0
    session: str | None = None
    free: int | dict[str, int] | None = None


_decode = msgspec.json.Decoder(_Offer).decode


def note_sent(books: Books, worker: WorkerNode, body: bytes) -> None:
    """A message that names credit leaves the worker: no place of it is promised to another broker."""
    offer, ledger = _decode(body), books.credit[worker.id]
    session = worker.session
    if isinstance(offer.free, dict):
        named = offer.free
        for broker, free in named.items():
            ledger.entries[broker].append([offer.n, free])
    elif offer.free is not None and not _is_copy(books, worker, offer):
        named = {peer.id: offer.free for peer in session.brokers if peer.session == offer.session}
        for broker, free in named.items():
            entries = ledger.entries[broker]
            if entries:
                entries[-1][1] = max(entries[-1][1], free)
            else:
                entries.append([0, free])
    else:
        return
    capacity, load = worker.slots + session.credit.room(worker.now()), session.holdings.load
    ledger.most = max(ledger.most, capacity)
    live = [peer.id for peer in session.brokers if peer.session]
    for broker, free in named.items():
        others = sum(ledger.promised(other) for other in live if other != broker)
        if free and broker in live and free + others + load > capacity:
            books.fail(
                "L7 a place is promised to one broker",
                f"{worker.id} offers {free} to {broker}, has promised {others} to others, holds {load} of {capacity}",
            )
    books.numbers["offers of workers judged"] += 1


def _is_copy(books: Books, worker: WorkerNode, offer: _Offer) -> bool:
    """Results that are sent again name their former credit, which brokers ignore."""
    return offer.type == "results" and offer.n in books.result_numbers[worker.id]


def note_steps(books: Books, worker: WorkerNode, broker: str, steps: int) -> None:
    """Steps of this broker have arrived, in its session or not."""
    for entry in books.credit[worker.id].entries[broker]:
        entry[1] = max(0, entry[1] - steps)


def check_held(books: Books, worker: WorkerNode) -> None:
    """The worker has handled steps."""
    load, most = worker.session.holdings.load, books.credit[worker.id].most
    if load > 2 * most:
        books.fail("L7 a worker holds at most twice what it offers", f"{load} at {worker.id}, with room for {most}")
    books.numbers["workers with more than they offered"] += load > most


def note_read(books: Books, worker: WorkerNode, broker: str, n: int) -> None:
    """Note that this broker has read the message with this number, and with it every earlier one."""
    entries = books.credit[worker.id].entries
    entries[broker] = [entry for entry in entries[broker] if entry[0] >= n]


def note_dropped(books: Books, worker: str, broker: str) -> None:
    """The session is over: what was promised in it counts no longer."""
    books.credit[worker].entries[broker].clear()
