"""`/v1/steps`: the steps of all tasks."""

from . import core_views, explaining, reading
from .http import HttpCall
from .http_problems import not_found
from .replies import Reply


async def show(call: HttpCall) -> Reply:
    step_id = call.number("step_id")
    call.query()
    document = await explaining.step_by_id(call.broker, step_id)
    if document is None:
        raise not_found(f"step {step_id}", "GET /v1/tasks/{task_id} lists a task's steps with their ids")
    return Reply(200, document)


async def page(call: HttpCall) -> Reply:
    wanted = reading.step_filter(call.query(*reading.STEP_QUERY))
    return Reply(200, await call.broker.read(reading.steps, wanted, core_views.live(call.broker)))
