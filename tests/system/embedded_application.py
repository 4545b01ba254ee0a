"""An application with an embedded broker, which may be killed at any moment and is started again.

    python -m tests.system.embedded_application DIRECTORY TASKS

Each start applies the workflow, submits the same keys, waits for every task, and resolves held steps as an operator
would. The application records its submissions, commands and answers in a ledger; its handlers write their own.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import stepwire.worker.socket_thread
from stepwire import Worker
from stepwire_broker import Broker, TaskHeld

from .handlers import LEDGERS, Handlers
from .ledger import Ledger
from .recorded_session import RecordedSession

NAME: Final = "embedded"
WORKFLOW: Final = {
    "name": "order",
    "steps": [
        {"name": "reserve", "handler_class": "system.work", "handler_config": {"work_ms": 20}},
        {
            "name": "charge",
            "handler_class": "system.work",
            "handler_config": {"work_ms": 150},
            "depends_on": ["reserve"],
            "delivery_mode": "at_most_once",
        },
        {"name": "ship", "handler_class": "system.quick", "depends_on": ["charge"]},
    ],
}
SETTINGS: Final = {"bus": {"lease_ms": 1_000, "heartbeat_ms": 200}}


async def main(directory: Path, count: int) -> None:
    RecordedSession.ledger = Ledger(directory / LEDGERS, f"wire-{NAME}-{os.getpid()}", is_synced=False)
    stepwire.worker.socket_thread.Session = RecordedSession  # type: ignore[attr-defined]
    worker = Worker()
    Handlers(directory, NAME).add_to(worker)
    ledger = Ledger(directory / LEDGERS, f"client-{os.getpid()}-{NAME}")
    async with Broker.open(directory / "state.db", handlers=worker, settings=SETTINGS) as broker:
        await broker.apply(WORKFLOW)
        tasks = []
        for key in (f"k{number}" for number in range(count)):
            ledger.write("asked", key=key, workflow="order")
            task = await broker.submit("order", {"of": key}, key=key)
            ledger.write("acknowledged", key=key, workflow="order", task_id=task.id, created=task.created)
            tasks.append(task)
        print("submitted", flush=True)
        for task in tasks:
            try:
                result = await task.result()
            except TaskHeld as held:
                for step in held.task.steps:
                    if step.state == "held":
                        ledger.write("ordered", order="resolve", step_id=step.step_id)
                        token = {"token": f"{step.step_id}/0/{os.getpid()}"}
                        await broker.resolve(step.step_id, "completed", output=token, reason="the bank confirmed it")
                result = await task.result()
            assert "ship" in result, result
            ledger.write("observed", task_id=task.id, state="completed")
        print("completed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
