"""A handler at level 0 with the handlers of the conformance worker. `FAULTS` names each way to write it wrongly.

python -m tests.conform.loop_at_level0 [FAULT]
"""

import json
import os
import sys
from typing import Any, Final

import zmq

FAULTS: Final = (
    "split_everywhere",
    "takes_every_topic",
    "dies_of_malformed",
    "dies_of_a_failure",
    "answers_twice",
    "forgets_the_batch_id",
    "runs_everything",
    "writes_nan",
    "two_frames",
    "no_space",
    "ascii_only",
    "answers_the_first_step",
    "writes_a_type",
    "wrong_topic",
    "subscribes_everything",
    "small_messages",
    "forgets_the_version",
    "never_reconnects",
    "first_broker_only",
    "answers_the_first_broker_only",
)


class Loop:
    """The loop, with at most one fault."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def run(self) -> None:
        context = zmq.Context()
        steps, results = context.socket(zmq.SUB), context.socket(zmq.PUB)
        if self._fault == "small_messages":
            steps.maxmsgsize = 100_000
        if self._fault == "never_reconnects":
            steps.reconnect_ivl = -1
        for endpoint in self._endpoints("STEPWIRE_STEPS"):
            steps.connect(endpoint)
        for endpoint in self._endpoints("STEPWIRE_RESULTS"):
            results.connect(endpoint)
        steps.subscribe(b"" if self._fault == "subscribes_everything" else b"steps")
        while True:
            answer = self._answer(steps.recv())
            if answer is None:
                continue
            for _ in range(2 if self._fault == "answers_twice" else 1):
                self._send(results, answer)

    def _endpoints(self, variable: str) -> list[str]:
        endpoints = os.environ[variable].split(",")
        is_cut = self._fault == "first_broker_only" or (
            self._fault == "answers_the_first_broker_only" and variable == "STEPWIRE_RESULTS"
        )
        return endpoints[:1] if is_cut else endpoints

    def _answer(self, frame: bytes) -> bytes | None:
        topic, _, body = frame.partition(b" ")
        if topic != b"steps" and self._fault != "takes_every_topic":
            return None
        if self._fault == "split_everywhere":
            body = frame.split(b" ")[1]
        try:
            batch = json.loads(body)
            steps = batch["steps"]
            if self._fault == "answers_the_first_step":
                steps = steps[:1]
            answer = {
                "batch_id": "batch_1" if self._fault == "forgets_the_batch_id" else batch["batch_id"],
                "protocol_version": "1.0",
                "results": [self._run(step) for step in steps],
            }
        except (ValueError, KeyError, TypeError):
            if self._fault in ("dies_of_malformed", "takes_every_topic"):
                raise
            return None
        if self._fault == "writes_a_type":
            answer["type"] = "results"
        if self._fault == "forgets_the_version":
            del answer["protocol_version"]
        return json.dumps(answer, ensure_ascii=False).encode(
            *(("ascii", "replace") if self._fault == "ascii_only" else ())
        )

    def _send(self, results: "zmq.Socket[bytes]", answer: bytes) -> None:
        if self._fault == "two_frames":
            results.send_multipart([b"results ", answer])
        elif self._fault == "no_space":
            results.send(b"results" + answer)
        elif self._fault == "wrong_topic":
            results.send(b"result " + answer)
        else:
            results.send(b"results " + answer)

    def _run(self, step: dict[str, Any]) -> dict[str, Any]:
        step_id = step["step_id"]
        handler = HANDLERS.get(step["handler_class"])
        if handler is None and self._fault == "runs_everything":
            handler = echo
        if handler is None:
            error = {"code": "unknown_handler", "message": f"no handler for {step['handler_class']}"}
            return {"step_id": step_id, "status": "error", "error": error}
        try:
            value = step["input"] if "input" in step else step.get("task_context", {})
            output = handler(value)
            json.dumps(output, allow_nan=self._fault == "writes_nan")
            return {"step_id": step_id, "status": "completed", "output": output}
        except Exception as failure:
            if self._fault == "dies_of_a_failure":
                raise SystemExit(1) from None
            error = {"message": repr(failure)}
            if isinstance(failure, PermissionError):
                error |= {"retryable": False}  # type: ignore[dict-item]
            return {"step_id": step_id, "status": "failed", "error": error}


def echo(value: Any) -> Any:
    return value


def fail(value: Any) -> Any:
    raise PermissionError("permanent") if value["kind"] == "permanent" else RuntimeError("an error")


def big(value: Any) -> Any:
    return {"text": "x" * value["bytes"]}


def bad_output(value: Any) -> Any:
    return {"value": float("nan") if value["kind"] == "nan" else object()}


HANDLERS: Final = {
    "conform.echo": echo,
    "conform.fail": fail,
    "conform.big": big,
    "conform.bad_output": bad_output,
}

if __name__ == "__main__":
    Loop(sys.argv[1] if len(sys.argv) > 1 else "").run()
