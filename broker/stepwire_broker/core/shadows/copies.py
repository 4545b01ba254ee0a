"""Shadows: a copy of a step goes to another executor or to other workers, and the two results are compared.

A shadow is not a step: it is not stored, and it changes no state. A shadow goes only to handlers that declare
themselves `shadow_safe`, and only into slots that no ready step needs. It is sent once, after the commit that
dispatches the real step. A lost shadow is counted and not resent.
"""

from typing import Final

import msgspec
from msgspec import structs
from stepwire_protocol import limits
from stepwire_protocol.messages import Result, StepRequest

from stepwire_broker.core import letters, takers
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import COMPLETED
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.reading import sealed_results
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import ShadowEnds

from .shadow import OutputDifference, Shadow, WantedCopy, difference

UNDER_WAY_MAX: Final = 1_000
COMPARED_BYTES_MAX: Final = 64 * 1024
TALLIES_MAX: Final = 1_000


def handed(state: BrokerState, step: Step, request: StepRequest) -> None:
    """Count a dispatched step on its side of the canary. At the first delivery, note whether a copy is wanted."""
    step_route = state.router.step_route(step.task.workflow, step.definition.index)
    if step_route.is_plain:
        return
    state.count_canary(step, step_route)
    if step_route.destination.shadow is not None and request.delivery == 1:
        target = state.router.shadow(step)
        if target is not None:
            assert step_route.destination.rule is not None
            state.shadows.wanted.append(WantedCopy(step, request, target, step_route.destination.rule.match))


def send_wanted(state: BrokerState, now: Now) -> None:
    """Send the wanted copies, after every real step that could be dispatched."""
    wanted, state.shadows.wanted = state.shadows.wanted, []
    for one in wanted:
        _send(state, one, now)


def _send(state: BrokerState, wanted: WantedCopy, now: Now) -> None:
    shadows, step = state.shadows, wanted.step
    handler_class = step.definition.handler_class
    if (wanted.match, handler_class) not in shadows.tallies and len(shadows.tallies) >= TALLIES_MAX:
        return
    tally = shadows.tally(wanted.match, handler_class, wanted.target.executor)
    namespace = step.task.namespace if state.router.splits_namespaces else None
    sessions = [
        session
        for session in takers.takers(state, Route(wanted.target, handler_class, namespace=namespace))
        if session.is_shadow_safe(handler_class) and session.slots_open
    ]
    if not sessions or len(shadows.by_id) >= UNDER_WAY_MAX:
        tally.dropped += 1
        return
    session = max(sessions, key=lambda s: s.rank)
    is_sealed = step.task.workflow.is_sealed
    shadow = Shadow(shadows.next_id(), step.id, step.task.id, handler_class, session.worker, tally, is_sealed)
    shadows.by_id[shadow.id] = shadows.of_step[step.id] = shadow
    session.offer(session.free - 1, session.slots_open - 1)  # until the worker next reports its credit
    request = wanted.request
    copy = structs.replace(
        request,
        step_id=shadow.id,
        delivery=1,
        delivery_mode="at_least_once",
        metadata=structs.replace(
            request.metadata, shadow=True, idempotency_key=f"{request.metadata.idempotency_key}/shadow"
        ),
    )
    steps = letters.steps(state.identity, session, state.next_batch_id(), [copy])
    state.outbox.send(SendMessage(session, steps, (step.task,)))
    state.timers.set(now.mono + step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS, ShadowEnds(shadow))


def on_result(state: BrokerState, result: Result, worker: str, now: Now) -> None:
    """Handle the result of a copy: the result is acked like any other, and changes no state."""
    shadow = state.shadows.by_id.get(result.step_id)
    if shadow is None or shadow.copied is not None or shadow.worker != worker:
        state.counters.late_results += 1
        return
    if shadow.is_sealed:
        result = sealed_results.checked(result, at_most_once=False)
    output = bytes(result.output) if result.status == "completed" else None
    if output is None:
        message = "the handler gave no reason" if result.error is None else result.error.message
        output = message[:200].encode()
    shadow.copied = (result.status, output)
    _compare(state, shadow, now)


def real_ended(state: BrokerState, step: Step, now: Now) -> None:
    shadow = state.shadows.of_step.get(step.id)
    if shadow is not None and shadow.real is None:
        shadow.real = (str(step.state), step.output if step.state is COMPLETED else None)
        _compare(state, shadow, now)


def forget(state: BrokerState, task: Task) -> None:
    """Remove the copies of a task that is erased, and the texts of earlier comparisons. Late results count nothing."""
    shadows = state.shadows
    shadows.wanted = [wanted for wanted in shadows.wanted if wanted.step.task is not task]
    for step in task.steps:
        shadow = shadows.of_step.get(step.id)
        if shadow is not None:
            shadow.tally.not_compared += 1
            shadow.copied = shadow.real = None
            _end(state, shadow)
    for tally in shadows.tallies.values():
        for noted in [each for each in tally.lately if each.task_id == task.id]:
            tally.lately.remove(noted)


def expire(state: BrokerState, shadow: Shadow, now: Now) -> None:
    """End a copy whose time is over, even if the real step has not ended yet."""
    if not shadow.over:
        if shadow.copied is None:
            shadow.tally.lost += 1
        else:
            shadow.tally.not_compared += 1
        _end(state, shadow)


def _compare(state: BrokerState, shadow: Shadow, now: Now) -> None:
    if shadow.copied is None or shadow.real is None:
        return
    tally = shadow.tally
    status, copied = shadow.copied
    real_status, real = shadow.real
    assert copied is not None
    if real_status != "completed" or real is None:
        tally.not_compared += 1
    elif status != "completed":
        tally.failed += 1
        _note(shadow, f"failed: {copied.decode()}", now)
    elif copied == real:
        tally.equal += 1
    elif len(copied) > COMPARED_BYTES_MAX or len(real) > COMPARED_BYTES_MAX:
        tally.not_compared += 1
    else:
        where = difference(msgspec.json.decode(real), msgspec.json.decode(copied))
        if where is None:
            tally.equal += 1
        else:
            tally.differs += 1
            _note(shadow, f"differs at {where}", now)
    _end(state, shadow)


def _note(shadow: Shadow, what: str, now: Now) -> None:
    shadow.tally.lately.append(OutputDifference(shadow.task_id, shadow.step_id, what, now.wall))


def _end(state: BrokerState, shadow: Shadow) -> None:
    shadow.over = True
    state.shadows.by_id.pop(shadow.id, None)
    if state.shadows.of_step.get(shadow.step_id) is shadow:
        del state.shadows.of_step[shadow.step_id]
