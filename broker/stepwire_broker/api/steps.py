"""`/v1/steps`: look at steps across tasks, and say what became of a held one."""

from . import explaining, reading
from .http import HttpCall
from .http_problems import not_found
from .replies import Reply


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
