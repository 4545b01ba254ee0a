"""Level 0 in plain Python: price lists and invoices. Needs pyzmq, and no part of Stepwire."""

import json
import os
import time
from typing import Any

import zmq

LANGUAGE = "python"
LEDGER = f"ledgers/level0-{LANGUAGE}-{os.getpid()}.jsonl"


def price(order: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    return {"cents": sum(item["cents"] * item["count"] for item in order["items"])}


def invoice(order: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    cents = results["charge"]["cents"]
    return {"invoice": f"{order['customer']}: {cents // 100}.{cents % 100:02} EUR"}


HANDLERS = {"lists.price": price, "lists.invoice": invoice}


def run(step: dict[str, Any]) -> dict[str, Any]:
    result = {"step_id": step["step_id"]}
    if step["handler_class"] not in HANDLERS:
        error = {"code": "unknown_handler", "message": f"{LANGUAGE} has no {step['handler_class']}", "retryable": False}
        return result | {"status": "error", "error": error}
    write("started", step)
    try:
        output = HANDLERS[step["handler_class"]](step["task_context"], step["previous_results"])
    except Exception as error:
        write("failed", step)
        return result | {"status": "failed", "error": {"message": f"{type(error).__name__}: {error}"}}
    write("finished", step)
    return result | {"status": "completed", "output": output | {"language": LANGUAGE}}


def write(event: str, step: dict[str, Any]) -> None:
    facts = {name: step[name] for name in ("task_id", "step_id")} | {"step": step["step_name"]}
    facts |= {"at_ns": time.time_ns(), "event": event, "attempt": step["metadata"]["attempt"]}
    with open(LEDGER, "a") as ledger:
        ledger.write(json.dumps(facts | {"language": LANGUAGE, "pid": os.getpid()}) + "\n")


def main() -> None:
    context: zmq.Context[Any] = zmq.Context()
    steps, results = context.socket(zmq.SUB), context.socket(zmq.PUB)
    steps.subscribe("steps")
    steps.connect(os.environ["STEPWIRE_STEPS"])
    results.connect(os.environ["STEPWIRE_RESULTS"])
    while True:
        batch = json.loads(steps.recv().split(b" ", 1)[1])
        answer = {"batch_id": batch["batch_id"], "protocol_version": "1.0", "results": [run(s) for s in batch["steps"]]}
        results.send_string("results " + json.dumps(answer))


if __name__ == "__main__":
    main()
