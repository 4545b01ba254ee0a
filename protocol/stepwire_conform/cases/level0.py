"""Level 0: a loop that receives on `steps`, runs, and answers on `results `."""

from typing import Any, Final

from stepwire_conform.case import Failed
from stepwire_conform.frames import Message, encoded
from stepwire_conform.stage import ENOUGH_S, Stage

CONFORM_HANDLERS: Final = ("conform.echo", "conform.fail", "conform.big", "conform.bad_output")
UNKNOWN: Final = "nobody.offers.this"


def batch_of(stage: Stage, *steps: dict[str, Any], batch_id: str | None = None, **members: Any) -> str:
    """Send a batch to the handler. Returns its id."""
    batch_id = batch_id or stage.broker.next_batch()
    message = {"to": "7.1", "batch_id": batch_id, "protocol_version": "1.0", "steps": list(steps), **members}
    stage.send_body(encoded(message), topic=b"steps ")
    return batch_id


def step_of(stage: Stage, handler: str, context: Any = None, **members: Any) -> dict[str, Any]:
    step = stage.step(handler, context, **members)
    del step["delivery"], step["delivery_mode"]
    return step


def answer_to(stage: Stage, batch_id: str, within_s: float = ENOUGH_S) -> Message:
    return stage.expect("results", batch_id=batch_id, within_s=within_s)


def run(stage: Stage, handler: str, context: Any = None, **members: Any) -> dict[str, Any]:
    """Send one step, and return its result."""
    step = step_of(stage, handler, context, **members)
    answer = answer_to(stage, batch_of(stage, step))
    found: list[dict[str, Any]] = [r for r in answer.get("results", []) if r["step_id"] == step["step_id"]]
    if len(found) != 1:
        raise Failed(f"the answer to step {step['step_id']} is {answer!r}")
    return found[0]


def offers(stage: Stage, handler: str) -> bool:
    """Whether the program knows this handler of the conformance worker."""
    try:
        result = run(stage, handler, {"kind": "error", "bytes": 1})
    except Failed:
        return False
    return (result.get("error") or {}).get("code") != "unknown_handler"


def echoed(stage: Stage, value: Any) -> None:
    result = run(stage, "conform.echo", value)
    if result["status"] != "completed" or result.get("output") != value:
        raise Failed(f"conform.echo of {str(value)[:200]!r} gave {str(result)[:300]}")


def answers(stage: Stage) -> None:
    """The loop still answers, whatever the handlers are."""
    run(stage, "conform.echo" if stage.setting.has("conform.echo") else UNKNOWN, {"a": 1})
