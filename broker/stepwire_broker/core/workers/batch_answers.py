"""A worker's answers to a batch: accepted, refused, asked to start, and progress of a run."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Accept, Progress, Refuse, Start

from stepwire_broker.core import letters
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import Parked
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, StepProgress, Task, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED, TaskState
from stepwire_broker.core.progress.step_outcomes import fail_for, undeliver
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RunLimit

from .replies import session_of


def on_accept(state: BrokerState, message: Accept, now: Now) -> None:
    session = session_of(state, message.worker, message.session, now)
    if session is None:
        return
    mark_answered(session, message.batch_id)
    session.offer(message.free, message.slots_free)


def mark_answered(session: WorkerSession, batch_id: str) -> None:
    """Record that the worker has this batch: it is not resent, and from now on the worker's `free` includes it."""
    batch = session.unanswered_batches.pop(batch_id, None)
    if batch is not None:
        batch.answered = True
        session.unanswered -= len(batch.steps)
        session.free -= len(batch.steps)
        if session.slots_free is not None:
            session.slots_free -= len(batch.steps)
        batch.frame = b""


# -- refuse -----------------------------------------------------------------------------------------------------------


def on_refuse(state: BrokerState, message: Refuse, now: Now) -> None:
    session = session_of(state, message.worker, message.session, now)
    if session is None:
        return
    batch = session.unanswered_batches.get(message.batch_id)
    frame = batch.frame if batch is not None else b""
    mark_answered(session, message.batch_id)
    session.offer(message.free, message.slots_free)
    if message.code == "draining":
        session.draining = True
    named = [(session.deliveries.get(step_id), delivery) for step_id, delivery in message.items]
    given_back = [s for s, delivery in named if s is not None and s.delivery == delivery and s.state is DISPATCHED]
    allowance.refused(state, given_back, message.code, now)
    for step in given_back:
        if step.state is not DISPATCHED:
            continue
        if message.code in ("bad_message", "too_large"):
            _park(state, step, message, frame, now)
            frame = b""  # the frame is stored once, not for each step
            fail_for(state, step, message.code, now)
            continue
        if message.code == "unknown_handler":
            session.unknown.add(step.definition.handler_class)
            state.offer_cache.clear()
        undeliver(state, step, message.code, now)


def _park(state: BrokerState, step: Step, message: Refuse, frame: bytes, now: Now) -> None:
    """Store the bytes that the worker could not read, for an operator to inspect."""
    lane = state.outbox.touch(step.task.lane)
    lane.parked.append(Parked(now.wall, step.task.id, step.id, message.code, message.worker, frame))
    lane.bytes += len(frame)


# -- start and progress -----------------------------------------------------------------------------------------------


def on_start(state: BrokerState, message: Start, now: Now) -> None:
    """Answer whether the worker may run these deliveries. The `go` is sent once the grant is committed. If the `go` is
    lost, the worker asks again and the `go` is resent."""
    session = session_of(state, message.worker, message.session, now)
    if session is None:
        return
    go: list[tuple[int, int]] = []
    no: list[tuple[int, int]] = []
    about: list[Task] = []
    for step_id, delivery in message.items:
        step = session.deliveries.get(step_id)
        if step is not None and step.delivery == delivery and _grant(state, step, session, now):
            go.append((step_id, delivery))
            about.append(step.task)
        elif not state.is_foreign(step_id):
            no.append((step_id, delivery))
    if go:
        state.outbox.send(SendMessage(session, letters.go(state.identity, session, go), tuple(about)))
    if no:
        state.outbox.send(SendMessage(session, letters.cancel(state.identity, session, no, "not_granted")))


def _grant(state: BrokerState, step: Step, session: WorkerSession, now: Now) -> bool:
    """Grant the step's current delivery, unless it was cancelled or its task is paused."""
    if step.batch is not None and not step.batch.answered:
        mark_answered(session, step.batch.id)
    if step.cancel is not None or (step.task.state is TaskState.PAUSED and not step.granted):
        if not step.granted:
            undeliver(state, step, "not_granted", now, avoid=False)
        return False
    if not step.granted:
        state.record(step.task, facts.Granted(now.wall, step.position, step.delivery))
        if not session.has_lease:
            due = now.mono + step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
            state.timers.set(due, RunLimit(step, step.delivery, due))
    return True


NOTE_CHARACTERS_MAX: Final = 200


def on_progress(state: BrokerState, message: Progress, now: Now) -> None:
    """Keep the latest report of each running step. A longer note is cut: progress is for people only."""
    session = session_of(state, message.worker, message.session, now)
    if session is None:
        return
    for step_id, delivery, done, total, note in message.items:
        step = session.deliveries.get(step_id)
        if step is not None and step.delivery == delivery:
            cut = None if note is None or step.task.workflow.is_sealed else note[:NOTE_CHARACTERS_MAX]
            report = StepProgress(step, delivery, now.wall, done, total, cut)
            state.progress[step_id] = report
            state.decision.progress.append(report)
