"""Payloads that are too large to stay in memory: fetched for the one dispatch or trigger rule that needs them."""

from stepwire_broker.core.commit.decision import FetchPayloads
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import COMPLETED
from stepwire_broker.core.state import BrokerState


def fetch_payloads(state: BrokerState, steps: list[Step]) -> None:
    """Read the contexts and outputs that these steps need and that are not in memory."""
    request = state.next_read()
    tasks: set[int] = set()
    outputs: set[int] = set()
    for step in steps:
        needs_context, missing_outputs = _missing_payloads(step)
        if needs_context:
            tasks.add(step.task.id)
        outputs.update(missing_outputs)
    state.fetching[request] = steps
    state.decision.reads.append(FetchPayloads(request, sorted(tasks), sorted(outputs)))


def forget_fetched(state: BrokerState, steps: list[Step]) -> None:
    """Drop the payloads that were or are being fetched for these steps: they belong to runs that have ended."""
    for step in steps:
        step.payload_context = step.fetched_outputs = None
    for fetching in state.fetching.values():
        fetching[:] = [step for step in fetching if step not in steps]


def _missing_payloads(step: Step) -> tuple[bool, list[int]]:
    """Return whether the task's context is missing, and the ids of the dependencies whose outputs are missing."""
    task = step.task
    dependencies = [task.steps[i] for i in step.definition.depends_on]
    return task.context is None, [s.id for s in dependencies if s.state is COMPLETED and s.output is None]
