"""A level-0 handler: the loop of the protocol's guide, with only pyzmq, and a ledger that is synced before any answer.

    python level0_handler.py LEDGER GATES [HANDLER..]

A step's `handler_config` describes its run: with a `gate` it waits for the file `gates/<gate>`, it takes `work_ms`, and
its first `failures` attempts fail. With HANDLER, every other handler is unknown.
"""

import json
import os
import sys
import time

import zmq

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
gates = sys.argv[2]
known = sys.argv[3:]


def write(event: str, batch_id: str, step: dict, **facts: object) -> None:
    line = {
        "event": event,
        "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "wall": time.time_ns(),
        "step_id": step["step_id"],
        "task_id": step["task_id"],
        "step": step["step_name"],
        "batch_id": batch_id,
        "attempt": step["metadata"]["attempt"],
        "pid": os.getpid(),
        **facts,
    }
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.fdatasync(ledger)


def run(batch_id: str, step: dict) -> dict:
    if known and step["handler_class"] not in known:
        error = {"code": "unknown_handler", "message": "no such handler", "retryable": False}
        return {"step_id": step["step_id"], "status": "error", "error": error}
    seen = {name: output.get("token") for name, output in step["previous_results"].items()}
    write("started", batch_id, step, key=step["metadata"]["idempotency_key"], seen=seen)
    config = step["handler_config"]
    while "gate" in config and not os.path.exists(os.path.join(gates, config["gate"])):
        time.sleep(0.01)
    time.sleep(config.get("work_ms", 0) / 1000)
    if step["metadata"]["attempt"] < config.get("failures", 0):
        write("failed", batch_id, step)
        return {"step_id": step["step_id"], "status": "failed", "error": {"message": "configured to fail"}}
    write("finished", batch_id, step)
    output = {"token": f"{step['step_id']}/{batch_id}/{os.getpid()}"}
    return {"step_id": step["step_id"], "status": "completed", "output": output}


context = zmq.Context()
steps, results = context.socket(zmq.SUB), context.socket(zmq.PUB)
for endpoint in os.environ["STEPWIRE_STEPS"].split(","):  # one of each broker
    steps.connect(endpoint)
for endpoint in os.environ["STEPWIRE_RESULTS"].split(","):
    results.connect(endpoint)
steps.setsockopt(zmq.SUBSCRIBE, b"steps")
while True:
    batch = json.loads(steps.recv().split(b" ", 1)[1])
    done = [run(batch["batch_id"], step) for step in batch["steps"]]
    answer = {"batch_id": batch["batch_id"], "protocol_version": "1.0", "results": done}
    results.send(b"results " + json.dumps(answer).encode())
