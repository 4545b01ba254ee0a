"""The routes of operators' commands: one handler for every row of `operator_commands.COMMANDS`."""

import re
from typing import Any, Final

from stepwire_broker.operator_commands import OperatorCommand

from . import executors
from .http import Handler, HttpCall
from .replies import Reply, encode

BODY_BYTES_MAX: Final = 64 * 1024


def handler(command: "OperatorCommand[Any, Any, Any]") -> Handler:
    async def handle(call: HttpCall) -> Reply:
        call.query()
        limits = call.broker.settings.limits
        body = await call.body(limits.payload_bytes if command.has_payload else BODY_BYTES_MAX)
        make = command.read(body, _target(call, command.path), limits, call.operator, call.via)
        answer = await call.ask(make, command.answer)
        return Reply(200, encode(command.document(answer)))

    return handle


def _target(call: HttpCall, path: str) -> Any:
    """The parameter of the path: a number, the key of an executor, or a name that the core checks."""
    match re.findall(r"{(\w+)}", path):
        case [("task_id" | "step_id" | "lane") as name]:
            return call.number(name)
        case ["executor"]:
            return executors.named(call).executor
        case [name]:
            return call.scope["path_params"][name]
        case _:
            return None
