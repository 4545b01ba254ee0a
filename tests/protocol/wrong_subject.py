"""A subject with a fault: it runs every step of a batch again when the batch arrives a second time."""

import json
import runpy
from pathlib import Path
from typing import Any

import conformance

SUBJECTS = Path(conformance.__file__).with_name("subjects")
right = runpy.run_path(str(SUBJECTS / "python_session.py"))


class ForgetfulSubject(right["Subject"]):  # type: ignore[misc]
    def __init__(self) -> None:
        self._batches: set[str] = set()

    def handle(self, op: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = super().handle(op)
        if op["op"] != "receive":
            return reply
        message = json.loads(op["frame"].split(" ", 1)[1])
        if message["type"] == "steps" and message["batch_id"] in self._batches:
            for step in message["steps"]:
                run = {"action": "run", "step_id": step["step_id"], "delivery": step["delivery"]}
                reply["actions"].append(run)
        self._batches.add(message.get("batch_id"))
        return reply


if __name__ == "__main__":
    right["serve"](ForgetfulSubject())
