"""The addresses of the live brokers, as workers receive them: in every `welcome`, and after a change in acks of
heartbeats. A worker connects to each listed broker, and divides its credit among them.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from stepwire_protocol.messages import Endpoints

from stepwire_broker.core import letters
from stepwire_broker.core.brokers.listeners import BrokerEndpoints, ListenerKind, PartialWorker, to_row, usable_by
from stepwire_broker.core.commit.decision import ToWorker
from stepwire_broker.core.model.events import EndpointsBound, HttpServed, Now
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import level0

PARTIAL_WORKERS_MAX: Final = 32  # in a row
HANDLERS_MAX: Final = 64  # of each of them
REPEATED_MS: Final = 60_000  # changed addresses are repeated for this time, because a message may be lost


def on_endpoints_bound(state: BrokerState, event: EndpointsBound, now: Now) -> None:
    broker, before = state.identity.broker, state.own_addresses
    state.own_listeners = BrokerEndpoints(broker, state.identity.host, event.listeners)
    state.own_addresses = [Endpoints(broker, event.steps, event.results, event.server_key)]
    if event.next is not None:
        state.own_addresses.append(Endpoints(broker, event.next.steps, event.next.results, event.next.server_key))
    state.own_in_welcome = state.own_addresses
    if event.replaced is not None:
        # A worker without a session came with this key, and is disconnected in a moment. Of two listed keys it tries
        # the second one in time; with the new key alone it would not know that its own is the wrong one.
        old = Endpoints(broker, event.steps, event.results, event.replaced)
        state.own_in_welcome = [old, *state.own_addresses]
    _choose(state)
    if before and before != state.own_addresses:
        _send_all(state, now)


def on_others(state: BrokerState, others: Iterable[BrokerEndpoints], now: Now) -> None:
    """Learn which other brokers live now, and how workers reach them."""
    live = tuple(sorted(others, key=lambda other: other.broker))
    if live == state.other_brokers:
        return
    if (more := len(live) - len(state.other_brokers)) > 0:
        level0.extend_leases(state, more)
    state.other_brokers = live
    state.live_brokers = frozenset((state.identity.broker, *(other.broker for other in live)))
    before = state.others_addresses
    _choose(state)
    if state.others_addresses != before:
        _send_all(state, now)


def row_of(state: BrokerState) -> str:
    """The text of this broker's row, from which the other brokers learn its listeners, and which workers miss them."""
    identity, own = state.identity, state.own_listeners
    return to_row(
        BrokerEndpoints(
            identity.broker,
            identity.host,
            own.listeners if own is not None else (),
            tuple(_partial_workers(state)),
            identity.epoch,
            state.http_url,
        )
    )


def missing(state: BrokerState, session: WorkerSession) -> list[str]:
    """The live brokers that this worker has no session with. A worker of this process has no session with others."""
    if len(state.live_brokers) == 1 or not session.confirmed or session.worker in state.attached:
        return []
    return sorted(state.live_brokers - session.brokers)


def on_http_served(state: BrokerState, event: HttpServed, now: Now) -> None:
    state.http_url = event.url


def _partial_workers(state: BrokerState) -> Iterator[PartialWorker]:
    """Some of the workers whose heartbeats name no session with some live broker. `why` names them at that broker."""
    if len(state.live_brokers) == 1:
        return
    partial = (session for session in state.sessions.values() if missing(state, session))
    for session in islice(partial, PARTIAL_WORKERS_MAX):
        yield PartialWorker(session.worker, tuple(session.handlers[:HANDLERS_MAX]), tuple(sorted(session.brokers)))


def in_welcome(state: BrokerState, worker: str) -> list[Endpoints]:
    return _with_others(state, worker, state.own_in_welcome)


def in_ack(state: BrokerState, worker: str, now: Now) -> list[Endpoints] | None:
    """The addresses while keys rotate, and for some time after a change: an ack may be lost. None: no news."""
    is_rotating = len(state.own_addresses) > 1
    if not is_rotating and now.mono >= state.addresses_repeated_until_mono:
        return None
    return _with_others(state, worker, state.own_addresses)


def acknowledge(state: BrokerState, session: WorkerSession, n: int, *, quit: bool, now: Now) -> None:
    """Acknowledge the heartbeat `n`. The addresses of brokers ride on it while they are news."""
    ack = letters.heartbeat_ack(
        state.identity,
        session,
        n,
        quiet=state.draining or session.worker in state.quieted,
        quit=quit,
        brokers=in_ack(state, session.worker, now),
    )
    state.decision.sends.append(ToWorker(session.topic, ack))


def _send_all(state: BrokerState, now: Now) -> None:
    """Repeat the ack of each worker's last report, with the changed addresses."""
    state.addresses_repeated_until_mono = now.mono + REPEATED_MS
    for session in state.sessions.values():
        if session.is_addressable:
            acknowledge(state, session, session.reported_n, quit=False, now=now)


def _choose(state: BrokerState) -> None:
    """Choose the addresses for workers of each kind."""
    state.others_addresses = {}
    own = state.own_listeners
    if own is None or not state.other_brokers:
        return
    for kind in ListenerKind:
        usable = (usable_by(kind, own, other) for other in state.other_brokers)
        state.others_addresses[kind] = [address for address in usable if address is not None]


def _with_others(state: BrokerState, worker: str, own: list[Endpoints]) -> list[Endpoints]:
    """The addresses of this broker and of the others, of the kind by which the worker came. A worker that is configured
    with several brokers recognizes this one by its address."""
    if not state.others_addresses:
        return own
    kind = state.came_by.get(worker) or _usual_kind(state)
    if kind is not ListenerKind.CURVE and state.own_listeners is not None:
        near = next((each for each in state.own_listeners.listeners if each.kind is kind), None)
        if near is not None:
            own = [Endpoints(state.identity.broker, near.steps, near.results)]
    return [*own, *state.others_addresses[kind]]


def _usual_kind(state: BrokerState) -> ListenerKind:
    """The kind of the listener that this broker names for itself: most workers come to it."""
    (first, *_) = state.own_addresses
    if first.server_key is not None:
        return ListenerKind.CURVE
    return ListenerKind.TCP if first.steps.startswith("tcp://") else ListenerKind.IPC
