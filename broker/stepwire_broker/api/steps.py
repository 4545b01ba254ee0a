"""`/v1/steps`: look at steps across tasks, and say what became of a held one."""

from stepwire_broker.core.model.answers import Done
from stepwire_broker.stages import requests

from . import explaining, reading
from .documents import Changed
from .http import HttpCall, Reply, encode
from .http_problems import not_found


async def show(call: HttpCall) -> Reply:
    step_id = call.number("step_id")
    call.query()
    document = await explaining.step_by_id(call.broker, step_id)
    if document is None:
        raise not_found(f"step {step_id}", "a task's document lists its steps with their ids")
    return Reply(200, document)


async def page(call: HttpCall) -> Reply:
    wanted = reading.step_filter(call.query(*reading.STEP_QUERY))
    return Reply(200, await call.broker.read(reading.steps, wanted))


async def resolve(call: HttpCall) -> Reply:
    limits = call.broker.settings.limits
    body = await call.body(limits.payload_bytes)
    done = await call.ask(requests.resolve(body, call.number("step_id"), limits), Done)
    return Reply(200, encode(Changed(done.task_id, done.state, done.attention)))
