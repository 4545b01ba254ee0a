"""Payloads too large to stay in memory: fetched for one dispatch or one rule, and removed when they are durable."""

from stepwire_broker.core.definitions.stored_rows import Payloads
from stepwire_broker.core.dispatch.payloads import fetch_payloads
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import COMPLETED, READY, WAITING
from stepwire_broker.core.progress.dependents import decide_again
from stepwire_broker.core.progress.readiness import enqueue
from stepwire_broker.core.state import BrokerState


def on_payloads(state: BrokerState, payloads: Payloads, steps: list[Step], now: Now) -> None:
    for step in steps:
        if not step.task.steps or step.state not in (READY, WAITING) or step.waits:
            continue
        step.payload_context = payloads.contexts.get(step.task.id)
        fetched = {}
        for index in step.definition.depends_on:
            before = step.task.steps[index]
            if before.state is COMPLETED:
                output = before.output if before.output is not None else payloads.outputs.get(before.id)
                if output is not None:
                    fetched[index] = output
        step.fetched_outputs = fetched
        if step.state is READY:
            enqueue(state, step)
        else:
            decide_again(state, step, now)


def fetch_for_rules(state: BrokerState) -> None:
    """Read the payloads that rules compare and that are too large to stay in memory."""
    steps, state.undecided_steps = state.undecided_steps, []
    fetch_payloads(state, steps)


def drop_large_payloads(state: BrokerState) -> None:
    """Remove large payloads from memory: the payloads stayed only until they were durable."""
    keep = []
    for lane, seq, step in state.large:
        if lane.committed < seq:
            keep.append((lane, seq, step))
        elif step.output is not None and step.state is COMPLETED and step.task.steps:
            state.hold_bytes(step.task, -len(step.output))
            step.output = None
    state.large = keep
    keep_contexts = []
    for lane, seq, task in state.large_contexts:
        if lane.committed < seq:
            keep_contexts.append((lane, seq, task))
        elif task.context is not None and task.steps:
            state.hold_bytes(task, -len(task.context))
            task.context = None
    state.large_contexts = keep_contexts
