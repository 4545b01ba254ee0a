"""Workers that connect and stay: hello, heartbeat, and other changes of a live session."""

from collections.abc import Iterable
from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Bye, Heartbeat, Hello

from stepwire_broker.core import letters
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.commit.decision import OffersLeftOut, ToWorker
from stepwire_broker.core.dispatch.transmission import resend
from stepwire_broker.core.model.events import Attached, Leave, Now, Subscribed
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.model.principal import Rights
from stepwire_broker.core.model.targets import BUS
from stepwire_broker.core.model.worker_session import opened
from stepwire_broker.core.progress.deliveries import hand_to
from stepwire_broker.core.progress.step_outcomes import undeliver
from stepwire_broker.core.state import BrokerState

from . import authority
from .holding import ask_soon, compare_holding
from .loss import close, watch, watch_lease
from .replies import refuse, send_here, send_reset, turn_away

MAJOR_VERSION: Final = limits.PROTOCOL_LEVEL_1.partition(".")[0]


def on_hello(state: BrokerState, hello: Hello, now: Now) -> None:
    broker = state.identity.broker
    if not any(version.partition(".")[0] == MAJOR_VERSION for version in hello.versions):
        send_reset(state, hello.worker, hello.next.get(broker, 1), "version", now)
        return
    k = hello.next.get(broker)
    if k is None:
        send_here(state, hello.worker)
        return
    session = state.sessions.get(hello.worker)
    if session is not None and k < session.k:
        state.counters.ignored += 1
        return
    if k <= state.dead_k.get(hello.worker, 0):
        send_reset(state, hello.worker, k, "expired", now)
        return
    if session is None or k > session.k:
        rights = authority.rights_of(state, state.principal)
        assert rights is not None, "authority lets no message of a principal without a grant pass"
        violation = authority.outside_grant(state, rights, hello)
        if violation is not None:
            refuse(state, hello.worker, authority.UNAUTHORIZED, violation, "hello")
            send_reset(state, hello.worker, k, "unauthorized", now)
            return
        session = _open(state, hello, k, rights, session, now)
    elif session.expired:
        send_reset(state, hello.worker, k, "expired", now)
        return
    elif session.muted:
        return  # its lease must end
    if hello.n > session.reported_n:
        compare_holding(state, session, hello.n, hello.holding, now)
    listed = addresses.in_welcome(state, hello.worker)
    welcome = letters.welcome(state.identity, session, hello.n, state.settings.bus, listed)
    state.decision.sends.append(ToWorker(session.topic, welcome))


def _open(
    state: BrokerState, hello: Hello, k: int, rights: Rights, before: WorkerSession | None, now: Now
) -> WorkerSession:
    """Open a session. It takes over the deliveries that the worker still holds; the worker dropped the others."""
    attached = state.attached.get(hello.worker) or state.on_the_bus(hello.worker)
    executor = state.executor(attached.executor)
    session = opened(hello, k, state.identity.epoch, state.identity.broker, executor, rights, now.mono, now.wall)
    session.draining = hello.worker in state.quieted
    session.joins_bus = attached.joins_bus
    state.sessions[hello.worker] = session
    state.offer_cache.clear()
    record_offers(state, session, session.handlers, now)
    state.counters.sessions_opened += 1
    if before is None:
        state.sessions_of[session.principal] = state.sessions_of.get(session.principal, 0) + 1
    else:
        _take_over(state, hello, before, session, now)
    if session.has_lease:
        watch_lease(state, session)
    if hello.worker in state.recovered:
        ask_soon(state, session)
    watch(state, session, now)  # its subscription may have vanished before this hello arrived
    return session


def record_offers(state: BrokerState, session: WorkerSession, handlers: Iterable[str], now: Now) -> None:
    """Store which handlers this worker offers, if it takes steps of the bus: such handlers are not for level 0 unless
    the settings name them. A worker of another executor takes only what a rule sends to it, so its offer does not
    count."""
    if session.joins_bus or session.executor == BUS:
        recorded = state.level0_handlers.record(handlers, session.worker, now.wall)
        for row in recorded.rows:
            state.set_control(row)
        if recorded.left_out:
            state.decision.offers_left_out.append(OffersLeftOut(session.worker, recorded.left_out))


def _take_over(state: BrokerState, hello: Hello, before: WorkerSession, session: WorkerSession, now: Now) -> None:
    holding = {(item[0], item[1]) for item in hello.holding}
    close(before)
    for step in list(before.deliveries.values()):
        if (step.id, step.delivery) in holding:
            before.deliveries.pop(step.id)
            before.suspects = 0
            step.batch = None
            step.session = None
            hand_to(step, session)
        else:
            # The worker dropped this delivery and will never start it, granted or not.
            undeliver(state, step, "session_replaced", now, avoid=False)


def on_heartbeat(state: BrokerState, beat: Heartbeat, now: Now) -> None:
    broker = state.identity.broker
    session_id = beat.sessions.get(broker)
    session = state.sessions.get(beat.worker)
    if session_id is None or session is None or session.id != session_id or session.expired:
        turn_away(state, beat.worker, session_id, now)
        return
    session.confirmed = True
    if len(state.live_brokers) > 1:
        session.brokers = state.live_brokers & beat.sessions.keys()
    if session.muted:
        return
    if beat.n > session.free_n:
        session.free_n = beat.n
        if broker in beat.free:
            session.offer(beat.free[broker], beat.slots_free.get(broker))
    if beat.n > session.reported_n:
        compare_holding(state, session, beat.n, beat.holding, now)
    is_idle = not session.deliveries and not beat.holding
    must_quit = state.quieted.get(session.worker, False) and is_idle
    addresses.acknowledge(state, session, beat.n, quit=must_quit, now=now)


def on_bye(state: BrokerState, bye: Bye, now: Now) -> None:
    session = state.sessions.get(bye.worker)
    if session is not None:
        session.draining = True


def on_subscribed(state: BrokerState, event: Subscribed, now: Now) -> None:
    """Resend the worker's unanswered batches at once: from now on the worker receives its messages."""
    state.inboxes[event.worker] = state.principal
    if event.kind is not None:
        state.came_by[event.worker] = event.kind
    session = state.sessions.get(event.worker)
    if session is not None and session.is_addressable:
        for batch in list(session.unanswered_batches.values()):
            if batch.released:
                resend(state, batch)


def on_attached(state: BrokerState, event: Attached, now: Now) -> None:
    """Record that a worker inside this process belongs to this executor."""
    state.attached[event.worker] = event
    if event.grant is not None:
        state.token_rights[event.principal] = rights = Rights(event.grant)
        if not rights.is_for_all_namespaces:
            state.split_namespaces(True)  # until the next change of grants, because splitting touches every ready step
        for each in state.sessions.values():
            if each.principal == event.principal:
                each.rights = rights
    session = state.sessions.get(event.worker)
    if session is not None:
        session.of, session.joins_bus = state.executor(event.executor), event.joins_bus
        state.offer_cache.clear()


def on_leave(state: BrokerState, event: Leave, now: Now) -> None:
    """Reset all sessions, because this broker shuts down. Workers keep their runs for its next process."""
    for session in state.sessions.values():
        send_reset(state, session.worker, session.k, "shutdown", now)
