"""`/v1/steps`: the steps of all tasks."""

from . import core_views, explaining, reading, scanning
from .http import HttpCall
from .replies import Reply


async def show(call: HttpCall) -> Reply:
    step_id = call.number("step_id")
    call.query()
    document = await explaining.step_by_id(call.broker, step_id, call.inspects)
    if document is None:
        raise await explaining.no_step(call.broker, step_id)
    return Reply(200, document)


async def page(call: HttpCall) -> Reply:
    wanted = reading.step_filter(call.query(*reading.STEP_QUERY), call.namespaces)
    live = core_views.live(call.broker)
    if scanning.needs_scan(wanted):
        async with call.open_request.scanning():
            return Reply(200, await call.broker.scan(reading.steps, wanted, live))
    return Reply(200, await call.broker.read(reading.steps, wanted, live))
