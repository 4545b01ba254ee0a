"""The bare loop in Python: level 0 on plain pyzmq and the language's own `json`, as in the guide for SDKs. It answers
each step with its context.

python -m stepwire_broker.bench.bare_echo, with STEPWIRE_STEPS and STEPWIRE_RESULTS
"""

import json
import os
from typing import Any, Final

import zmq

TOPIC: Final = b"steps "


def main() -> None:
    context: zmq.Context[Any] = zmq.Context()
    incoming, outgoing = context.socket(zmq.SUB), context.socket(zmq.PUB)
    incoming.rcvhwm = outgoing.sndhwm = 0
    incoming.subscribe(TOPIC)
    incoming.connect(os.environ["STEPWIRE_STEPS"])
    outgoing.connect(os.environ["STEPWIRE_RESULTS"])
    while True:
        frame = incoming.recv()
        if not frame.startswith(TOPIC):
            continue
        batch = json.loads(frame[len(TOPIC) :])
        results = [
            {"step_id": step["step_id"], "status": "completed", "output": step["task_context"]}
            for step in batch["steps"]
        ]
        answer = {"batch_id": batch["batch_id"], "protocol_version": "1.0", "results": results}
        outgoing.send(b"results " + json.dumps(answer).encode())


if __name__ == "__main__":
    main()
