"""A step as its worker receives it."""

from typing import Final

from msgspec import UNSET, Raw, UnsetType
from stepwire_protocol.messages import StepMetadata, StepRequest

from stepwire_broker.core.definitions.input_mapping import mapped
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import COMPLETED

REQUEST_OVERHEAD_BYTES: Final = 1_500  # maximum size of a request without its payloads


def request_of(step: Step, now: Now, *, has_lease: bool) -> tuple[StepRequest, int] | None:
    """Return the step's next request and its approximate size; None if a payload must be fetched first."""
    task, definition = step.task, step.definition
    context = task.context if task.context is not None else step.payload_context
    if context is None:
        return None
    previous = _previous_results(step)
    if previous is None:
        return None
    given: Raw | UnsetType = UNSET
    if definition.input is not None:
        given = Raw(mapped(definition.input, context, lambda name: _output_of(step, task.workflow.by_name[name])))
    key = f"{task.uid}/{definition.name}"
    if step.key_number:
        key = f"{key}/{step.key_number}"
    request = StepRequest(
        step_id=step.id,
        task_id=task.id,
        step_name=definition.name,
        handler_class=definition.handler_class,
        handler_config=definition.handler_config,
        task_context=Raw(context),
        previous_results=Raw(previous),
        input=given,
        delivery=step.delivery + 1,
        delivery_mode="at_most_once" if not has_lease else definition.delivery_mode,
        metadata=StepMetadata(
            attempt=step.attempt,
            retry_limit=definition.retry_limit,
            timeout_ms=definition.timeout_ms,
            idempotency_key=key,
            traceparent=f"00-{task.uid}-{(step.id << 10 | (step.delivery + 1) & 1023):016x}-01",
            deadline_ms=None if step.deadline_mono is None else max(0, step.deadline_mono - now.mono),
        ),
    )
    size = len(context) + len(previous) + len(bytes(definition.handler_config)) + REQUEST_OVERHEAD_BYTES // 2
    return request, size + (0 if given is UNSET else len(bytes(given)))


def _previous_results(step: Step) -> bytes | None:
    """Return the outputs of the direct dependencies by name, as JSON; None if one of them must be fetched first."""
    members = []
    for index in step.definition.depends_on:
        dependency = step.task.steps[index]
        if dependency.state is COMPLETED:
            output = _output_of(step, index)
            if output is None:
                return None
            members.append(b'"%s":%s' % (dependency.definition.name.encode(), output))
    return b"{" + b",".join(members) + b"}"


def _output_of(step: Step, index: int) -> bytes | None:
    dependency = step.task.steps[index]
    if dependency.state is not COMPLETED:
        return None
    if dependency.output is not None:
        return dependency.output
    return step.fetched_outputs.get(index) if step.fetched_outputs is not None else None
