"""K: a rotation of the brokers' key shuts no worker out that knows the new key, and admits none with an old key."""

from typing import TYPE_CHECKING, Final

from stepwire_broker.bus.served_keys import ANNOUNCED_BEFORE_S
from stepwire_protocol import limits
from stepwire_protocol.messages import HeartbeatAck, Welcome

from tests.simulation.worker_node import WorkerNode

from .books import Books

if TYPE_CHECKING:
    from tests.simulation.network import Link
    from tests.simulation.world import World

SERVED_MS: Final = 2_000.0 + 1_000.0 * ANNOUNCED_BEFORE_S + 200.0  # after a change of the files, by a broker at work
# A silent worker tries the other listed key after SERVER_KEY_RETRY_MS, judged every second; libzmq waits for up to 1 s.
FOLLOWED_MS: Final = 1.03 * (limits.SERVER_KEY_RETRY_MS + 1_000.0) + 1_000.0
# The list that cancels a rotation has one key. A worker that used the other one has been disconnected by then.
CANCELLED_MS: Final = 1.03 * (limits.SOCKET_REBUILD_MS + 1_000.0) + 1_000.0


def note_listed(worker: WorkerNode, message: Welcome | HeartbeatAck) -> None:
    """A worker has handled a list of brokers: if it belongs to its session, the worker now knows these keys."""
    peer = worker.session.brokers.get("b1")
    if worker.is_alive and peer is not None and peer.session == message.session and message.brokers:
        # A copy of an earlier ack may list keys that are served no longer. No socket delivers one, see network.py.
        worker.link.is_misled = message.n < worker.link.listed_n
        worker.link.listed_n = max(message.n, worker.link.listed_n)
        keys = {entry.server_key for entry in message.brokers or ()}
        worker.link.known_keys |= {key for key in keys if key is not None}


def check_connections(world: "World") -> None:
    """Some time has passed: judge every connection, and every worker without one."""
    broker = world.broker
    is_at_work = broker.is_alive and not broker.is_paused
    for worker in world.workers[: world.on_bus]:
        if not worker.is_alive:
            continue
        link = worker.link
        if not is_at_work or worker.is_paused:
            link.shut_out_ms = link.withdrawn_ms = None
        elif world.network.is_joined(link):
            link.shut_out_ms = None
            _check_withdrawn(world.checks.books, link)
        else:
            link.withdrawn_ms = None
            _check_shut_out(world.checks.books, worker, link)


def _check_withdrawn(books: Books, link: "Link") -> None:
    """A connected worker: its key is in the files, or was until moments ago."""
    keys, now = books.world.server_keys, books.world.now
    if link.key not in keys.withdrawn_ms:
        link.withdrawn_ms = None
        return
    if link.withdrawn_ms is None:
        link.withdrawn_ms = now
    if now - link.withdrawn_ms > SERVED_MS:
        books.fail("K a worker with a withdrawn key is not admitted", f"{link.id} uses {link.key}")


def _check_shut_out(books: Books, worker: WorkerNode, link: "Link") -> None:
    """A worker without a connection: it does not know the key of its endpoint, or will be connected soon."""
    keys, now = books.world.server_keys, books.world.now
    expected = keys.expected_at(link.place)
    if expected not in link.known_keys or link.is_misled:
        link.shut_out_ms = None
        return
    if link.shut_out_ms is None or link.shut_out_ms < keys.changed_ms[link.place]:
        link.shut_out_ms = now
    is_cancelled = link.place == "next" and keys.was_cancelled
    tries = max(1, len(link.known_keys) - 1)  # a worker that learned of two changes in a row may try each key in turn
    limit_ms = SERVED_MS + (CANCELLED_MS if is_cancelled else FOLLOWED_MS * tries)
    if now - link.shut_out_ms > limit_ms:
        books.fail(
            "K a worker that knows the brokers' key is not shut out",
            f"{worker.id} knows {sorted(link.known_keys)}, uses {link.key}, and {link.place} serves {expected}",
        )


def check_dropped(books: Books, worker: str) -> None:
    """A session has ended. A rotation alone ends none: the worker is connected again within its lease.

    A shorter lease than the default one may end before a silent worker tries the second key."""
    link = books.world.network.links.get(("b1", worker))
    keys = books.world.server_keys
    if not keys.is_on or link is None or not books.world.faults.on <= {"server_key_rotated"}:
        return
    if min(books.world.leases_ms) < limits.LEASE_MS:
        return
    # A worker at bus.next is disconnected when a rotation begins. A cancel, or the next rotation a few seconds later,
    # then comes too soon for it.
    if link.place == "main" or (not keys.was_cancelled and keys.expected_at("next") in link.known_keys):
        books.fail("K a rotation ends no session", worker)
