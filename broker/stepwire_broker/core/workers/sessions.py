"""Workers come, stay and go: hello, heartbeat, bye, death; what they hold, and what became of what they held."""

from typing import Final

from stepwire_protocol import limits, topics
from stepwire_protocol.messages import (
    Adopt,
    Adopted,
    Bye,
    Cancel,
    Gone,
    Heartbeat,
    HeartbeatAck,
    HeldItem,
    Hello,
    Here,
    Refused,
    Reset,
    ResetCode,
    Welcome,
)

from stepwire_broker.core.commit.decision import ToWorker, WatchProcess
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.dispatch.transmission import resend
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import (
    Attached,
    Detached,
    Leave,
    LoopWasLate,
    Now,
    ProcessDied,
    Subscribed,
    SubscriptionVanished,
)
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED
from stepwire_broker.core.model.worker_session import opened
from stepwire_broker.core.progress.deliveries import hand_to
from stepwire_broker.core.progress.step_outcomes import fail_for, undeliver, unknown_outcome
from stepwire_broker.core.state import DEAD_REMEMBERED_MAX, BrokerState
from stepwire_broker.core.timer_kinds import AdoptionDue, LeaseEnds, RunLimit

V: Final = limits.PROTOCOL_LEVEL_1
LOOK_AGAIN_MS: Final = 1_000


# -- hello ------------------------------------------------------------------------------------------------------------


def on_hello(state: BrokerState, hello: Hello, now: Now) -> None:
    identity = state.identity
    if not any(v.partition(".")[0] == V.partition(".")[0] for v in hello.versions):
        reset(state, hello.worker, hello.next.get(identity.broker, 1), "version")
        return
    k = hello.next.get(identity.broker)
    if k is None:
        here(state, hello.worker)
        return
    current = state.sessions.get(hello.worker)
    if current is not None and k < current.k:
        state.counters.ignored += 1
        return
    if k <= state.dead_k.get(hello.worker, 0):
        reset(state, hello.worker, k, "expired")
        return
    if current is None or k > current.k:
        current = _open(state, hello, k, current, now)
    elif current.muted:
        return  # its lease is to run out
    if hello.n > current.told_n:
        _take_word(state, current, hello.n, hello.holding, now)
    bus = state.settings.bus
    state.decision.sends.append(
        ToWorker(
            current.topic,
            Welcome(
                v=V,
                broker=identity.broker,
                epoch=identity.epoch,
                session=current.id,
                deployment=identity.deployment,
                n=hello.n,
                lease_ms=bus.lease_ms,
                heartbeat_ms=bus.heartbeat_ms,
                max_message_bytes=bus.max_message_bytes,
                brokers=state.peers,
            ),
        )
    )


def _open(state: BrokerState, hello: Hello, k: int, before: WorkerSession | None, now: Now) -> WorkerSession:
    """A new session. Of the old one: what the worker still holds moves over, the rest it has dropped unstarted."""
    attached = state.attached.get(hello.worker) or state.on_the_bus(hello.worker)
    executor = state.executor(attached.executor)
    session = opened(hello, k, state.identity.epoch, state.identity.broker, executor, now.mono, now.wall)
    session.principal = state.principal
    session.draining = hello.worker in state.quieted
    session.joins_bus = attached.joins_bus
    state.sessions[hello.worker] = session
    state.offer_cache.clear()
    state.counters.sessions_opened += 1
    if before is not None:
        holding = {(item[0], item[1]) for item in hello.holding}
        _close(before)
        for step in list(before.deliveries.values()):
            if (step.id, step.delivery) in holding:
                before.deliveries.pop(step.id)
                before.suspects = 0
                step.batch = None
                step.session = None
                hand_to(step, session)
            else:
                # The worker dropped it and will never start it, granted or not.
                undeliver(state, step, "session_replaced", now, avoid=False)
    if session.has_lease:
        state.timers.set(_lease_ends_at(state, session), LeaseEnds(session))
    if hello.worker in state.recovered:
        ask_soon(state, session)
    _watch(state, session)  # its subscription may have vanished while this hello was on its way
    return session


def _watch(state: BrokerState, session: WorkerSession) -> None:
    """Is its process gone? Here that can be known, where it is on our own host and has said how to find it."""
    if session.proof and session.pid and session.host == state.identity.host:
        state.decision.watches.append(WatchProcess(session.worker, session.pid, session.pid_started))


def _close(session: WorkerSession) -> None:
    session.dead = True
    session.unanswered_batches = {}
    session.unanswered = 0


# -- heartbeat --------------------------------------------------------------------------------------------------------


def on_heartbeat(state: BrokerState, beat: Heartbeat, now: Now) -> None:
    named = beat.sessions.get(state.identity.broker)
    session = state.sessions.get(beat.worker)
    if named is None or session is None or session.id != named:
        turn_away(state, beat.worker, named)
        return
    session.confirmed = True
    if session.muted:
        return
    if beat.n > session.free_n:
        session.free_n = beat.n
        session.free = beat.free.get(state.identity.broker, session.free)
    if beat.n > session.told_n:
        _take_word(state, session, beat.n, beat.holding, now)
    state.decision.sends.append(
        ToWorker(
            session.topic,
            HeartbeatAck(
                v=V,
                broker=state.identity.broker,
                epoch=state.identity.epoch,
                session=session.id,
                n=beat.n,
                quiet=state.draining or session.worker in state.quieted,
                quit=state.quieted.get(session.worker, False) and not session.deliveries and not beat.holding,
            ),
        )
    )


def _take_word(state: BrokerState, session: WorkerSession, n: int, holding: list[HeldItem], now: Now) -> None:
    """It lives, and this is what it says it holds: starts become known, strangers are told to stop, the missing are
    asked for."""
    session.told_n = n
    session.heard_mono = max(session.heard_mono, now.mono)
    session.told_mono = max(session.told_mono, now.mono)
    told: set[int] = set()
    superseded: list[tuple[int, int]] = []
    again: dict[str, list[tuple[int, int]]] = {}
    overdue = 0
    for step_id, delivery, held_state, age_ms in holding:
        step = state.steps.get(step_id)
        if step is None or step.state is not DISPATCHED or step.delivery != delivery or step.worker != session.worker:
            if held_state != "done" and (step is not None or step_id in state.ended):
                superseded.append((step_id, delivery))
            overdue += held_state == "running" and age_ms >= _overdue_from_ms(state, step, step_id)
            continue
        told.add(step_id)
        if step.session is not session:
            _adopt(state, step, session)
        _saw(state, step, held_state, age_ms, now)
        if step.cancel is not None and held_state != "done":
            again.setdefault(step.cancel, []).append((step_id, delivery))
        overdue += held_state == "running" and age_ms >= _overdue_from_ms(state, step, step_id)
    if superseded:
        _cancel(state, session, superseded, "superseded")
    for reason, items in again.items():
        _cancel(state, session, items, reason)
    missing = [s for s in session.deliveries.values() if s.id not in told and (s.batch is None or s.batch.answered)]
    if missing:
        _ask(state, session, missing)
    _judge(state, session, overdue)


def _overdue_from_ms(state: BrokerState, step: Step | None, step_id: int) -> float:
    """From this age on a run of it should have been over long ago. Of a strange step nothing is known."""
    timeout_ms = step.definition.timeout_ms if step is not None else state.ended.get(step_id)
    return float("inf") if timeout_ms is None else timeout_ms + limits.TIMEOUT_GRACE_MS


def _adopt(state: BrokerState, step: Step, session: WorkerSession) -> None:
    """A delivery of before this start, or of a session before, is this session's now."""
    of_worker = state.recovered.get(session.worker)
    if of_worker is not None and of_worker.pop(step.id, None) is not None and not of_worker:
        del state.recovered[session.worker]
    hand_to(step, session)


def _saw(state: BrokerState, step: Step, held_state: str, age_ms: int, now: Now) -> None:
    if step.session is not None:
        step.session.asking.discard(step.id)
    if held_state == "running" and step.seen != "running":
        if step.cancel == "superseded":
            step.cancel = None  # it had started before it was told not to
        if step.started_ms is None:
            state.record(step.task, facts.Started(now.wall - age_ms, step.position, step.delivery))
        due = now.mono - age_ms + step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
        state.timers.set(due, RunLimit(step, step.delivery, due))
    step.seen = held_state


def _judge(state: BrokerState, session: WorkerSession, overdue: int) -> None:
    """All it runs is past its time: nothing more for it, and what it has not started goes elsewhere."""
    session.stuck = overdue >= session.slots
    if session.stuck:
        waiting = [
            s for s in session.deliveries.values() if s.seen in ("queued", "asking") and not s.granted and not s.cancel
        ]
        for step in waiting:
            step.cancel = "superseded"
        if waiting:
            _cancel(state, session, [(s.id, s.delivery) for s in waiting], "superseded")


def _ask(state: BrokerState, session: WorkerSession, steps: list[Step]) -> None:
    session.asking.update(s.id for s in steps)
    ask_soon(state, session)


def ask_soon(state: BrokerState, session: WorkerSession) -> None:
    """There is something to ask it about. It is asked every second already, or from now on."""
    if not session.is_asked:
        session.is_asked = True
        state.timers.set(0, AdoptionDue(session))


def ask_adoption(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """Every second, in the worker's own session: do you hold these? Until it has said of each."""
    session.is_asked = False
    if session.dead:
        return
    recovered = state.recovered.get(session.worker, {})
    wanted = [(s.id, s.delivery) for s in recovered.values()]
    wanted += [(i, session.deliveries[i].delivery) for i in session.asking]
    if not wanted:
        return
    wanted.sort()
    for start in range(0, len(wanted), limits.BATCH_ITEMS_MAX):
        state.outbox.send(
            SendMessage(
                session,
                Adopt(
                    v=V,
                    broker=state.identity.broker,
                    epoch=state.identity.epoch,
                    session=session.id,
                    items=wanted[start : start + limits.BATCH_ITEMS_MAX],
                ),
            )
        )
    session.is_asked = True
    state.timers.set(now.mono + limits.ADOPT_RETRY_MS, AdoptionDue(session))


def on_adopted(state: BrokerState, message: Adopted, now: Now) -> None:
    session = current(state, message.worker, message.session)
    if session is None:
        return
    for step_id, delivery, held_state, age_ms in message.items:
        step = state.steps.get(step_id)
        if step is None or step.state is not DISPATCHED or step.delivery != delivery or step.worker != session.worker:
            continue
        if held_state == "unknown":
            # The live process itself says that it will never run it: it may run elsewhere, granted or not.
            undeliver(state, step, "not_held", now, avoid=False)
            continue
        if step.session is not session:
            _adopt(state, step, session)
        _saw(state, step, held_state, age_ms, now)


# -- going ------------------------------------------------------------------------------------------------------------


def on_bye(state: BrokerState, bye: Bye, now: Now) -> None:
    session = state.sessions.get(bye.worker)
    if session is not None:
        session.draining = True


def on_gone(state: BrokerState, gone: Gone, now: Now) -> None:
    """A supervisor reaped its child. Look for ourselves where we can; elsewhere nobody but it can know."""
    session = state.sessions.get(gone.worker)
    if session is not None and session.pid and session.host == state.identity.host:
        state.decision.watches.append(WatchProcess(session.worker, session.pid, session.pid_started))
    else:
        _bury_worker(state, gone.worker, now)


def on_subscription_vanished(state: BrokerState, event: SubscriptionVanished, now: Now) -> None:
    session = state.sessions.get(event.worker)
    if session is not None:
        _watch(state, session)


def on_subscribed(state: BrokerState, event: Subscribed, now: Now) -> None:
    """The next send to this inbox arrives: what waits for an answer is worth saying again at once."""
    session = state.sessions.get(event.worker)
    if session is not None:
        for batch in list(session.unanswered_batches.values()):
            if batch.released:
                resend(state, batch)


def on_attached(state: BrokerState, event: Attached, now: Now) -> None:
    state.attached[event.worker] = event
    session = state.sessions.get(event.worker)
    if session is not None:
        session.of, session.joins_bus = state.executor(event.executor), event.joins_bus
        state.offer_cache.clear()


def on_detached(state: BrokerState, event: Detached, now: Now) -> None:
    """While this broker drains it is we who end it: what it ran has killed nobody."""
    state.attached.pop(event.worker, None)
    _bury_worker(state, event.worker, now, blames=not state.draining)


def on_process_died(state: BrokerState, event: ProcessDied, now: Now) -> None:
    state.counters.deaths_proven += 1
    _bury_worker(state, event.worker, now)


def _bury_worker(state: BrokerState, worker: str, now: Now, *, blames: bool = True) -> None:
    session = state.sessions.get(worker)
    if session is not None:
        bury(state, session, now, blames=blames)
    for step in list(state.recovered.get(worker, {}).values()):
        lost(state, step, now, suspicious=False, blames=blames)


def check_lease(state: BrokerState, session: WorkerSession, now: Now) -> None:
    if session.dead:
        return
    ends_at = _lease_ends_at(state, session)
    if now.mono < ends_at:
        state.timers.set(ends_at, LeaseEnds(session))
    elif not session.confirmed and now.mono < state.safe_at_mono:
        # Our welcome may never have reached it. Then it goes by a lease that was given before our start: a longer one.
        state.timers.set(min(state.safe_at_mono, now.mono + LOOK_AGAIN_MS), LeaseEnds(session))
    else:
        state.counters.lease_expiries += 1
        bury(state, session, now)


def _lease_ends_at(state: BrokerState, session: WorkerSession) -> int:
    return session.heard_mono + int(state.settings.bus.lease_ms * limits.LEASE_BROKER_FACTOR) + 1


def bury(state: BrokerState, session: WorkerSession, now: Now, *, blames: bool = True) -> None:
    """The session is dead: nothing of it will start any more, and what it ran is lost or unknown. `blames`: what it
    ran may be what it died of."""
    _close(session)
    state.dead_k[session.worker] = session.k
    if len(state.dead_k) > DEAD_REMEMBERED_MAX:
        state.dead_k.popitem(last=False)
    state.sessions.pop(session.worker, None)
    state.offer_cache.clear()
    held = list(session.deliveries.values())
    # Workers start what they get in the order they get it: only the first `slots` can have been running.
    suspects = [
        position < session.slots
        and session.has_lease
        and not (session.muted and step.batch is not None and not step.batch.answered)
        for position, step in enumerate(held)
    ]
    ran = [s for s, suspicious in zip(held, suspects, strict=True) if suspicious or s.granted or s.started_ms]
    if blames:
        allowance.lost(state, held, ran, "a worker was lost with it", now)
    for step, suspicious in zip(held, suspects, strict=True):
        lost(state, step, now, suspicious=suspicious, blames=blames)


def lost(state: BrokerState, step: Step, now: Now, *, suspicious: bool, blames: bool = True) -> None:
    """Whoever had it is no more: what never starts twice is held if it may have started, the rest runs again."""
    may_have_run = step.granted or step.started_ms is not None or (suspicious and not step.at_most_once)
    if step.at_most_once and step.granted:
        unknown_outcome(state, step, "outcome_unknown", now)
    else:
        undeliver(state, step, "session_lost", now, lost=may_have_run and blames)


def expire_recovered(state: BrokerState, now: Now) -> None:
    """Nobody who was given something before this start can still hold a lease on it, unless he is here now."""
    for worker in list(state.recovered):
        if worker in state.sessions:
            continue
        for step in list(state.recovered.get(worker, {}).values()):
            if step.granted and not step.at_most_once:
                # Only a worker without heartbeats asks for leave to start such a step: it has the time of its run.
                may_run_ms = step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
                if now.mono < state.safe_at_mono + may_run_ms:
                    continue
            lost(state, step, now, suspicious=False)


def expire_run(state: BrokerState, run: RunLimit, now: Now) -> None:
    """The worker should have ended it by itself long ago: the backstop."""
    step, delivery, due_mono = run.step, run.delivery, run.due_mono
    if step.state is not DISPATCHED or step.delivery != delivery or not step.task.steps:
        return
    session = step.session
    if session is not None and session.has_lease and now.mono < due_mono + state.settings.bus.lease_ms:
        is_silent = session.told_mono < due_mono - limits.TIMEOUT_GRACE_MS
        if step.seen == "done" or is_silent:
            # It may have ended in time, and only its result be late: it has a lease to say so.
            state.timers.set(now.mono + LOOK_AGAIN_MS, run)
            return
    if session is not None:
        _cancel(state, session, [(step.id, delivery)], "timeout")
    if step.at_most_once and not step.granted:
        return
    allowance.overdue(state, step, now)
    if step.at_most_once:
        unknown_outcome(state, step, "outcome_unknown", now)
    else:
        fail_for(state, step, "timeout", now, retryable=True)


def on_loop_was_late(state: BrokerState, event: LoopWasLate, now: Now) -> None:
    """We did not listen for a while: nobody was silent in that time."""
    for session in state.sessions.values():
        session.heard_mono = min(session.heard_mono + event.gap_ms, now.mono)
        for batch in session.unanswered_batches.values():
            batch.released_mono += event.gap_ms
    for handout in state.level0.handouts.values():
        handout.due_mono += event.gap_ms
    state.safe_at_mono += event.gap_ms


# -- telling ----------------------------------------------------------------------------------------------------------


def current(state: BrokerState, worker: str, named: str) -> WorkerSession | None:
    """The session a message names, if it is the one we have; else its sender is told."""
    session = state.sessions.get(worker)
    if session is not None and session.id == named:
        return session
    turn_away(state, worker, named)
    return None


def turn_away(state: BrokerState, worker: str, named: str | None) -> None:
    """This session is not known here. One of another epoch was lost with a restart, and is no reason to reset."""
    epoch, k = topics.session_parts(named) if named is not None else (-1, 0)
    if epoch != state.identity.epoch:
        here(state, worker)
        return
    session = state.sessions.get(worker)
    if session is not None and k < session.k:
        state.counters.ignored += 1
    else:
        reset(state, worker, k, "unknown_session")


def here(state: BrokerState, worker: str) -> None:
    state.decision.sends.append(ToWorker(topics.to_worker(worker), here_message(state)))


def here_message(state: BrokerState) -> Here:
    identity = state.identity
    return Here(
        v=V,
        broker=identity.broker,
        epoch=identity.epoch,
        deployment=identity.deployment,
        versions=list(limits.VERSIONS_SUPPORTED),
    )


def reset(state: BrokerState, worker: str, k: int, code: ResetCode) -> None:
    versions = list(limits.VERSIONS_SUPPORTED) if code == "version" else []
    state.decision.sends.append(
        ToWorker(
            topics.to_worker(worker),
            Reset(
                v=V,
                broker=state.identity.broker,
                epoch=state.identity.epoch,
                next=k,
                code=code,
                versions=versions,
            ),
        )
    )


def refuse(state: BrokerState, worker: str, code: str, message: str, kind: str | None, rid: int | None = None) -> None:
    """Tell a peer why its message was not taken."""
    state.counters.count_refused(code)
    state.decision.sends.append(
        ToWorker(
            topics.to_worker(worker),
            Refused(
                v=V,
                broker=state.identity.broker,
                epoch=state.identity.epoch,
                code=code,
                message=message,
                refused=kind,
                rid=rid,
            ),
        )
    )


def _cancel(state: BrokerState, session: WorkerSession, items: list[tuple[int, int]], reason: str) -> None:
    state.outbox.send(
        SendMessage(
            session,
            Cancel(
                v=V,
                broker=state.identity.broker,
                epoch=state.identity.epoch,
                session=session.id,
                items=items,
                reason=reason,  # type: ignore[arg-type]
            ),
        )
    )


def tell_cancel(state: BrokerState, step: Step, reason: str) -> None:
    """Ask its worker to stop it, or not to start it; said again at each heartbeat that still lists it."""
    if step.at_level0:
        return  # nobody there would hear it: what it does counts as its own word
    step.cancel = reason
    if step.session is not None:
        _cancel(state, step.session, [(step.id, step.delivery)], reason)


def on_leave(state: BrokerState, event: Leave, now: Now) -> None:
    """This broker goes: its workers keep what they run, and say hello to whoever comes after."""
    for session in state.sessions.values():
        reset(state, session.worker, session.k, "shutdown")
