"""A batch after its commit: sent once it is durable, and resent until its worker answers."""

import msgspec
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import Steps

from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import StepBatch, Task
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RetransmitDue


def released(state: BrokerState, batch: StepBatch, now: Now) -> None:
    """Send a batch whose commit is durable, and resend the batch until it is answered."""
    if batch.session.dead or batch.answered:
        return
    batch.released = True
    batch.released_mono = now.mono
    if batch.session.is_addressable:
        state.decision.batches.append(batch)
    state.timers.set(now.mono + batch.pause_ms, RetransmitDue(batch))


def retransmit(state: BrokerState, batch: StepBatch, now: Now) -> None:
    """Send the same bytes again, because the worker has not answered the batch."""
    session = batch.session
    if batch.answered or session.dead:
        return
    if session.has_lease and now.mono - batch.released_mono >= state.settings.bus.lease_ms:
        # The worker renews its lease and does not answer its batch. When the lease ends, the steps may go elsewhere.
        session.muted = True
        return
    if not session.is_addressable:
        state.timers.set(now.mono + batch.pause_ms, RetransmitDue(batch))  # the grant may return before the lease ends
        return
    if not resend(state, batch):
        return
    state.counters.retransmitted += 1
    batch.pause_ms = min(batch.pause_ms * 2, limits.STEPS_RETRANSMIT_MAX_MS)
    state.timers.set(now.mono + batch.pause_ms, RetransmitDue(batch))


def resend(state: BrokerState, batch: StepBatch) -> bool:
    """Resend the batch without the deliveries that were withdrawn meanwhile: a worker that has not received the batch
    yet would start them. Return False if no delivery is left."""
    if not _without_withdrawn(batch):
        return False
    state.decision.batches.append(batch)
    return True


def forget(state: BrokerState, task: Task) -> None:
    """Remove the deliveries of a task that has ended from the bytes of batches that no worker has answered."""
    for session in state.sessions.values():
        for batch in list(session.unanswered_batches.values()):
            if any(step.task is task for step in batch.steps):
                _without_withdrawn(batch)


def _without_withdrawn(batch: StepBatch) -> bool:
    """Remove the withdrawn deliveries from the batch. Return False if no delivery is left."""
    current = [step for step in batch.steps if step.batch is batch]
    if len(current) < len(batch.steps):
        session = batch.session
        session.unanswered -= len(batch.steps) - len(current)
        batch.steps = current
        if not current:
            batch.answered = True
            del session.unanswered_batches[batch.id]
            return False
        topic, body = codec.split(batch.frame)
        message = codec.decode_broker(body)
        assert isinstance(message, Steps)
        ids = {step.id for step in current}
        left = [request for request in message.steps if request.step_id in ids]
        batch.frame = codec.frame(topic, msgspec.structs.replace(message, steps=left))
    return True
