"""Erasures: `POST /v1/tasks/{task_id}/erase`, and the search that ends a run of them."""

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.intake.erasure import ErasedTask
from stepwire_broker.operator_commands import ERASE_TASK
from stepwire_broker.security_key import SecurityKeyError

from . import audit, http_problems
from .commands import BODY_BYTES_MAX
from .http import HttpCall
from .http_problems import HttpProblem
from .replies import Reply, encode

KEY_PROBLEM = "security_key"


async def erase(call: HttpCall) -> Reply:
    """Erase a task. The answer is sent when the erasure is also recorded outside the database."""
    call.query()
    task_id = call.number("task_id")
    body, limits = await call.body(BODY_BYTES_MAX), call.broker.settings.limits
    make = ERASE_TASK.read(body, task_id, limits, call.operator, call.via)
    try:
        answer = await call.broker.erasures.erase(task_id, lambda: call.broker.ask(make))
    except SecurityKeyError as error:
        raise HttpProblem(503, KEY_PROBLEM, str(error)) from None
    if isinstance(answer, CommandRefused):
        http_problems.raise_refused(answer)
    assert isinstance(answer, ErasedTask), answer
    return Reply(200, encode(ERASE_TASK.document(answer)))


async def finish(call: HttpCall) -> Reply:
    """Search the database file for what was erased, and rewrite the file if anything is left."""
    call.query()
    await audit.record(call, "finish_erasures")
    try:
        finished = await call.broker.erasures.finish()
    except SecurityKeyError as error:
        raise HttpProblem(503, KEY_PROBLEM, str(error)) from None
    return Reply(200, encode(finished))
