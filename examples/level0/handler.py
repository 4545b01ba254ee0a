"""Level 0 in plain Python: needs pyzmq, and no part of Stepwire."""

import json
import os

import zmq


def sum_of(step):
    field = step["handler_config"]["of"]
    return {"sum": sum(item[field] * item["count"] for item in step["task_context"]["items"])}


def total(step):
    goods, weight, volume = (step["previous_results"][name]["sum"] for name in ("goods", "weight", "volume"))
    postage = weight * step["handler_config"]["cents_per_kg"] // 1000
    parcels = -(-volume // step["handler_config"]["millilitres_per_parcel"])  # rounded up
    return {"cents": goods + postage, "parcels": parcels}


HANDLERS = {"quote.sum": sum_of, "quote.total": total}


def run(step):
    """Always return a result: without one, the broker waits until the step's timeout has expired."""
    result = {"step_id": step["step_id"]}
    try:
        if step["handler_class"] not in HANDLERS:
            error = {"code": "unknown_handler", "message": f"python has no {step['handler_class']}", "retryable": False}
            return result | {"status": "error", "error": error}
        output = HANDLERS[step["handler_class"]](step) | {"language": "python"}
        json.dumps(output, allow_nan=False)  # an output that is not JSON fails the step, and must not end the loop
        return result | {"status": "completed", "output": output}
    except Exception as error:
        is_in_the_order = isinstance(error, (LookupError, TypeError))  # so a retry cannot help
        message = f"{type(error).__name__}: {error}"
        return result | {"status": "failed", "error": {"message": message, "retryable": not is_in_the_order}}


steps, results = zmq.Context.instance().socket(zmq.SUB), zmq.Context.instance().socket(zmq.PUB)
steps.subscribe("steps")
steps.connect(os.environ.get("STEPWIRE_STEPS", "ipc://.stepwire/steps.sock"))
results.connect(os.environ.get("STEPWIRE_RESULTS", "ipc://.stepwire/results.sock"))
while True:
    topic, _, body = steps.recv().partition(b" ")
    if topic != b"steps":  # some bindings also deliver what was not subscribed, such as a broker's greeting
        continue
    batch = json.loads(body)
    answer = {"batch_id": batch["batch_id"], "protocol_version": "1.0", "results": [run(s) for s in batch["steps"]]}
    results.send_string("results " + json.dumps(answer))
