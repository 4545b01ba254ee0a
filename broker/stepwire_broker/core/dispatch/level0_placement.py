"""Dispatch to level 0: one batch at a time to each free peer, with one step unless configured otherwise."""

from collections.abc import Iterable

from stepwire_protocol import codec, limits
from stepwire_protocol.messages import StepMetadataLevel0, StepRequest, StepRequestLevel0, StepsLevel0

from stepwire_broker.core import takers
from stepwire_broker.core.commit.outbox import SendHandout
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.level0_peer import Handout, Level0Peer
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.targets import BUS, Route
from stepwire_broker.core.state import BrokerState

from .batches import BatchFiller, DispatchRound, record_dispatches


def dispatch(state: BrokerState, now: Now) -> None:
    """Hand a batch to each free peer. The peer that has waited longest comes first, and doubted peers come last."""
    if state.draining or state.outbox.stalled is not None or not state.ready.count or _is_paused(state):
        return
    free = [peer for peer in state.level0.peers.values() if takers.is_free(peer, now)]
    if not free:
        return
    routes = {route for route in state.ready.routes() if takers.level0_serves(state, route)}
    allowances = allowance.limits(state, routes, now)
    free.sort(key=lambda peer: (peer.doubted, peer.turn))
    share = -(-state.ready.count_of(routes) // len(free))
    is_choosy = any(peer.is_choosy for peer in free)
    round = DispatchRound(state)
    while free and routes and not round.is_over:
        if free[0].doubted or is_choosy:
            routes = {r for r in routes if any(takers.peer_obstacle(peer, r, now) is None for peer in free)}
        if allowances:
            routes = {route for route in routes if route not in allowances or allowances[route].left > 0}
        entry = state.ready.next(routes)
        if entry is None:
            break
        route, step = entry
        peer = _choose(free, route, step, now)
        others = {} if route in allowances else routes - allowances.keys()
        batch = _fill(state, round, peer, step, others, share, now)
        if route in allowances:
            allowances[route].left -= 1
        if batch.requests:
            free.remove(peer)
            _hand_out(state, peer, batch.steps, batch.requests, now)
    round.end(state)


def _is_paused(state: BrokerState) -> bool:
    """Level 0 belongs to the executor `bus`, as workers with a session do."""
    return state.executor(BUS).paused_wall is not None


def _choose(free: list[Level0Peer], route: Route, step: Step, now: Now) -> Level0Peer:
    """Return the first free peer that may take the step. A peer that lost the step is chosen only if no other can."""
    if not step.avoid and not free[0].is_choosy:
        return free[0]
    able = [peer for peer in free if takers.peer_obstacle(peer, route, now) is None]
    return next((peer for peer in able if peer.worker not in (step.avoid or ())), able[0])


def _fill(
    state: BrokerState,
    round: DispatchRound,
    peer: Level0Peer,
    first: Step,
    routes: Iterable[Route],
    share: int,
    now: Now,
) -> BatchFiller:
    """Hand this peer one batch that begins with this step. An at_most_once step or a suspect goes alone, and so does
    every step for a doubted peer."""
    bus = state.settings.bus
    goes_alone = peer.doubted or first.at_most_once or first.is_suspect
    batch = BatchFiller(
        round,
        now,
        steps_max=1 if goes_alone else min(bus.level0.batch_max_steps, limits.BATCH_ITEMS_MAX, share),
        message_bytes_max=bus.max_message_bytes,
        bytes_max=bus.batch.max_bytes,
        has_lease=True,
    )
    own = set() if goes_alone else {r for r in routes if _may_join(peer, r, first)}

    def next_step() -> Step | None:
        entry = state.ready.next(own) if own else None
        return None if entry is None else entry[1]

    batch.fill(state, first, next_step)
    round.aside += batch.left_over
    return batch


def _may_join(peer: Level0Peer, route: Route, first: Step) -> bool:
    """True if steps of this route may be in a batch of this peer that begins with another step."""
    if route.goes_alone or route.is_at_most_once or route.handler_class in peer.unknown:
        return False
    if not peer.may_run(route.handler_class, route.namespace):
        return False
    return not peer.is_uniform or route.handler_class == first.definition.handler_class


def _hand_out(state: BrokerState, peer: Level0Peer, steps: list[Step], requests: list[StepRequest], now: Now) -> None:
    """Record a batch for this peer, to be sent after the commit. An at_most_once step is granted in the same commit,
    because no answer tells whether the peer has received the batch."""
    level0 = state.level0
    level0.turns += 1
    peer.turn = level0.turns
    handout = Handout(
        id=state.next_batch_id(),
        peer=peer,
        items=[(r.step_id, r.delivery) for r in requests],
        run_ms=sum(s.definition.timeout_ms for s in steps) + limits.TIMEOUT_GRACE_MS,
    )
    handout.body = codec.encode(
        StepsLevel0(
            to=peer.to,
            batch_id=handout.id,
            protocol_version=limits.PROTOCOL_LEVEL_0,
            steps=[_for_level0(request) for request in requests],
        )
    )
    record_dispatches(state, steps, requests, peer.worker, handout.id, now)
    for step, request in zip(steps, requests, strict=True):
        if step.at_most_once:
            state.record(step.task, facts.Granted(now.wall, step.position, request.delivery))
    if state.guards.by_handler:
        allowance.handed(state, steps, now)
    level0.handouts[handout.id] = peer.holds[handout.id] = handout
    state.counters.dispatched += len(steps)
    state.outbox.send(SendHandout(handout, tuple({s.task.id: s.task for s in steps}.values())))


def _for_level0(request: StepRequest) -> StepRequestLevel0:
    return StepRequestLevel0(
        step_id=request.step_id,
        task_id=request.task_id,
        step_name=request.step_name,
        handler_class=request.handler_class,
        handler_config=request.handler_config,
        task_context=request.task_context,
        previous_results=request.previous_results,
        input=request.input,
        metadata=StepMetadataLevel0(
            attempt=request.metadata.attempt,
            retry_limit=request.metadata.retry_limit,
            timeout_ms=request.metadata.timeout_ms,
            idempotency_key=request.metadata.idempotency_key,
            traceparent=request.metadata.traceparent,
            tracestate=request.metadata.tracestate,
        ),
    )
