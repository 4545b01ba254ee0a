"""The Python SDK as a subject: `stepwire.session.Session` behind the lines of the conformance kit.

An example for other languages: read an op, pass it to the session, write its actions. README.md describes the lines.
"""

import json
import math
import sys
from typing import Any

import msgspec
from msgspec import Raw
from stepwire.actions import Action, CancelRun, Link, Quit, Run, Send
from stepwire.runners.run_slots import RunSlots
from stepwire.session import Config, Offer, Session
from stepwire_protocol import codec
from stepwire_protocol.messages import ErrorDetail, Item, Result


class Subject:
    """Passes ops to one session, which the op `start` creates."""

    _session: Session

    def handle(self, op: dict[str, Any]) -> dict[str, Any]:
        """Pass one op to the session. Returns the reply."""
        now_ms = op["now_ms"]
        match op["op"]:
            case "start":
                self._start(op)
            case "receive":
                topic, body = codec.split(op["frame"].encode())
                self._session.receive(topic, body, now_ms)
            case "tick":
                pass  # `actions`, below, returns all actions that are due
            case "complete":
                output = Raw(msgspec.json.encode(op["output"]))
                self._finish(op, status="completed", output=output)
            case "fail":
                self._finish(op, status="failed", error=ErrorDetail(message=op["message"]))
            case "drain":
                self._session.drain(now_ms)
            case unknown:
                return {"error": f"unknown op {unknown!r}"}
        lines = self._lines(now_ms)
        wake_at_ms = self._session.wake_at()
        return {
            "actions": lines,
            "wake_at_ms": None if wake_at_ms == math.inf else max(now_ms, wake_at_ms),
        }

    def _start(self, op: dict[str, Any]) -> None:
        config = Config(
            worker=op["worker"],
            offers=tuple(Offer(name) for name in op["handlers"]),
            slots=op["slots"],
            prefetch=op["prefetch"],
            links=(Link("ipc://steps", "ipc://results"),),  # never connected: the kit carries the frames
            heartbeat_ms=op["heartbeat_ms"],
        )
        self._session = Session(config, lambda: 0.5)
        self._slots: RunSlots[Run] = RunSlots(config.slots, config.offers)
        self._running: dict[Item, Run] = {}
        self._begun: list[Run] = []
        self._session.start(op["now_ms"])

    def _finish(self, op: dict[str, Any], **outcome: Any) -> None:
        item = op["step_id"], op["delivery"]
        following = self._slots.release(self._running.pop(item))
        self._session.finished(item, Result(step_id=item[0], delivery=item[1], **outcome), op["now_ms"])
        if following is not None:
            self._begin(following, op["now_ms"])

    def _begin(self, run: Run, now_ms: float) -> None:
        """Do as a runner does: begin a run that has a slot, or give its step back and begin the next one."""
        following: Run | None = run
        while following is not None:
            if following.begin(now_ms):
                self._running[following.item] = following
                self._begun.append(following)
                return
            ended, following = following, self._slots.release(following)
            self._session.give_back(ended.item, now_ms)

    def _lines(self, now_ms: float) -> list[dict[str, Any]]:
        """The actions in the form of the kit, for which a run starts when it begins, not when it is handed over."""
        lines = []
        for action in self._session.actions(now_ms):
            if isinstance(action, Run):
                for run in self._slots.add([action]):
                    self._begin(run, now_ms)
            lines += [_as_line(run) for run in self._begun]
            self._begun.clear()
            if not isinstance(action, Run):
                lines.append(_as_line(action))
        lines += [_as_line(run) for run in self._begun]
        self._begun.clear()
        return [line for line in lines if line is not None]


def _as_line(action: Action) -> dict[str, Any] | None:
    """The action in the form of the kit; None for actions that the kit does not use, such as logging."""
    match action:
        case Send():
            return {"action": "send", "frame": (action.topic + action.body).decode()}
        case Run():
            step_id, delivery = action.item
            return {"action": "run", "step_id": step_id, "delivery": delivery}
        case CancelRun():
            step_id, delivery = action.item
            return {"action": "request_stop", "step_id": step_id, "delivery": delivery, "reason": action.reason}
        case Quit():
            return {"action": "quit"}
    return None


def serve(subject: Subject) -> None:
    """Answer ops until stdin ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(subject.handle(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(Subject())
