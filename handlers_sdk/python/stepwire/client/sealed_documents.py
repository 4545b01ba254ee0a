"""Documents of tasks with sealed payloads, and their plaintext."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from stepwire_protocol import sealed_payloads
from stepwire_protocol.sealed_payloads import SealedTask

from stepwire.sealing import SealKeys

NAMESPACE_DEFAULT: Final = "default"

_decode: Final = msgspec.json.Decoder().decode


def task_of(task: Mapping[str, Any]) -> SealedTask:
    """The task of a submission, or of a document, to which its payloads are bound."""
    return SealedTask(task.get("namespace") or NAMESPACE_DEFAULT, task["workflow"], task.get("idempotency_key") or "")


def unsealed(keys: SealKeys, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a task with plaintext in the place of its sealed payloads. Raises NotUnsealed."""
    task = task_of(document)

    def output(step: str, value: Any) -> Any:
        return _decode(keys.unseal("output", task, step, value)) if sealed_payloads.is_sealed(value) else value

    opened = dict(document)
    if sealed_payloads.is_sealed(document.get("context")):
        opened["context"] = _decode(keys.unseal("context", task, None, document["context"]))
    if isinstance(document.get("result"), dict):
        # Outputs of the last steps by name, or the clear members that the workflow's `output` names.
        opened["result"] = {name: output(name, value) for name, value in document["result"].items()}
    opened["steps"] = [_step(keys, task, step, output(step["name"], step.get("output"))) for step in document["steps"]]
    return opened


def _step(keys: SealKeys, task: SealedTask, step: Mapping[str, Any], output: Any) -> dict[str, Any]:
    opened = {**step, "output": output}
    error = step.get("error")
    if error and sealed_payloads.is_sealed_error(error.get("message", ""), error.get("backtrace")):
        text = _decode(keys.unseal("error", task, step["name"], _decode(error["backtrace"][0])))
        opened["error"] = {**error, **text}
        if step.get("reason") and step["reason"].get("message"):
            reason = step["reason"]
            message = reason["message"].replace(sealed_payloads.ERROR_MESSAGE, text["message"])
            opened["reason"] = {**reason, "message": message}
    return opened
