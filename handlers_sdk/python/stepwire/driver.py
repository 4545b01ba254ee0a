"""`python -m stepwire.driver`: this SDK's session and run slots behind stdin and stdout, for the conformance kit.

Each line on stdin is one op, and each line on stdout its reply. `protocol/conformance/DRIVER.md` has both. The clock is
the time in the ops, and no socket, thread or handler is involved: the kit plays the broker and the handlers.
"""

import base64
import math
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Raw
from stepwire_protocol import codec
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import ErrorDetail, Item, Result, ResultMetadata

from stepwire.actions import Action, CancelRun, Connect, Disconnect, Link, Log, Quit, Rebuild, Run, Send
from stepwire.runners.run_slots import RunSlots
from stepwire.session import Config, Offer, Session

Op = dict[str, Any]
Reply = dict[str, Any]

LINK: Final = {"steps": "ipc://steps", "results": "ipc://results"}  # never connected: the kit carries the frames


class Driver:
    """Passes ops to one session at a time. The op `start` creates it."""

    def __init__(self) -> None:
        self._session: Session
        self._slots: RunSlots[Run]
        self._running: dict[Item, Run] = {}
        self._begun: list[Run] = []  # begun since the last action that was written
        self._apply: dict[str, Callable[[Op, float], None]] = {
            "start": self._start,
            "receive": self._receive,
            "tick": lambda op, now_ms: None,  # the reply has the actions that are due
            "complete": self._complete,
            "fail": self._fail,
            "progress": self._progress,
            "quiet": lambda op, now_ms: self._session.quiet(now_ms),
            "full": lambda op, now_ms: self._session.full(op["is_full"], now_ms),
            "drain": lambda op, now_ms: self._session.drain(now_ms),
            "expel": lambda op, now_ms: self._expel(),
        }

    def handle(self, op: Op) -> Reply:
        """Apply one op. Returns the reply."""
        now_ms = op["now_ms"]
        apply = self._apply.get(op["op"])
        if apply is None:
            return {"error": f"unknown op {op['op']!r}"}
        apply(op, now_ms)
        actions = self._actions(now_ms)
        wake_at_ms = self._session.wake_at()
        return {
            "actions": actions,
            "wake_at_ms": None if wake_at_ms == math.inf else max(now_ms, wake_at_ms),
            "holding": self._session.holding(now_ms),
        }

    # -- the ops ------------------------------------------------------------------------------------------------------

    def _start(self, op: Op, now_ms: float) -> None:
        names = set(Config.__struct_fields__) & set(op) - {"offers", "links"}
        config = Config(
            offers=tuple(msgspec.convert(op["offers"], list[Offer])),
            links=tuple(Link(link["steps"], link["results"]) for link in op.get("links") or [LINK]),
            **{name: op[name] for name in names},
        )
        self._session = Session(config, lambda: 0.5)
        self._slots = RunSlots(config.slots, config.offers)
        self._running.clear()
        self._begun.clear()
        self._session.start(now_ms)

    def _receive(self, op: Op, now_ms: float) -> None:
        frame = base64.b64decode(op["frame_base64"]) if "frame_base64" in op else op["frame"].encode()
        try:
            topic, body = codec.split(frame)
        except InvalidMessage:
            return  # a worker ignores a frame without a topic
        self._session.receive(topic, body, now_ms)

    def _complete(self, op: Op, now_ms: float) -> None:
        metadata = msgspec.convert(op.get("metadata"), ResultMetadata | None)
        self._finish(op, now_ms, status="completed", output=Raw(msgspec.json.encode(op["output"])), metadata=metadata)

    def _fail(self, op: Op, now_ms: float) -> None:
        error = msgspec.convert({name: op[name] for name in ErrorDetail.__struct_fields__ if name in op}, ErrorDetail)
        self._finish(op, now_ms, status=op.get("status", "failed"), error=error)

    def _finish(self, op: Op, now_ms: float, **outcome: Any) -> None:
        """End a run, and begin the one that gets its slot. A run that has not begun cannot end."""
        item = op["step_id"], op["delivery"]
        run = self._running.pop(item, None)
        if run is None:
            return
        following = self._slots.release(run)
        self._session.finished(item, Result(step_id=item[0], delivery=item[1], **outcome), now_ms)
        if following is not None:
            self._begin(following, now_ms)

    def _progress(self, op: Op, now_ms: float) -> None:
        item = op["step_id"], op["delivery"]
        if item in self._running:
            self._session.progressed(item, op["done"], op.get("total"), op.get("note"), now_ms)

    def _expel(self) -> None:
        self._session.expel()

    # -- the actions --------------------------------------------------------------------------------------------------

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

    def _actions(self, now_ms: float) -> list[Reply]:
        """The due actions. A run is written when it begins, which may be long after its hand-over."""
        written = self._take_begun()
        for action in self._session.actions(now_ms):
            if isinstance(action, Run):
                for run in self._slots.add([action]):
                    self._begin(run, now_ms)
                written += self._take_begun()
            elif (line := _as_line(action)) is not None:
                written.append(line)
        return written

    def _take_begun(self) -> list[Reply]:
        begun = [{"action": "run", "step_id": run.item[0], "delivery": run.item[1]} for run in self._begun]
        self._begun.clear()
        return begun


def _as_line(action: Action) -> Reply | None:
    """The action as the kit reads it. None: the kit has no use for this action."""
    match action:
        case Send():
            return {"action": "send", "frame": (action.topic + action.body).decode()}
        case CancelRun():
            step_id, delivery = action.item
            return {"action": "request_stop", "step_id": step_id, "delivery": delivery, "reason": action.reason}
        case Connect():
            return {"action": "connect", **_endpoints(action.link), "server_key": action.server_key}
        case Disconnect():
            return {"action": "disconnect", **_endpoints(action.link)}
        case Rebuild():
            return {"action": "rebuild", **_endpoints(action.link)}
        case Quit():
            return {"action": "quit"}
        case Log():
            return {"action": "log", "level": action.level, "event": action.event}
    return None


def _endpoints(link: Link) -> dict[str, str]:
    return {"steps": link.steps, "results": link.results}


def serve(lines: BinaryIO, replies: BinaryIO, driver: Driver) -> None:
    """Answer each line until the input ends. A fault of the session is the reply to the op that caused it."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    for line in lines:
        try:
            reply = driver.handle(decode(line))
        except Exception as fault:
            reply = {"error": f"{type(fault).__name__}: {fault}"}
        replies.write(encode(reply) + b"\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, Driver())
