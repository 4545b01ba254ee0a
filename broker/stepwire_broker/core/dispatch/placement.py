"""Hand out ready steps: a batch at a time, to the session with the largest share of free slots.

Called when the lane's writer is about to take a group, so that a batch holds all steps that became ready meanwhile.
"""

from collections.abc import Container

from stepwire_protocol import codec, limits
from stepwire_protocol.messages import StepRequest

from stepwire_broker.core import letters, takers
from stepwire_broker.core.commit.outbox import SendBatch
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, StepBatch, WorkerSession
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.progress.deliveries import hand_to
from stepwire_broker.core.progress.readiness import enqueue
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import StartLimit

from .batches import BatchFiller, DispatchRound, record_dispatches


def dispatch(
    state: BrokerState, now: Now, closing: Container[int] | None = None, *, whole_batches: bool = False
) -> None:
    """Hand out ready steps; with `whole_batches`, only while enough are ready for a full batch. `closing`: lanes whose
    groups are handed over now, of several."""
    if state.draining or state.outbox.stalled is not None or not state.ready.count:
        return
    least = state.settings.bus.batch.max_steps if whole_batches else 1
    if state.ready.count < least:
        return
    round = DispatchRound(state)
    by_route = _takers(state)
    allowances = allowance.limits(state, by_route, now)
    if allowances:
        by_route = _allowed(by_route, allowances)
    while by_route and not round.is_over and state.ready.count_of(by_route) >= least:
        entry = state.ready.next(by_route, closing)
        if entry is None:
            break
        route, step = entry
        session = _choose(by_route[route], step)
        limit = allowances.get(route)
        if limit is None:
            others = {r: s for r, s in by_route.items() if r not in allowances} if allowances else by_route
            _fill(state, round, session, route, step, others, closing, now)
        else:
            count_before = state.ready.count + 1
            others = {} if limit.is_for_probes else {route: by_route[route]}
            _fill(state, round, session, route, step, others, closing, now, steps_max=limit.left)
            limit.left -= count_before - state.ready.count
            by_route = _allowed(by_route, allowances)
        if session.credit <= 0 or session.suspects:
            by_route = _without(by_route, session)
    round.end(state)
    if round.has_rerouted:
        dispatch(state, now, closing, whole_batches=whole_batches)


def _takers(state: BrokerState) -> dict[Route, list[WorkerSession]]:
    """Return the sessions that can take a step now, for each route with ready steps and at least one such session."""
    by_route: dict[Route, list[WorkerSession]] = {}
    for route in state.ready.routes():
        if route not in by_route:
            sessions = takers.takers(state, route)
            if sessions:
                by_route[route] = sessions
    return by_route


def _without(by_route: dict[Route, list[WorkerSession]], session: WorkerSession) -> dict[Route, list[WorkerSession]]:
    """Return the takers of each route, without this session where it can take no further step."""
    left = {
        r: [s for s in sessions if s is not session or takers.passing_obstacle(s, r) is None]
        for r, sessions in by_route.items()
    }
    return {route: sessions for route, sessions in left.items() if sessions}


def _allowed(
    by_route: dict[Route, list[WorkerSession]], allowances: dict[Route, allowance.Allowance]
) -> dict[Route, list[WorkerSession]]:
    """Return the takers of each route whose allowance is not used up."""
    return {r: sessions for r, sessions in by_route.items() if r not in allowances or allowances[r].left > 0}


def _choose(sessions: list[WorkerSession], step: Step) -> WorkerSession:
    """Return the session with the highest rank. A worker that refused or lost
    the step is chosen only if no other can take it."""
    if step.avoid:
        sessions = [s for s in sessions if s.worker not in step.avoid] or sessions
    if len(sessions) == 1:
        return sessions[0]
    return max(sessions, key=lambda s: s.rank)


def _fill(
    state: BrokerState,
    round: DispatchRound,
    session: WorkerSession,
    route: Route,
    first: Step,
    by_route: dict[Route, list[WorkerSession]],
    closing: Container[int] | None,
    now: Now,
    *,
    steps_max: int = limits.BATCH_ITEMS_MAX,
) -> None:
    """Send one batch that begins with this step. A step that goes alone is the only step of its batch."""
    settings = state.settings.bus.batch
    # The free slots of all workers are filled before the prefetch of any worker.
    room = min(settings.max_steps, steps_max, session.slots_open or session.credit)
    batch = BatchFiller(
        round,
        now,
        steps_max=room,
        message_bytes_max=session.max_message_bytes,
        bytes_max=settings.max_bytes,
        has_lease=session.has_lease,
    )
    own: set[Route] = set()
    lane = first.task.lane
    if not route.goes_alone:
        own = {r for r, sessions in by_route.items() if session in sessions and not r.goes_alone}

    def next_step() -> Step | None:
        while own:
            entry = state.ready.next(own, closing, lane)
            if entry is None:
                break
            other, step = entry
            if not step.avoid or _choose(by_route[other], step) is session:
                return step
            batch.left_over.append(step)
            if batch.has_too_many_aside:
                break
        return None

    batch.fill(state, first, next_step)
    for step in batch.left_over:
        enqueue(state, step)
    if batch.requests:
        _send_batch(state, session, batch.steps, batch.requests, now)


def _send_batch(
    state: BrokerState, session: WorkerSession, steps: list[Step], requests: list[StepRequest], now: Now
) -> None:
    batch_id = state.next_batch_id()
    frame = codec.frame(session.topic, letters.steps(state.identity, session, batch_id, requests))
    batch = StepBatch(id=batch_id, session=session, steps=steps, frame=frame)
    has_lease = session.has_lease
    record_dispatches(state, steps, requests, session.worker, batch_id, now)
    for step, request in zip(steps, requests, strict=True):
        step.batch = batch
        hand_to(step, session)
        if not has_lease:
            # No heartbeat renews a lease here: each step has the time of all steps before it.
            ahead = len(session.deliveries)
            due = now.mono + ahead * (step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS)
            state.timers.set(due, StartLimit(step, request.delivery))
    if state.guards.by_handler:
        allowance.handed(state, steps, now)
    session.unanswered += len(steps)
    session.unanswered_batches[batch_id] = batch
    session.idle_since_mono = now.mono
    state.counters.dispatched += len(steps)
    state.outbox.send(SendBatch(batch))
