"""Compare the steps that a worker reports as held with this broker's state.

Hellos and heartbeats list the held steps. The broker asks about each missing step with `adopt`, every second until the
worker answers. The broker asks in the same way about deliveries from before its start.

With several brokers, the worker may count a step of a lane that moved as the former owner's. It asks that broker for
permission to start, and ignores a cancel of this one. So this broker claims such a step with `adopt`, too.
"""

from stepwire_protocol import limits
from stepwire_protocol.messages import Adopted, CancelReason, HeldItem

from stepwire_broker.core import letters
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED
from stepwire_broker.core.progress.deliveries import hand_to
from stepwire_broker.core.progress.step_outcomes import undeliver
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import AdoptionDue, RunLimit

from .replies import session_of
from .stopping import send_cancel


def compare_holding(state: BrokerState, session: WorkerSession, n: int, holding: list[HeldItem], now: Now) -> None:
    """Handle a report of a live worker: record starts, cancel deliveries that do not belong to the worker, and ask
    about missing steps."""
    session.reported_n = n
    session.heard_mono = max(session.heard_mono, now.mono)
    session.reported_mono = max(session.reported_mono, now.mono)
    listed: set[int] = set()
    superseded: list[tuple[int, int]] = []
    cancelled: dict[CancelReason, list[tuple[int, int]]] = {}
    overdue = 0
    for step_id, delivery, held_state, age_ms in holding:
        step = state.steps.get(step_id)
        overdue += held_state == "running" and age_ms >= _overdue_from_ms(state, step, step_id)
        if step is None or not _is_its_own(step, delivery, session):
            if held_state != "done" and (step is not None or step_id in state.ended):
                superseded.append((step_id, delivery))
            continue
        listed.add(step_id)
        if state.is_shared and step.session is not session:
            session.claims.add((step_id, delivery))
        _record_held(state, step, session, held_state, age_ms, now)
        if step.cancel is not None and held_state != "done":
            cancelled.setdefault(step.cancel, []).append((step_id, delivery))
    if state.is_shared and superseded:
        session.claims.update(superseded)
        _claim(state, session, superseded)  # before the cancel, which the worker accepts only from their broker
    if superseded:
        send_cancel(state, session, superseded, "superseded")
    if session.claims:
        ask_soon(state, session)
    for reason, items in cancelled.items():
        send_cancel(state, session, items, reason)
    missing = [s for s in session.deliveries.values() if s.id not in listed and (s.batch is None or s.batch.answered)]
    if missing:
        session.asking.update(s.id for s in missing)
        ask_soon(state, session)
    _judge_stuck(state, session, overdue)


def _is_its_own(step: Step, delivery: int, session: WorkerSession) -> bool:
    """True if this is the current delivery of the step and was handed to this worker."""
    return step.state is DISPATCHED and step.delivery == delivery and step.worker == session.worker


def _overdue_from_ms(state: BrokerState, step: Step | None, step_id: int) -> float:
    """Return the age from which a run of this step is overdue. A run of an unknown step is never overdue."""
    timeout_ms = step.definition.timeout_ms if step is not None else state.ended.get(step_id)
    return float("inf") if timeout_ms is None else timeout_ms + limits.TIMEOUT_GRACE_MS


def _record_held(
    state: BrokerState, step: Step, session: WorkerSession, held_state: str, age_ms: int, now: Now
) -> None:
    """Record that the worker holds this delivery: link the delivery to the session if necessary, and record a start."""
    if step.session is not session:
        _adopt(state, step, session)
    session.asking.discard(step.id)
    if held_state == "running" and step.seen != "running":
        if step.cancel == "superseded":
            step.cancel = None  # the run had started before the cancel arrived
        if step.started_ms is None:
            state.record(step.task, facts.Started(now.wall - age_ms, step.position, step.delivery))
        due = now.mono - age_ms + step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS
        state.timers.set(due, RunLimit(step, step.delivery, due))
    step.seen = held_state


def _adopt(state: BrokerState, step: Step, session: WorkerSession) -> None:
    """Move a delivery of an earlier session, or from before this broker's start, to this session."""
    of_worker = state.recovered.get(session.worker)
    if of_worker is not None and of_worker.pop(step.id, None) is not None and not of_worker:
        del state.recovered[session.worker]
    hand_to(step, session)


def _judge_stuck(state: BrokerState, session: WorkerSession, overdue: int) -> None:
    """Send no further steps to a session whose runs are all overdue, and withdraw the steps that it has not started."""
    session.stuck = overdue >= session.slots
    if session.stuck:
        waiting = [
            s for s in session.deliveries.values() if s.seen in ("queued", "asking") and not s.granted and not s.cancel
        ]
        for step in waiting:
            step.cancel = "superseded"
        if waiting:
            send_cancel(state, session, [(s.id, s.delivery) for s in waiting], "superseded")


# -- adoption ---------------------------------------------------------------------------------------------------------


def ask_soon(state: BrokerState, session: WorkerSession) -> None:
    """Ask the worker about its steps at once, unless it is asked every second already."""
    if not session.is_asked:
        session.is_asked = True
        state.timers.set(0, AdoptionDue(session))


def ask_adoption(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """Ask the worker which of these steps it holds, every second until it has answered for each step."""
    session.is_asked = False
    if session.dead:
        return
    recovered = state.recovered.get(session.worker, {})
    items = [(s.id, s.delivery) for s in recovered.values()]
    items += [(i, session.deliveries[i].delivery) for i in session.asking]
    if session.claims:
        session.claims = {item for item in session.claims if not state.is_foreign(item[0])}
        items = list({*items, *session.claims})
    if not items:
        return
    items.sort()
    _claim(state, session, items)
    session.is_asked = True
    state.timers.set(now.mono + limits.ADOPT_RETRY_MS, AdoptionDue(session))


def _claim(state: BrokerState, session: WorkerSession, items: list[tuple[int, int]]) -> None:
    for start in range(0, len(items), limits.BATCH_ITEMS_MAX):
        adopt = letters.adopt(state.identity, session, items[start : start + limits.BATCH_ITEMS_MAX])
        state.outbox.send(SendMessage(session, adopt))


def on_adopted(state: BrokerState, message: Adopted, now: Now) -> None:
    session = session_of(state, message.worker, message.session, now)
    if session is None:
        return
    for step_id, delivery, held_state, age_ms in message.items:
        session.claims.discard((step_id, delivery))
        step = state.steps.get(step_id)
        if step is None or not _is_its_own(step, delivery, session):
            continue
        if held_state == "unknown":
            # The live process itself states that it will never run this delivery: the step may run elsewhere.
            undeliver(state, step, "not_held", now, avoid=False)
        else:
            _record_held(state, step, session, held_state, age_ms, now)
