"""What workers say of the steps they were given: accepted, refused, may I start, done.

The result rule: is the step mine, did this delivery go to this worker in this batch, and can its news still matter?
A result is applied once; whatever can never matter is acked too, so that the worker can forget it.
"""

from typing import Final

import msgspec
from msgspec import UNSET
from stepwire_protocol import limits, topics
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Cancel,
    ErrorDetail,
    Go,
    Progress,
    Refuse,
    Result,
    Results,
    ResultsLevel0,
    Start,
)

from stepwire_broker.core.commit.decision import LoadBySteps
from stepwire_broker.core.commit.loads import ResultsLoad
from stepwire_broker.core.commit.outbox import SendAck, SendMessage
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import Parked
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import STOPPED, Step, StepBatch, Task, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED, HELD, READY, RETRY_WAIT, STEP_FINAL, TaskState
from stepwire_broker.core.model.targets import BUS
from stepwire_broker.core.progress.step_outcomes import (
    cancel_step,
    complete,
    fail,
    fail_for,
    undeliver,
    unknown_outcome,
)
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.shadows.shadow import FIRST
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RunLimit

from . import executor_control
from .sessions import current, refuse, turn_away

V: Final = limits.PROTOCOL_LEVEL_1
_OPEN_FOR_SUCCESS: Final = frozenset({DISPATCHED, READY, RETRY_WAIT, HELD})


# -- accept, refuse, start, progress ----------------------------------------------------------------------------------


def on_accept(state: BrokerState, message: Accept, now: Now) -> None:
    session = current(state, message.worker, message.session)
    if session is None:
        return
    _answered(session, message.batch_id)
    session.free = message.free


def _answered(session: WorkerSession, batch_id: str) -> StepBatch | None:
    """The worker has this batch: it need not be sent again, and its `free` counts it from here on."""
    batch = session.unanswered_batches.pop(batch_id, None)
    if batch is not None:
        batch.answered = True
        session.unanswered -= len(batch.steps)
        session.free -= len(batch.steps)
        batch.frame = b""
    return batch


def on_refuse(state: BrokerState, message: Refuse, now: Now) -> None:
    session = current(state, message.worker, message.session)
    if session is None:
        return
    batch = session.unanswered_batches.get(message.batch_id)
    said = batch.frame if batch is not None else b""
    _answered(session, message.batch_id)
    session.free = message.free
    if message.code == "draining":
        session.draining = True
    named = [(session.deliveries.get(step_id), delivery) for step_id, delivery in message.items]
    given_back = [s for s, delivery in named if s is not None and s.delivery == delivery and s.state is DISPATCHED]
    allowance.refused(state, given_back, message.code, now)
    for step in given_back:
        if step.state is not DISPATCHED:
            continue
        if message.code in ("bad_message", "too_large"):
            lane = state.outbox.touch(step.task.lane)
            # The bytes that could not be read, if they are still at hand; once, however many steps they hold.
            lane.parked.append(Parked(now.wall, step.task.id, step.id, message.code, message.worker, said))
            lane.bytes += len(said)
            said = b""
            fail_for(state, step, message.code, now)
            continue
        if message.code == "unknown_handler":
            session.unknown.add(step.definition.handler_class)
            state.offer_cache.clear()
        undeliver(state, step, message.code, now)


def on_start(state: BrokerState, message: Start, now: Now) -> None:
    """May I run these? Yes, when that is committed; and again yes, when the first yes was lost."""
    session = current(state, message.worker, message.session)
    if session is None:
        return
    go: list[tuple[int, int]] = []
    no: list[tuple[int, int]] = []
    about: list[Task] = []
    for step_id, delivery in message.items:
        step = session.deliveries.get(step_id)
        if step is None or step.delivery != delivery:
            no.append((step_id, delivery))
            continue
        if step.batch is not None and not step.batch.answered:
            _answered(session, step.batch.id)
        if step.cancel is not None or (step.task.state is TaskState.PAUSED and not step.granted):
            no.append((step_id, delivery))
            if not step.granted:
                undeliver(state, step, "not_granted", now, avoid=False)
            continue
        if not step.granted:
            state.record(step.task, facts.Granted(now.wall, step.position, delivery))
            if not session.has_lease:
                due = now.mono + step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
                state.timers.set(due, RunLimit(step, delivery, due))
        go.append((step_id, delivery))
        about.append(step.task)
    header = {"v": V, "broker": state.identity.broker, "epoch": state.identity.epoch, "session": session.id}
    if go:
        state.outbox.send(SendMessage(session, Go(**header, items=go), tuple(about)))  # type: ignore[arg-type]
    if no:
        state.outbox.send(
            SendMessage(session, Cancel(**header, items=no, reason="not_granted"))  # type: ignore[arg-type]
        )


def on_progress(state: BrokerState, message: Progress, now: Now) -> None:
    session = current(state, message.worker, message.session)
    if session is None:
        return
    for step_id, delivery, done, total, note in message.items:
        step = session.deliveries.get(step_id)
        if step is not None and step.delivery == delivery:
            step.progress = (done, total, note)


# -- results ----------------------------------------------------------------------------------------------------------


def on_results(state: BrokerState, message: Results, now: Now, absent: frozenset[int] = frozenset()) -> None:
    """`absent`: steps that were looked up and are final or pruned; their results are late."""
    if message.deployment != state.identity.deployment:
        state.counters.ignored += 1  # another database's steps: never an ack
        return
    steps = state.steps
    unknown = [
        r.step_id
        for r in message.results
        if r.step_id not in steps and r.step_id not in state.ended and r.step_id not in absent and r.step_id < FIRST
    ]
    if unknown:
        look_up(state, message, unknown)
        return
    if state.outbox.bytes_waiting > state.settings.limits.uncommitted_bytes:
        state.counters.ignored += 1  # the database is behind: the worker keeps it and says it again
        return
    session = state.sessions.get(message.worker)
    if session is not None and session.id == message.session:
        if message.batch_id in session.unanswered_batches:
            _answered(session, message.batch_id)
        if message.free is not None and message.n >= session.free_n:
            session.free_n = message.n
            session.free = message.free
    elif session is None or message.session != session.id:
        turn_away(state, message.worker, message.session)
    refusal: str | None = None
    about: list[Task] = []
    for result in message.results:
        step = steps.get(result.step_id)
        if step is None:
            if result.step_id >= FIRST:
                copies.on_result(state, result, session, now)
            else:
                state.counters.late_results += 1
            continue
        about.append(step.task)  # what makes a result late may itself not be stored yet
        if step.state in STEP_FINAL:
            state.counters.late_results += 1
            continue
        code = _mismatch(step, result, message.batch_id, message.worker)
        if code is None:
            apply_result(state, step, result, now, session)
        elif code == "late":
            state.counters.late_results += 1
        else:
            refusal = code
    header = {"v": V, "broker": state.identity.broker, "epoch": state.identity.epoch}
    state.outbox.send(
        SendAck(topics.to_worker(message.worker), Ack(**header, rids=[message.rid]), tuple(about))  # type: ignore[arg-type]
    )
    if refusal is not None:
        refuse(state, message.worker, refusal, f"results of {message.batch_id}", "results", message.rid)


def look_up(state: BrokerState, message: Results | ResultsLevel0, unknown: list[int]) -> None:
    request = state.next_read()
    state.loads[request] = ResultsLoad(message)
    state.decision.reads.append(LoadBySteps(request, sorted(set(unknown))))


def _mismatch(step: Step, result: Result, batch_id: str, worker: str) -> str | None:
    """None = this result is of this delivery; `late` = it can never matter; else whose fault it is."""
    delivery = result.delivery
    if delivery is UNSET or delivery == step.delivery:
        if step.batch_id is None:
            return _of_earlier(step, step.delivery, batch_id, worker)
        if batch_id != step.batch_id:
            return "wrong_batch"
        return None if worker == step.worker else "wrong_sender"
    if delivery > step.delivery:
        return "unknown_delivery"
    return _of_earlier(step, delivery, batch_id, worker)


def _of_earlier(step: Step, delivery: int, batch_id: str, worker: str) -> str | None:
    for earlier in step.earlier or ():
        if earlier.number == delivery:
            if batch_id != earlier.batch_id:
                return "wrong_batch"
            return None if worker == earlier.worker else "wrong_sender"
    return "late"


def apply_result(state: BrokerState, step: Step, result: Result, now: Now, session: WorkerSession | None) -> None:
    delivery = step.delivery if result.delivery is UNSET else result.delivery
    assert isinstance(delivery, int)
    of = state.executor(BUS) if session is None else session.of
    if result.status == "completed":
        if delivery < step.accept_from or step.state not in _OPEN_FOR_SUCCESS:
            state.counters.late_results += 1
            return
        if delivery != step.delivery and step.state is DISPATCHED and step.session is not None:
            _withdraw(state, step)
        if session is not None:
            session.completed += 1
        executor_control.count(of.figures, step, result, now)
        if state.guards.by_handler:
            allowance.answered(state, step, delivery, None, result.status, now)
        complete(state, step, delivery, _compact(bytes(result.output)), now)
        return
    if delivery != step.delivery or step.batch_id is None or not _is_open_for_failure(step):
        state.counters.late_results += 1
        return
    if session is not None:
        session.failed += 1
    executor_control.count(of.figures, step, result, now)
    error = result.error or ErrorDetail(message="the handler gave no reason")
    allowance.answered(state, step, delivery, error, result.status, now)
    is_unknown = error.code == "outcome_unknown"
    if is_unknown and step.at_most_once:
        if step.state is DISPATCHED:
            step.error = facts.encode(bounded(error, result.status))  # whoever has to decide wants to know what it said
        unknown_outcome(state, step, "outcome_unknown", now)
        return
    if step.cancel is not None and step.at_most_once and step.granted:
        # Its worker was told to stop it and then reported a failure: what it had done by then is not known.
        unknown_outcome(state, step, STOPPED, now)
        return
    if step.task.cancelling and step.state is DISPATCHED:
        cancel_step(state, step, "task_cancelled", now)
        return
    retryable = error.retryable
    if retryable is None and result.metadata is not None:
        retryable = result.metadata.retryable
    fail(
        state,
        step,
        bounded(error, result.status),
        now,
        retryable=is_unknown or retryable is not False,
        reported=result.status == "failed",
        retry_after_ms=None if error.retry_after_ms is None else min(error.retry_after_ms, RETRY_AFTER_MAX_MS),
    )


def _is_open_for_failure(step: Step) -> bool:
    """Can a reported failure of the current delivery still change this step?

    A step that is held because its worker failed it after a cancel stays held when the worker resends that failure.
    The reason decides, because it is stored in the step's row and survives a restart.
    """
    return step.state is DISPATCHED or (step.state is HELD and step.reason != STOPPED)


RETRY_AFTER_MAX_MS: Final = 366 * 24 * 3600 * 1000


def _withdraw(state: BrokerState, step: Step) -> None:
    """An earlier delivery succeeded after all: the one under way need not go on."""
    assert step.session is not None
    header = {
        "v": V,
        "broker": state.identity.broker,
        "epoch": state.identity.epoch,
        "session": step.session.id,
    }
    items = [(step.id, step.delivery)]
    state.outbox.send(
        SendMessage(step.session, Cancel(**header, items=items, reason="superseded"))  # type: ignore[arg-type]
    )


ERROR_BYTES_MAX: Final = 8192


def bounded(error: ErrorDetail, status: str) -> ErrorDetail:
    """An error as it is stored: with a code, and no longer than what somebody would read."""
    backtrace = error.backtrace
    if isinstance(backtrace, str):
        backtrace = backtrace[:ERROR_BYTES_MAX]
    elif backtrace is not None:
        kept, room = [], ERROR_BYTES_MAX
        for line in backtrace:
            room -= len(line)
            if room < 0:
                break
            kept.append(line)
        backtrace = kept
    return msgspec.structs.replace(
        error,
        message=error.message[:ERROR_BYTES_MAX],
        code=(error.code or status)[:128],
        category=None if error.category is None else error.category[:128],
        backtrace=backtrace,
    )


def _compact(output: bytes) -> bytes:
    """Without white space between tokens, as it is stored."""
    if b" " in output or b"\n" in output or b"\t" in output or b"\r" in output:
        return msgspec.json.format(output, indent=-1)
    return output
