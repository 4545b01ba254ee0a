"""Level 0: handlers that know only two messages, `steps` in and `results` out.

Each subscription of `steps` is a peer of its own, and peers take turns. A level-0 handler acknowledges nothing, so the
broker cannot distinguish a lost batch, a lost answer, a dead handler and a slow handler. One lease covers all four
cases: the timeouts of the steps in the batch, plus 5 s. A handler gets one batch of each broker, and runs them one by
one, so the lease has this time for each live broker. Workers with sessions come first.

A peer declares no handlers, so it may be sent a step that it cannot run. Its answer `unknown_handler` means that the
step did not run: the step is ready again, and the peer gets no further step of that handler while it is connected.

An at_most_once step goes here only if the settings allow it, and it counts as started once it is handed out.
"""

from typing import Final

import msgspec
from stepwire_protocol import limits, topics
from stepwire_protocol.errors import REFUSALS
from stepwire_protocol.messages import ErrorDetail, Result, ResultsLevel0

from stepwire_broker.core.commit.decision import Complaint
from stepwire_broker.core.commit.outbox import SendHandout
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.events import Now, PeerSubscribed, PeersUncertain, PeerVanished
from stepwire_broker.core.model.level0_peer import EXPIRED_REMEMBERED_MAX, Handout, Level0Peer
from stepwire_broker.core.model.live import LEVEL0, Step
from stepwire_broker.core.model.principal import BUILT_IN
from stepwire_broker.core.model.states import DISPATCHED, HELD, READY, STEP_FINAL
from stepwire_broker.core.progress.readiness import watch_deadline
from stepwire_broker.core.progress.step_outcomes import fail_for, undeliver, unknown_outcome
from stepwire_broker.core.progress.task_outcome import update_attention
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import HandoutEnds, PeerSettled

from . import authority
from .step_results import apply_result, look_up

SETTLE_MS: Final = 500  # from a subscription until the peer's own PUB socket reaches this broker
PEERS_MAX: Final = 1_000
UNKNOWN_HANDLER: Final = "unknown_handler"  # the error code of a program that does not know the handler


# -- peers ------------------------------------------------------------------------------------------------------------


def on_subscribed(state: BrokerState, event: PeerSubscribed, now: Now) -> None:
    """Add a peer under a new name, so that the peer receives nothing that was meant for an earlier peer."""
    level0, principal = state.level0, state.principal
    rights = authority.rights_of(state, principal)
    if rights is None or authority.of_subscription(state, principal, topics.STEPS) is not None:
        return
    count = sum(peer.principal == principal for peer in level0.peers.values())
    if not state.settings.bus.level0.handlers or len(level0.peers) >= PEERS_MAX or count >= rights.grant.sessions:
        return  # a peer without a grant receives nothing
    level0.numbered += 1
    to = f"{state.identity.epoch}.{level0.numbered}"
    worker = peer_name(to, principal)
    level0.peers[to] = Level0Peer(
        to, worker, now.wall, now.mono, now.mono + SETTLE_MS, now.mono, principal=principal, rights=rights
    )
    state.decision.grants.append(to)
    state.timers.set(now.mono + SETTLE_MS, PeerSettled())


def on_vanished(state: BrokerState, event: PeerVanished, now: Now) -> None:
    """Hand this peer no further batch. Its current batch keeps its lease: a busy handler that loses its connection can
    still answer."""
    peer = state.level0.peers.pop(event.to, None)
    if peer is not None:
        peer.gone = True


def on_uncertain(state: BrokerState, event: PeersUncertain, now: Now) -> None:
    for peer in state.level0.peers.values():
        peer.doubted = True


# -- batches that were handed out -------------------------------------------------------------------------------------


def released(state: BrokerState, send: SendHandout, now: Now) -> None:
    """Send a committed batch once, and start its lease. If the peer is gone, make the steps ready again."""
    handout = send.handout
    assert handout.peer is not None
    if not handout.peer.gone and not any(task.rejected for task in send.about):
        handout.due_mono = now.mono + len(state.live_brokers) * handout.run_ms
        state.timers.set(handout.due_mono, HandoutEnds(handout))
        state.decision.handouts.append(handout)
        return
    not_sent(state, handout, now)


def not_sent(state: BrokerState, handout: Handout, now: Now) -> None:
    """Make the steps of a batch ready again that never left this broker: none of them started, granted or not."""
    _end(state, handout)
    for step in _unanswered(state, handout):
        undeliver(state, step, "unsent", now, avoid=False)


def recover(state: BrokerState, step: Step, now: Now) -> None:
    """Give a step from before this broker's start a whole new lease: its handler may be running the step."""
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
            handout.run_ms += step.definition.timeout_ms
            lease_ms = len(state.live_brokers) * handout.run_ms
            handout.due_mono = max(state.lanes[step.task.lane].taken_mono + lease_ms, now.mono + SETTLE_MS)


def extend_leases(state: BrokerState, more: int) -> None:
    """More brokers are alive. Each may give a handler a batch that runs before the batch of this broker."""
    for handout in state.level0.handouts.values():
        if handout.due_mono:
            handout.due_mono += more * handout.run_ms


# -- answers ----------------------------------------------------------------------------------------------------------


def on_results(state: BrokerState, message: ResultsLevel0, now: Now, absent: frozenset[int] = frozenset()) -> None:
    """`absent`: steps that were looked up in the database and are final or pruned.

    An answer is accepted even while the database is behind: it is not resent, and each peer sends at most one. It
    reaches every broker: results of steps that another broker owns are left to it.
    """
    missing = [r.step_id for r in message.results if r.step_id not in state.steps]
    foreign = {step_id for step_id in missing if state.is_foreign(step_id)}
    if foreign and len(foreign) == len(message.results):
        _on_foreign_results(state, message)
        return
    unknown = [i for i in missing if i not in foreign and i not in state.ended and i not in absent]
    if unknown:
        look_up(state, message, unknown)
        return
    handout = state.level0.handouts.get(message.batch_id)
    peer = handout.peer if handout is not None else state.level0.expired.pop(message.batch_id, None)
    if peer is None and handout is not None and not _may_answer(state, handout):
        handout = None  # each of its results is refused below
    if peer is not None:
        peer.doubted = False
        peer.heard_mono = now.mono
    names_handlers = _names_handlers(state, handout, message)
    if peer is not None and not names_handlers:
        peer.is_uniform = True
    results = message.results or _results_of_error(handout, message)
    if not results:
        # An error for a batch that is over, or is another broker's.
        if handout is None and state.other_brokers:
            state.counters.ignored += 1
        else:
            state.counters.late_results += 1
    refused: str | None = None
    for result in results:
        if result.step_id in foreign:
            continue
        step = state.steps.get(result.step_id)
        delivery = None
        if step is not None and step.state not in STEP_FINAL:
            delivery = _delivery(step, message.batch_id, state.principal)
        if step is None or delivery is None:
            code = _count_rejected(state, result.step_id, message.batch_id)
            refused = refused or code
            continue
        if is_unknown_handler(result.error):
            if peer is not None and names_handlers:
                peer.learn_unknown(step.definition.handler_class)
            _take_back(state, step, delivery, now)
        else:
            if peer is not None:
                peer.completed += result.status == "completed"
                peer.failed += result.status != "completed"
            apply_result(state, step, msgspec.structs.replace(result, delivery=delivery), now, None)
        if handout is not None and (step.id, delivery) in handout.items:
            handout.items.remove((step.id, delivery))
    if refused is not None:
        text = f"batch {message.batch_id}: {REFUSALS[refused]}"
        state.decision.complaints.append(Complaint(refused, text))
    if handout is not None and not _unanswered(state, handout):
        _end(state, handout)


def _on_foreign_results(state: BrokerState, message: ResultsLevel0) -> None:
    """Leave the results to the owner of their lane. If this broker has sent the batch and lost the lane since then, the
    batch ends here as well: the peer is free."""
    state.counters.ignored += 1
    handout = state.level0.handouts.get(message.batch_id)
    if handout is None or handout.peer is None:
        return
    answered = {result.step_id for result in message.results}
    handout.items = [item for item in handout.items if item[0] not in answered]
    handout.peer.doubted = False
    if not _unanswered(state, handout):
        _end(state, handout)


def _count_rejected(state: BrokerState, step_id: int, batch_id: str) -> str | None:
    """Count a result that was not applied. Return the code of its refusal; None if the result is only late."""
    code = _mismatch(state, step_id, batch_id)
    if code is None:
        state.counters.late_results += 1
    else:
        state.counters.count_refused(code)
    return code


def is_unknown_handler(error: ErrorDetail | str | None) -> bool:
    """True if the program answered that it does not know the handler: it has not run the step, and never will."""
    return isinstance(error, ErrorDetail) and error.code == UNKNOWN_HANDLER


def _names_handlers(state: BrokerState, handout: Handout | None, message: ResultsLevel0) -> bool:
    """False for one `unknown_handler` for a whole batch of several handlers: the unknown handler is not named."""
    if message.results or handout is None or not is_unknown_handler(message.error):
        return True
    steps = [state.steps[step_id] for step_id, _ in handout.items if step_id in state.steps]
    return len({step.definition.handler_class for step in steps}) <= 1


def _take_back(state: BrokerState, step: Step, delivery: int, now: Now) -> None:
    """Make a step ready again that did not run, because the program does not know its handler. No attempt is used.

    A granted at_most_once step that is held, because the answer came after its lease, is ready again as well.
    """
    is_held = step.state is HELD and step.reason == "outcome_unknown"
    if delivery != step.delivery or step.batch_id is None or not (step.state is DISPATCHED or is_held):
        state.counters.late_results += 1
        return
    state.counters.level0_unknown += 1
    allowance.not_offered(state, step, now)
    undeliver(state, step, UNKNOWN_HANDLER, now, avoid=False)
    if not is_held:
        return
    update_attention(state, step.task, now)
    if step.state is READY:
        _fail_if_late(state, step, now)


def _fail_if_late(state: BrokerState, step: Step, now: Now) -> None:
    """Fail a step that was held when its deadline, or the deadline of its task, was over."""
    watch_deadline(state, step, now)
    if step.deadline_mono is not None and now.mono >= step.deadline_mono:
        fail_for(state, step, "deadline", now)
    elif step.task.deadline_ms is not None and now.wall >= step.task.deadline_ms:
        fail_for(state, step, "task_deadline", now)


def _results_of_error(handout: Handout | None, message: ResultsLevel0) -> list[Result]:
    """Return a failure of each step for an answer that reports one error for the whole batch."""
    assert message.error is not None
    error = ErrorDetail(message=message.error) if isinstance(message.error, str) else message.error
    items = [] if handout is None else handout.items
    return [Result(step_id=step_id, status="failed", error=error) for step_id, _ in items]


def _mismatch(state: BrokerState, step_id: int, batch_id: str) -> str | None:
    """Return why a result of this batch is refused; None if the result is late, which is no fault."""
    step = state.steps.get(step_id)
    if step is None or step.state in STEP_FINAL or _delivery(step, batch_id, state.principal) is not None:
        return None
    if batch_id == step.batch_id or any(batch_id == earlier.batch_id for earlier in step.earlier or ()):
        return "wrong_sender"  # a worker has this batch, and answers in its session; or another principal has it
    return "wrong_batch"


def _delivery(step: Step, batch_id: str, principal: str) -> int | None:
    """Return the number of the step's delivery in this batch, if the batch went to a level-0 peer of this principal."""
    if step.batch_id == batch_id:
        return step.delivery if step.worker is not None and _went_to(step.worker, principal) else None
    for earlier in step.earlier or ():
        if earlier.batch_id == batch_id and _went_to(earlier.worker, principal):
            return earlier.number
    return None


def peer_name(to: str, principal: str) -> str:
    """The name under which the deliveries of a peer are stored. It outlives the broker, and names the principal of a
    key: after a restart no other principal can answer them."""
    return f"{LEVEL0}{to}" if principal in BUILT_IN else f"{LEVEL0}{to}/{principal}"


def _went_to(worker: str, principal: str) -> bool:
    named = worker.partition("/")[2]
    return worker.startswith(LEVEL0) and (named == principal if named else principal in BUILT_IN)


def _may_answer(state: BrokerState, handout: Handout) -> bool:
    """True if a step of this batch, which was handed out before this start, went to the principal that answers."""
    steps = [state.steps[step_id] for step_id, _ in handout.items if step_id in state.steps]
    return any(_delivery(step, handout.id, state.principal) is not None for step in steps)


def expire(state: BrokerState, handout: Handout, now: Now) -> None:
    """End a batch whose lease is over: unanswered steps run again, except at_most_once steps, which are held."""
    if handout.over:
        return
    if now.mono < handout.due_mono:
        state.timers.set(handout.due_mono, HandoutEnds(handout))
        return
    state.counters.level0_expiries += 1
    left = _unanswered(state, handout)
    _end(state, handout)
    peer, expired = handout.peer, state.level0.expired
    if peer is not None:
        peer.doubted = True
        expired[handout.id] = peer
        if len(expired) > EXPIRED_REMEMBERED_MAX:
            expired.popitem(last=False)
        allowance.lost(state, left, left, "a level-0 handler did not answer within its lease", now)
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


def _unanswered(state: BrokerState, handout: Handout) -> list[Step]:
    """Return the steps of this batch that still wait for an answer."""
    steps = []
    for step_id, delivery in handout.items:
        step = state.steps.get(step_id)
        if step is not None and step.state is DISPATCHED and step.delivery == delivery:
            steps.append(step)
    return steps
