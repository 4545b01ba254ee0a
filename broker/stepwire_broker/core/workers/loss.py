"""Workers that die or fall silent, and the outcomes of the steps they held."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Gone

from stepwire_broker.core.commit.decision import WatchProcess, WorkerDied
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.death_proof import why_unprovable
from stepwire_broker.core.model.events import (
    ClaimRefuted,
    Detached,
    LoopWasLate,
    Now,
    ProcessDied,
    SubscriptionVanished,
)
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.progress.step_outcomes import lost_outcome, undeliver
from stepwire_broker.core.state import DEAD_REMEMBERED_MAX, BrokerState
from stepwire_broker.core.timer_kinds import LeaseEnds

CHECK_AGAIN_MS: Final = 1_000


# -- death ------------------------------------------------------------------------------------------------------------


def watch(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """Request checks for the end of the session's process, if its death can be proven."""
    if why_unprovable(session, state.identity.host) is None:
        _watch(state, session, now)


def _watch(state: BrokerState, session: WorkerSession, now: Now) -> None:
    heard_ms_ago = max(0, now.mono - session.heard_mono)
    state.decision.watches.append(WatchProcess(session.worker, session.pid, session.pid_started, heard_ms_ago))


def on_subscription_vanished(state: BrokerState, event: SubscriptionVanished, now: Now) -> None:
    state.inboxes.pop(event.worker, None)
    state.came_by.pop(event.worker, None)
    session = state.sessions.get(event.worker)
    if session is not None:
        watch(state, session, now)


def on_gone(state: BrokerState, gone: Gone, now: Now) -> None:
    """Handle a supervisor's report that its child ended. The broker checks the report if the child ran on this host."""
    session = state.sessions.get(gone.worker)
    if session is not None and session.pid and session.host == state.identity.host:
        _watch(state, session, now)
    else:
        _bury_worker(state, gone.worker, now)


def on_process_died(state: BrokerState, event: ProcessDied, now: Now) -> None:
    state.counters.deaths_proven += 1
    session = state.sessions.get(event.worker)
    if session is not None:
        state.decision.worker_news.append(WorkerDied(event.worker, session.pid))
    state.forget_quieted(event.worker)
    _bury_worker(state, event.worker, now)


def on_claim_refuted(state: BrokerState, event: ClaimRefuted, now: Now) -> None:
    """Let the lease decide from now on: this worker's statement about its process is wrong."""
    session = state.sessions.get(event.worker)
    if session is not None:
        session.is_claim_refuted = True


def on_detached(state: BrokerState, event: Detached, now: Now) -> None:
    """End the session of a worker inside this process. While the broker drains, no step is blamed for the end."""
    attached = state.attached.pop(event.worker, None)
    if attached is not None and all(other.principal != attached.principal for other in state.attached.values()):
        state.token_rights.pop(attached.principal, None)
    state.forget_quieted(event.worker)
    _bury_worker(state, event.worker, now, blames=not state.draining)


def _bury_worker(state: BrokerState, worker: str, now: Now, *, blames: bool = True) -> None:
    session = state.sessions.get(worker)
    if session is not None:
        bury(state, session, now, blames=blames)
    for step in list(state.recovered.get(worker, {}).values()):
        lost(state, step, now, suspicious=False, blames=blames)


# -- the lease --------------------------------------------------------------------------------------------------------


def watch_lease(state: BrokerState, session: WorkerSession) -> None:
    state.timers.set(_lease_ends_at(state, session), LeaseEnds(session))


def check_lease(state: BrokerState, session: WorkerSession, now: Now) -> None:
    if session.dead:
        return
    ends_at = _lease_ends_at(state, session)
    if now.mono < ends_at:
        watch_lease(state, session)
    elif now.mono < (safe_at_mono := _safe_at(state, session)):
        state.timers.set(min(safe_at_mono, now.mono + CHECK_AGAIN_MS), LeaseEnds(session))
    else:
        state.counters.lease_expiries += 1
        bury(state, session, now)


def _lease_ends_at(state: BrokerState, session: WorkerSession) -> int:
    return session.heard_mono + int(state.settings.bus.lease_ms * limits.LEASE_BROKER_FACTOR) + 1


def _safe_at(state: BrokerState, session: WorkerSession) -> int:
    """From this time on the worker holds no lease from a former owner of a lane for what it holds in this session."""
    if not state.is_shared:
        # Without our welcome the worker keeps to the lease that it had before our start, which can be a longer one.
        # With it, its former leases were ours, and this session has replaced them.
        lanes = () if session.confirmed else state.lanes.values()
        return max((lane.safe_at_mono for lane in lanes), default=0)
    adopted = {step.task.lane for step in session.deliveries.values() if step.batch is None}
    return max((state.lanes[lane].safe_at_mono for lane in adopted), default=0)


def on_loop_was_late(state: BrokerState, event: LoopWasLate, now: Now) -> None:
    """Extend leases by the time in which the broker did not read its sockets: no worker was silent in that time."""
    for session in state.sessions.values():
        session.heard_mono = min(session.heard_mono + event.gap_ms, now.mono)
        for batch in session.unanswered_batches.values():
            batch.released_mono += event.gap_ms
    for handout in state.level0.handouts.values():
        handout.due_mono += event.gap_ms
    for lane in state.lanes.values():
        lane.safe_at_mono += event.gap_ms


# -- steps of a dead worker -------------------------------------------------------------------------------------------


def close(session: WorkerSession) -> None:
    """End the session: no further message is sent in it or accepted from it."""
    session.dead = True
    session.unanswered_batches = {}
    session.unanswered = 0


def bury(state: BrokerState, session: WorkerSession, now: Now, *, blames: bool = True) -> None:
    """End a dead session: none of its steps will start, and the steps that ran are lost or have an unknown outcome.

    `blames`: one of the steps that ran may have killed the worker.
    """
    close(session)
    state.dead_k[session.worker] = session.k
    if len(state.dead_k) > DEAD_REMEMBERED_MAX:
        state.dead_k.popitem(last=False)
    if state.sessions.pop(session.worker, None) is not None:
        state.sessions_of[session.principal] -= 1
    state.former_owners[session.worker] = session.principal
    if len(state.former_owners) > DEAD_REMEMBERED_MAX:
        state.former_owners.popitem(last=False)
    state.offer_cache.clear()
    held = list(session.deliveries.values())
    # A worker starts steps in the order in which it receives them: only the first `slots` can have been running.
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
    """Handle the death of this step's worker. A granted at_most_once step is held; any other step runs again."""
    may_have_run = step.granted or step.started_ms is not None or (suspicious and not step.at_most_once)
    if step.at_most_once and step.granted:
        lost_outcome(state, step, now)
    else:
        undeliver(state, step, "session_lost", now, lost=may_have_run and blames)


def expire_recovered(state: BrokerState, now: Now) -> None:
    """Handle the end of all leases from former owners of lanes. Steps whose workers have not reconnected are lost."""
    for worker in list(state.recovered):
        if worker in state.sessions:
            continue
        for step in list(state.recovered.get(worker, {}).values()):
            safe_at_mono = state.lanes[step.task.lane].safe_at_mono
            if now.mono < safe_at_mono:
                continue
            if step.granted and not step.at_most_once:
                # Only a worker without heartbeats is granted such a step: it has until the end of its run.
                may_run_ms = step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
                if now.mono < safe_at_mono + may_run_ms:
                    continue
            lost(state, step, now, suspicious=False)
