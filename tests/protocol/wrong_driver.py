"""A driver with a fault: it runs every step of a batch again when the batch arrives a second time."""

import json
import sys
from typing import Any

from stepwire.driver import Driver, serve


class ForgetfulDriver(Driver):
    def __init__(self) -> None:
        super().__init__()
        self._batches: set[str] = set()

    def handle(self, op: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = super().handle(op)
        if op["op"] == "start":
            self._batches.clear()
        if op["op"] != "receive":
            return reply
        try:
            message = json.loads(op["frame"].split(" ", 1)[1])
        except (KeyError, IndexError, ValueError):
            return reply
        if message.get("type") == "steps" and message["batch_id"] in self._batches:
            for step in message["steps"]:
                run = {"action": "run", "step_id": step["step_id"], "delivery": step["delivery"]}
                reply["actions"].append(run)
        self._batches.add(message.get("batch_id"))
        return reply


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, ForgetfulDriver())
