"""A broker with a sealed workflow, and handlers that do not seal: nothing readable is stored."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.embedded import TaskView
from stepwire_broker.embedded.errors import CommandError
from stepwire_broker.executors.contract import ExecutionResult, StepReady, completed, failed

from .running import ScriptedExecutor, running

CANARY = "canary-9b3e7a"
PAYLOAD = {"$sealed": "v1", "kid": "k", "nonce": "A" * 16, "data": "A" * 24, "clear": {}}
CONTEXT = {**PAYLOAD, "task": {"namespace": "default", "workflow": "w", "key": "a"}}


def ran(directory: Path, result: ExecutionResult, context: Any = CONTEXT, payloads: str = "sealed") -> TaskView:
    async def answer(step: StepReady) -> ExecutionResult:
        return result

    async def it() -> TaskView:
        async with running(directory, ScriptedExecutor(answer)) as broker:
            step = {"name": "s", "handler_class": "H", "retry_limit": 0}
            await broker.apply({"name": "w", "payloads": payloads, "steps": [step]})
            task = await broker.submit("w", context, key="a")
            return await task.wait(60)

    return asyncio.run(it())


def stored(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("state.db*") if path.is_file())


def test_an_unsealed_output_is_not_stored_and_its_step_fails(tmp_path: Path) -> None:
    view = ran(tmp_path, completed({"card": CANARY}))
    assert (view.state, view.steps[0].error["code"]) == ("failed", "output_not_sealed")
    assert CANARY.encode() not in stored(tmp_path)


def test_the_text_of_an_unsealed_error_is_not_stored(tmp_path: Path) -> None:
    view = ran(tmp_path, failed(f"declined: {CANARY}", code="Declined"))
    assert view.steps[0].error["code"] == "Declined"
    assert CANARY.encode() not in stored(tmp_path)


def test_a_sealed_output_completes_the_step(tmp_path: Path) -> None:
    assert ran(tmp_path, completed(PAYLOAD)).result == {"s": PAYLOAD}


@pytest.mark.parametrize(
    ("context", "payloads", "why"),
    [({"card": CANARY}, "sealed", "this context is not: seal it"), (CONTEXT, "open", "needs `payloads: sealed`")],
)
def test_a_context_that_does_not_fit_its_workflow_is_refused(
    tmp_path: Path, context: Any, payloads: str, why: str
) -> None:
    with pytest.raises(CommandError, match=why):
        ran(tmp_path, completed(None), context, payloads)
    assert CANARY.encode() not in stored(tmp_path)
