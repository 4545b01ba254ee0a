"""Level 0: work for handlers that know nothing of us but `steps` in and `results` out.

Each subscription of `steps` becomes a peer of its own, and peers take turns: one batch at a time, one step in it unless
configured. Nobody acknowledges anything, so a lost batch, a lost answer, a dead handler and a slow one look alike, and
one lease decides for all of them: the time-outs of what was handed over, and 5 s. Peers share one set of handlers,
because they cannot be told apart; workers with sessions come first.

What never starts twice goes here only by leave: it counts as started from the moment it is handed over.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from stepwire_protocol import codec, limits
from stepwire_protocol.errors import REFUSALS
from stepwire_protocol.messages import (
    ErrorDetail,
    Result,
    ResultsLevel0,
    StepMetadataLevel0,
    StepRequest,
    StepRequestLevel0,
    StepsLevel0,
)

from stepwire_broker.core import takers
from stepwire_broker.core.commit.decision import Complaint
from stepwire_broker.core.commit.outbox import SendHandout
from stepwire_broker.core.dispatch.batches import BatchFiller, DispatchRound, record_dispatch
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now, PeerSubscribed, PeersUncertain, PeerVanished
from stepwire_broker.core.model.level0_peer import EXPIRED_REMEMBERED_MAX, Handout, Level0Peer
from stepwire_broker.core.model.live import LEVEL0, Step
from stepwire_broker.core.model.states import DISPATCHED, STEP_FINAL
from stepwire_broker.core.model.targets import BUS, Route
from stepwire_broker.core.progress.step_outcomes import undeliver, unknown_outcome
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import HandoutEnds, PeerSettled

from .step_results import apply_result, look_up

SETTLE_MS: Final = 500  # after its subscription: by then its own PUB has received ours
PEERS_MAX: Final = 1_000


# -- who is there -----------------------------------------------------------------------------------------------------


def on_subscribed(state: BrokerState, event: PeerSubscribed, now: Now) -> None:
    """A newcomer. It gets a name that nobody had before, so that nothing of an earlier one reaches it."""
    level0 = state.level0
    if not state.settings.bus.level0.handlers or len(level0.peers) >= PEERS_MAX:
        return  # without a grant it receives nothing
    level0.numbered += 1
    to = f"{state.identity.epoch}.{level0.numbered}"
    level0.peers[to] = Level0Peer(to, LEVEL0 + to, now.wall, now.mono, now.mono + SETTLE_MS, now.mono)
    state.decision.grants.append(to)
    state.timers.set(now.mono + SETTLE_MS, PeerSettled())


def on_vanished(state: BrokerState, event: PeerVanished, now: Now) -> None:
    """It gets no more. What it holds keeps its lease: a handler that is busy while it loses its connection comes back
    with its answer."""
    peer = state.level0.peers.pop(event.to, None)
    if peer is not None:
        peer.gone = True


def on_uncertain(state: BrokerState, event: PeersUncertain, now: Now) -> None:
    for peer in state.level0.peers.values():
        peer.doubted = True


# -- handing out ------------------------------------------------------------------------------------------------------


def dispatch(state: BrokerState, now: Now) -> None:
    """Who holds nothing gets something, those first who have waited longest, and the doubted last."""
    if state.draining or state.stalled is not None or not state.ready.count or is_paused(state):
        return
    free = [peer for peer in state.level0.peers.values() if takers.is_free(peer, now)]
    if not free:
        return
    routes = {route for route in state.ready.routes() if takers.level0_serves(state, route)}
    allowances = allowance.limits(state, routes, now)
    free.sort(key=lambda peer: (peer.doubted, peer.turn))
    share = -(-state.ready.count_of(routes) // len(free))
    round = DispatchRound(state)
    while free and routes and not round.is_over:
        if free[0].doubted:
            routes = {route for route in routes if takers.peer_obstacle(free[0], route, now) is None}
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
            _hand(state, peer, batch.steps, batch.requests, now)
    round.end(state)


def is_paused(state: BrokerState) -> bool:
    """What comes over the bus is the bus's, with a session or without one."""
    return state.executor(BUS).paused_wall is not None


def _choose(free: list[Level0Peer], route: Route, step: Step, now: Now) -> Level0Peer:
    """The first of them; for a step that went wrong somewhere, the first that it has not been with."""
    if step.avoid:
        for peer in free:
            if peer.worker not in step.avoid and takers.peer_obstacle(peer, route, now) is None:
                return peer
    return free[0]


def _fill(
    state: BrokerState,
    round: DispatchRound,
    peer: Level0Peer,
    first: Step,
    routes: Iterable[Route],
    share: int,
    now: Now,
) -> BatchFiller:
    """One batch for this peer, beginning with this step. A step that is at_most_once or a suspect goes alone, and so
    does every step for a doubted peer."""
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
    own = set() if goes_alone else {r for r in routes if not (r.goes_alone or r.is_at_most_once)}

    def next_step() -> Step | None:
        entry = state.ready.next(own) if own else None
        return None if entry is None else entry[1]

    batch.fill(state, first, next_step)
    round.aside += batch.left_over
    return batch


def _hand(state: BrokerState, peer: Level0Peer, steps: list[Step], requests: list[StepRequest], now: Now) -> None:
    """It is theirs with the commit of this, and leaves after it. What never starts twice is granted with it: whether
    it was read is not to be known."""
    level0 = state.level0
    level0.turns += 1
    peer.turn = level0.turns
    handout = Handout(
        id=state.next_batch_id(),
        peer=peer,
        items=[(r.step_id, r.delivery) for r in requests],
        lease_ms=sum(s.definition.timeout_ms for s in steps) + limits.TIMEOUT_GRACE_MS,
    )
    handout.body = codec.encode(
        StepsLevel0(
            to=peer.to,
            batch_id=handout.id,
            protocol_version=limits.PROTOCOL_LEVEL_0,
            steps=[_at_level0(request) for request in requests],
        )
    )
    for step, request in zip(steps, requests, strict=True):
        record_dispatch(state, step, request, peer.worker, handout.id, now)
        if step.at_most_once:
            state.record(step.task, facts.Granted(now.wall, step.position, request.delivery))
    if state.guards.by_handler:
        allowance.handed(state, steps, now)
    level0.handouts[handout.id] = peer.holds[handout.id] = handout
    state.counters.dispatched += len(steps)
    state.outbox.send(SendHandout(handout, tuple({s.task.id: s.task for s in steps}.values())))


def _at_level0(request: StepRequest) -> StepRequestLevel0:
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
        ),
    )


def released(state: BrokerState, send: SendHandout, now: Now) -> None:
    """Its commit is done: it leaves now, once, and its lease begins. Unless there is nobody to send it to any more."""
    handout = send.handout
    assert handout.peer is not None
    if not handout.peer.gone and not any(task.rejected for task in send.about):
        handout.due_mono = now.mono + handout.lease_ms
        state.timers.set(handout.due_mono, HandoutEnds(handout))
        state.decision.handouts.append(handout)
        return
    _end(state, handout)
    for step in _still_there(state, handout):
        # It never left, so it never started, granted or not.
        undeliver(state, step, "unsent", now, avoid=False)


def recover(state: BrokerState, step: Step, now: Now) -> None:
    """Handed over before this broker started: the handler may be at it, and has its lease from our start."""
    assert step.batch_id is not None
    level0 = state.level0
    handout = level0.handouts.get(step.batch_id)
    if handout is None:
        handout = Handout(step.batch_id, None, [], limits.TIMEOUT_GRACE_MS)
        level0.handouts[handout.id] = handout
        state.timers.set(now.mono, HandoutEnds(handout))
    if (step.id, step.delivery) not in handout.items:
        handout.items.append((step.id, step.delivery))
        if handout.peer is None:
            handout.lease_ms += step.definition.timeout_ms
            handout.due_mono = max(level0.started_mono + handout.lease_ms, now.mono + SETTLE_MS)


# -- what comes back --------------------------------------------------------------------------------------------------


def on_results(state: BrokerState, message: ResultsLevel0, now: Now, absent: frozenset[int] = frozenset()) -> None:
    """`absent`: steps that were looked up and are final or pruned. An answer is taken also while the database is
    behind: it is not said again, and there is one at most of each peer."""
    unknown = [
        r.step_id
        for r in message.results
        if r.step_id not in state.steps and r.step_id not in state.ended and r.step_id not in absent
    ]
    if unknown:
        look_up(state, message, unknown)
        return
    handout = state.level0.handouts.get(message.batch_id)
    peer = handout.peer if handout is not None else state.level0.expired.pop(message.batch_id, None)
    if peer is not None:
        peer.doubted = False
        peer.heard_mono = now.mono
    results = message.results or _of_all(handout, message)
    complaint: str | None = None
    if not results:
        state.counters.late_results += 1  # an error of a batch that is over, or of none
    for result in results:
        step = state.steps.get(result.step_id)
        delivery = None if step is None or step.state in STEP_FINAL else _delivery(step, message.batch_id)
        if step is None or delivery is None:
            code = _mismatch(state, result.step_id, message.batch_id)
            if code is None:
                state.counters.late_results += 1
            else:
                state.counters.count_refused(code)
                complaint = complaint or code
            continue
        if peer is not None:
            peer.completed += result.status == "completed"
            peer.failed += result.status != "completed"
        apply_result(state, step, msgspec.structs.replace(result, delivery=delivery), now, None)
        if handout is not None and (step.id, delivery) in handout.items:
            handout.items.remove((step.id, delivery))
    if complaint is not None:
        text = f"batch {message.batch_id}: {REFUSALS[complaint]}"
        state.decision.complaints.append(Complaint(complaint, text))
    if handout is not None and not _still_there(state, handout):
        _end(state, handout)


def _of_all(handout: Handout | None, message: ResultsLevel0) -> list[Result]:
    """The answer is an error for the whole batch: so each of its steps failed."""
    assert message.error is not None
    error = ErrorDetail(message=message.error) if isinstance(message.error, str) else message.error
    items = [] if handout is None else handout.items
    return [Result(step_id=step_id, status="failed", error=error) for step_id, _ in items]


def _mismatch(state: BrokerState, step_id: int, batch_id: str) -> str | None:
    step = state.steps.get(step_id)
    if step is None or step.state in STEP_FINAL or _delivery(step, batch_id) is not None:
        return None
    if batch_id == step.batch_id or any(batch_id == earlier.batch_id for earlier in step.earlier or ()):
        return "wrong_sender"  # it went to a worker, which answers in its session
    return "wrong_batch"


def _delivery(step: Step, batch_id: str) -> int | None:
    """The batch tells the delivery: each has one of its own. Only what went to level 0 is answered from there."""
    if step.batch_id == batch_id:
        return step.delivery if step.at_level0 else None
    for earlier in step.earlier or ():
        if earlier.batch_id == batch_id and earlier.worker.startswith(LEVEL0):
            return earlier.number
    return None


def expire(state: BrokerState, handout: Handout, now: Now) -> None:
    """Nothing came in all its time. What may start again does, elsewhere if there is an elsewhere."""
    if handout.over:
        return
    if now.mono < handout.due_mono:
        state.timers.set(handout.due_mono, HandoutEnds(handout))
        return
    state.counters.level0_expiries += 1
    left = _still_there(state, handout)
    _end(state, handout)
    peer, expired = handout.peer, state.level0.expired
    if peer is not None:
        peer.doubted = True
        expired[handout.id] = peer
        if len(expired) > EXPIRED_REMEMBERED_MAX:
            expired.popitem(last=False)
        allowance.lost(state, left, left, "a level-0 handler let its lease end", now)
    for step in left:
        if step.at_most_once:
            unknown_outcome(state, step, "outcome_unknown", now)
        else:
            undeliver(state, step, "unanswered", now, lost=True)


def _end(state: BrokerState, handout: Handout) -> None:
    handout.over = True
    state.level0.handouts.pop(handout.id, None)
    if handout.peer is not None:
        handout.peer.holds.pop(handout.id, None)


def _still_there(state: BrokerState, handout: Handout) -> list[Step]:
    """What of it still waits for its answer."""
    found = []
    for step_id, delivery in handout.items:
        step = state.steps.get(step_id)
        if step is not None and step.state is DISPATCHED and step.delivery == delivery:
            found.append(step)
    return found
