"""The faults that are more than an edit: sockets, signals, encoders and the environment of the Python worker."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import stepwire.environment
import stepwire.handler
import stepwire.identity
from stepwire.actions import NEVER, Send
from stepwire.context import Context
from stepwire.identity import ThisProcess
from stepwire.runners.by_kind import Runners
from stepwire.runners.calls import HandlerCall, call_plain
from stepwire.session import session as session_module
from stepwire.session.slots import Slots
from stepwire.worker import socket_thread
from stepwire.worker import worker as worker_module
from stepwire.worker.socket_thread import SocketThread
from stepwire.worker.sockets import WorkerSockets

from .patches import (
    Message,
    Patch,
    both,
    edit,
    error_out,
    frames_out,
    out,
    put,
)

Session = session_module.Session
AS_TIMEOUT: Final = "held.received_ms + timeout_ms"


def after(owner: Any, name: str, then: Any) -> Patch:
    """Call `then(self)` after this method."""

    def plant() -> None:
        original = getattr(owner, name)

        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(self, *args, **kwargs)
            then(self)
            return value

        setattr(owner, name, changed)

    return plant


def options(**options: int) -> Patch:
    """Set options of both sockets, before they are connected."""

    def plant() -> None:
        connect = WorkerSockets.connect

        def changed(self: WorkerSockets, *args: Any) -> None:
            for name, value in options.items():
                for socket in (self.sub, self.pub):
                    setattr(socket, name, value)
            connect(self, *args)

        WorkerSockets.connect = changed  # type: ignore[method-assign]

    return plant


def encodes_badly(kind: str) -> Patch:
    """The JSON of the standard library for one kind of bad output, without a check."""

    def plant() -> None:
        original = stepwire.handler.encode_output
        bad = {"nan": float("nan"), "bigint": 2**53 + 1, "nul": "a\0b", "surrogate": "\ud800"}[kind]

        def encode(value: Any) -> bytes:
            found = value.get("value") if isinstance(value, dict) else None
            if found is not None and (found == bad or (kind == "nan" and found != found)):
                return json.dumps(value).encode()
            return original(value)

        stepwire.handler.encode_output = encode

    return plant


def on_term(action: Any) -> Patch:
    """SIGTERM has this action, whatever the worker sets."""

    def plant() -> None:
        original = signal.signal
        original(signal.SIGTERM, action)
        worker_module.signal.signal = (  # type: ignore[assignment]
            lambda number, handler: None if number == signal.SIGTERM else original(number, handler)
        )

    return plant


def merged() -> Patch:
    """Two results messages go as one, which then names the first one's batch only."""
    kept: list[Message] = []

    def change(topic: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
        message = json.loads(body)
        if message["type"] != "results":
            yield topic, body
        elif not kept or kept[0]["batch_id"] == message["batch_id"]:
            kept[:] = [message]
        else:
            first = kept.pop()
            first["results"] += message["results"]
            yield topic, json.dumps(first).encode()

    return frames_out(change)


def topics(old: bytes, new: bytes) -> Patch:
    def change(topic: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield topic.replace(old, new), body

    return frames_out(change)


def two_frames() -> Patch:
    def plant() -> None:
        def send(self: SocketThread, action: Any) -> None:
            if isinstance(action, Send):
                self._sockets.pub.send_multipart([action.topic, action.body])
            else:
                perform(self, action)

        perform = SocketThread._perform
        SocketThread._perform = send  # type: ignore[method-assign]

    return plant


def handlers_on_the_socket_thread() -> Patch:
    def plant() -> None:
        original = SocketThread._run

        def run(self: SocketThread, action: Any) -> None:
            handler = self._handlers[action.offer]
            if handler.kind != "thread":
                original(self, action)
                return
            now = stepwire.identity.now_ms
            context = Context(action.step, started_ms=0.0, timeout_at_ms=NEVER, clock=now, report=self.report_progress)
            call = HandlerCall(action, handler, context)
            call.begin(now())
            self._mailbox.put_outcome(action.item, call_plain(call))

        SocketThread._run = run  # type: ignore[method-assign]

    return plant


def one_frame_for_each_wake() -> Patch:
    return both(put(socket_thread, "RECEIVE_MAX", 1), after(SocketThread, "_wait", lambda thread: time.sleep(0.6)))


def run_slots(number: int) -> Patch:
    return both(
        edit(Slots, "__init__", "self.slots = slots", f"self.slots = {number}"),
        edit(Runners, "__init__", "kinds = ", f"slots = {number}; kinds = "),
    )


def without(*names: str) -> Any:
    def change(step: Message) -> None:
        for name in names:
            step.pop(name, None)
            step["metadata"].pop(name, None)

    return change


def process(**facts: Any) -> Patch:
    def plant() -> None:
        original = stepwire.identity.this_process

        def this_process() -> ThisProcess:
            return original()._replace(**facts)

        stepwire.identity.this_process = this_process

    return plant


def error_without(name: str) -> Patch:
    return error_out(lambda result: result["error"].pop(name, None))


def strict(message: Message) -> Message | None:
    text = json.dumps(message)
    return None if '"later"' in text or '"priority"' in text else message


def environ(**values: str) -> Patch:
    def plant() -> None:
        os.environ.update(values)

    return plant


def first_endpoint_only() -> Patch:
    def plant() -> None:
        for name in ("STEPWIRE_STEPS", "STEPWIRE_RESULTS"):
            os.environ[name] = os.environ[name].partition(",")[0]

    return plant


def integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: integers(inner) for name, inner in value.items()}
    return [integers(inner) for inner in value] if isinstance(value, list) else value


def ends_at_malformed(body: bytes) -> bytes:
    try:
        json.loads(body)
    except ValueError:
        os._exit(1)
    return body


def member(kind: str, **members: Any) -> Patch:
    return out(kind, lambda message: message | members)


def without_member(kind: str, *names: str) -> Patch:
    return out(kind, lambda message: {name: value for name, value in message.items() if name not in names})


def nothing(*_: Any) -> None:
    """Does nothing, in place of a method."""
