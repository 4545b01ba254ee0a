"""Results of steps: the check whether a result counts, and the effect of a success or a failure.

A result counts if its delivery was handed to this worker in this batch and can still change the step. It is applied
once. A result that can no longer change anything is acknowledged as well, so that the worker can drop it.
"""

from collections.abc import Container
from typing import Final

import msgspec
from msgspec import UNSET
from stepwire_protocol import limits, topics
from stepwire_protocol.messages import ErrorDetail, Result, ResultMetadata, Results, ResultsLevel0

from stepwire_broker.core import letters
from stepwire_broker.core.answers.answers import ResultTaken
from stepwire_broker.core.commit.decision import LoadBySteps, ResultsElsewhere
from stepwire_broker.core.commit.loads import ResultsLoad
from stepwire_broker.core.commit.outbox import SendAck, SendMessage
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now, ReportResult, ResultsTaken
from stepwire_broker.core.model.live import DIRTY_STDERR, STOPPED, StandardError, Step, Task, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED, HELD, READY, RETRY_WAIT, STEP_FINAL
from stepwire_broker.core.progress.step_outcomes import cancel_step, complete, fail, unknown_outcome
from stepwire_broker.core.reading import sealed_results
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.shadows.shadow import FIRST
from stepwire_broker.core.state import BrokerState

from . import executor_control
from .batch_answers import mark_answered
from .hello import record_offers
from .replies import refuse, turn_away
from .stopping import send_cancel

_OPEN_FOR_SUCCESS: Final = frozenset({DISPATCHED, READY, RETRY_WAIT, HELD})


def on_results(state: BrokerState, message: Results, now: Now, absent: frozenset[int] = frozenset()) -> None:
    """`absent`: steps that were looked up in the database and are final or pruned. Their results are late.

    Results of steps that another broker owns are left to it, and their message is never acknowledged here.
    """
    if message.deployment != state.identity.deployment:
        state.counters.ignored += 1  # results of another deployment: never acknowledged, its broker may need them
        return
    steps = state.steps
    missing = [r.step_id for r in message.results if r.step_id not in steps and r.step_id < FIRST]
    foreign = {step_id for step_id in missing if state.is_foreign(step_id)}
    passes_on = bool(foreign) and _misses_a_broker(state, message.worker)
    if foreign and len(foreign) == len(message.results) and not passes_on:
        state.counters.ignored += 1
        return
    unknown = [i for i in missing if i not in foreign and i not in state.ended and i not in absent]
    if unknown:
        look_up(state, message, unknown)
        return
    if state.outbox.bytes_waiting > state.settings.limits.uncommitted_bytes:
        state.counters.ignored += 1  # the database is behind: the worker keeps the message and resends it
        return
    session = state.sessions.get(message.worker)
    if session is not None and session.id == message.session:
        _renew_credit(session, message)
    else:
        turn_away(state, message.worker, message.session, now)
    about, refusal = _apply_all(state, message, session, foreign, now)
    if passes_on:
        theirs = tuple(result for result in message.results if result.step_id in foreign)
        passed = ResultsElsewhere(message.worker, message.rid, message.batch_id, theirs)
        state.decision.results_elsewhere.append(passed)
        return
    if foreign:
        _claim_own(state, message, session, foreign)
        return
    ack = letters.ack(state.identity, message.rid)
    state.outbox.send(SendAck(topics.to_worker(message.worker), ack, tuple(about)))
    if refusal is not None:
        refuse(state, message.worker, refusal, f"results of {message.batch_id}", "results", message.rid)


def _misses_a_broker(state: BrokerState, worker: str) -> bool:
    """True if this worker may have no session with the owner of a step, who alone could acknowledge its result.

    A worker over HTTP sends its results to one broker. That may be another one than the broker of its session."""
    if worker in state.attached:
        return True
    session = state.sessions.get(worker)
    if session is None or not session.confirmed or len(state.live_brokers) == 1:
        return False
    return not state.live_brokers <= session.brokers


def on_taken(state: BrokerState, event: ResultsTaken, now: Now) -> None:
    """Acknowledge a message when the owners have stored their results of it, and this broker its own."""
    ack = letters.ack(state.identity, event.rid)
    state.outbox.send(SendAck(topics.to_worker(event.worker), ack))


def on_report(state: BrokerState, step: Step, report: ReportResult, now: Now) -> None:
    """Apply a result that another broker has passed on."""
    code = "late" if step.state in STEP_FINAL else _mismatch(step, report.result, report.batch_id, report.worker)
    if code is None:
        apply_result(state, step, report.result, now, None)
    elif code == "late":
        state.counters.late_results += 1
    else:
        state.counters.count_refused(code)
    state.answer(report.request, ResultTaken(), step.task)


def _claim_own(state: BrokerState, message: Results, session: WorkerSession | None, foreign: Container[int]) -> None:
    """Adopt the own steps of a message that reports steps of other brokers as well. No broker may acknowledge such a
    message. The worker then reports the steps of each broker in a message of their own."""
    if session is not None and session.is_addressable and session.id != message.session:
        own = [
            (result.step_id, result.delivery)
            for result in message.results
            if result.step_id not in foreign and isinstance(result.delivery, int)
        ]
        state.outbox.send(SendMessage(session, letters.adopt(state.identity, session, own)))


def look_up(state: BrokerState, message: Results | ResultsLevel0, unknown: list[int]) -> None:
    """Read these steps from the database. The message is handled again after the read."""
    request = state.next_read()
    state.loads[request] = ResultsLoad(message, state.principal)
    state.decision.reads.append(LoadBySteps(request, sorted(set(unknown))))


def _renew_credit(session: WorkerSession, message: Results) -> None:
    if message.batch_id in session.unanswered_batches:
        mark_answered(session, message.batch_id)
    if message.free is not None and message.n > session.free_n:  # a copy of this message names credit that was used
        session.free_n = message.n
        session.offer(message.free, message.slots_free)


def _apply_all(
    state: BrokerState, message: Results, session: WorkerSession | None, foreign: Container[int], now: Now
) -> tuple[list[Task], str | None]:
    """Apply each result that counts, except those of other brokers' steps. Return the tasks that the ack depends on,
    and the code of a refused result.

    The ack of a late result depends on its task as well: the rows that made the result late may not be stored yet.
    """
    about: list[Task] = []
    refusal: str | None = None
    names_handlers = session is not None and session.offers_any  # its pattern names no handler
    completed: dict[str, None] = {}
    for result in message.results:
        step = state.steps.get(result.step_id)
        if step is None:
            if result.step_id >= FIRST:
                copies.on_result(state, result, message.worker, now)
            elif result.step_id not in foreign:
                state.counters.late_results += 1
            continue
        about.append(step.task)
        code = "late" if step.state in STEP_FINAL else _mismatch(step, result, message.batch_id, message.worker)
        if code is None:
            apply_result(state, step, result, now, session)
            if names_handlers and result.status == "completed":
                completed[step.definition.handler_class] = None
        elif code == "late":
            state.counters.late_results += 1
        else:
            refusal = code
    if session is not None and completed:
        record_offers(state, session, completed, now)
    return about, refusal


def _mismatch(step: Step, result: Result, batch_id: str, worker: str) -> str | None:
    """Return why this result belongs to no delivery that can still count; None if the result counts. Every code except
    `late` is a fault of the sender."""
    delivery = result.delivery
    if delivery is UNSET or delivery == step.delivery:
        if step.batch_id is None:
            return _mismatch_of_earlier(step, step.delivery, batch_id, worker)
        if batch_id != step.batch_id:
            return "wrong_batch"
        return None if worker == step.worker else "wrong_sender"
    if delivery > step.delivery:
        return "unknown_delivery"
    return _mismatch_of_earlier(step, delivery, batch_id, worker)


def _mismatch_of_earlier(step: Step, delivery: int, batch_id: str, worker: str) -> str | None:
    for earlier in step.earlier or ():
        if earlier.number == delivery:
            if batch_id != earlier.batch_id:
                return "wrong_batch"
            return None if worker == earlier.worker else "wrong_sender"
    return "late"


# -- one result -------------------------------------------------------------------------------------------------------


def apply_result(state: BrokerState, step: Step, result: Result, now: Now, session: WorkerSession | None) -> None:
    """Apply a result of one of the step's deliveries. `session` is None for level 0, and if the sender has none."""
    if step.task.workflow.is_sealed:
        result = sealed_results.checked(result, at_most_once=step.at_most_once)
    delivery = step.delivery if result.delivery is UNSET else result.delivery
    assert isinstance(delivery, int)
    if result.status == "completed":
        _apply_success(state, step, delivery, result, now, session)
    else:
        _apply_failure(state, step, delivery, result, now, session)


def _apply_success(
    state: BrokerState, step: Step, delivery: int, result: Result, now: Now, session: WorkerSession | None
) -> None:
    """Complete the step by a success of any delivery, unless an operator has retried the step since that delivery."""
    if delivery < step.accept_from or step.state not in _OPEN_FOR_SUCCESS:
        state.counters.late_results += 1
        return
    if delivery != step.delivery and step.state is DISPATCHED and step.session is not None:
        # An earlier delivery succeeded after all, so the current one need not go on.
        send_cancel(state, step.session, [(step.id, step.delivery)], "superseded")
    executor_control.count_run(state, session, step, result, now)
    if state.guards.by_handler:
        allowance.answered(state, step, delivery, None, result.status, now)
    metadata = result.metadata
    run_ms = None
    if metadata is not None:
        run_ms = _run_ms(metadata)
        if metadata.stderr is not None:
            _keep_stderr(state, step, delivery, metadata.stderr)
    complete(state, step, delivery, _compact(bytes(result.output)), now, run_ms)


def _apply_failure(
    state: BrokerState, step: Step, delivery: int, result: Result, now: Now, session: WorkerSession | None
) -> None:
    """Apply a failure of the current delivery: use an attempt, or leave an at_most_once outcome unknown."""
    if delivery != step.delivery or step.batch_id is None or not _is_open_for_failure(step):
        state.counters.late_results += 1
        return
    executor_control.count_run(state, session, step, result, now)
    error = result.error or ErrorDetail(message="the handler gave no reason")
    stored = bounded(error, result.status)
    run_ms = None if result.metadata is None else _run_ms(result.metadata)
    if result.metadata is not None and result.metadata.stderr is not None:
        _keep_stderr(state, step, delivery, result.metadata.stderr)
    allowance.answered(state, step, delivery, error, result.status, now)
    is_unknown = error.code == "outcome_unknown"
    if is_unknown and step.at_most_once:
        if step.state is DISPATCHED:
            step.error = facts.encode(stored)  # an operator who resolves the step needs the handler's message
        unknown_outcome(state, step, "outcome_unknown", now, error=stored, run_ms=run_ms)
    elif step.cancel is not None and step.at_most_once and step.granted:
        # The worker reported a failure after a cancel: the effects of the stopped run are unknown.
        unknown_outcome(state, step, STOPPED, now, error=stored, run_ms=run_ms)
    elif step.task.cancelling and step.state is DISPATCHED:
        cancel_step(state, step, "task_cancelled", now)
    else:
        retry_after_ms = error.retry_after_ms
        fail(
            state,
            step,
            stored,
            now,
            retryable=is_unknown or _is_retryable(error, result),
            reported=result.status == "failed",
            retry_after_ms=None if retry_after_ms is None else min(retry_after_ms, RETRY_AFTER_MAX_MS),
            run_ms=run_ms,
        )


RETRY_AFTER_MAX_MS: Final = 366 * 24 * 3600 * 1000
RUN_MS_MAX: Final = limits.INTEGER_MAX


def _run_ms(metadata: ResultMetadata) -> int | None:
    """Return the duration of the run as its worker measured it, in whole milliseconds."""
    took_ms = metadata.execution_time_ms
    if took_ms is None:
        return None
    return int(took_ms + 0.5) if took_ms < RUN_MS_MAX else RUN_MS_MAX


def _keep_stderr(state: BrokerState, step: Step, delivery: int, text: str) -> None:
    """Have the end of the run's standard error written together with the step's rows."""
    if len(text) > STDERR_BYTES_MAX // 4:  # a shorter text fits, whatever its characters are
        text = text.encode()[-STDERR_BYTES_MAX:].decode(errors="ignore")
    if not step.dirty:
        step.task.dirty_steps.append(step)
    step.dirty |= DIRTY_STDERR
    step.stderr = StandardError(delivery, text)
    state.write(step.task)
    state.outbox.lanes[step.task.lane].bytes += len(text)


def _is_open_for_failure(step: Step) -> bool:
    """True if a reported failure of the current delivery can still change this step.

    A step that is held because its worker failed it after a cancel stays held when the worker resends that failure.
    The reason decides, because it is stored in the step's row and survives a restart.
    """
    return step.state is DISPATCHED or (step.state is HELD and step.reason != STOPPED)


def _is_retryable(error: ErrorDetail, result: Result) -> bool:
    """Return the error's `retryable`, or else the metadata's. Without both, the failure is retryable."""
    if error.retryable is not None:
        return error.retryable
    return result.metadata is None or result.metadata.retryable is not False


ERROR_BYTES_MAX: Final = 8192
STDERR_BYTES_MAX: Final = 16 * 1024


def bounded(error: ErrorDetail, status: str) -> ErrorDetail:
    """Return the error as it is stored: with a code, and with its texts cut to a readable length."""
    backtrace = error.backtrace
    if isinstance(backtrace, str):
        backtrace = backtrace[:ERROR_BYTES_MAX]
    elif backtrace is not None:
        kept, bytes_left = [], ERROR_BYTES_MAX
        for line in backtrace:
            bytes_left -= len(line)
            if bytes_left < 0:
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
    """Return the output as it is stored: without white space between tokens."""
    if b" " in output or b"\n" in output or b"\t" in output or b"\r" in output:
        return msgspec.json.format(output, indent=-1)
    return output
