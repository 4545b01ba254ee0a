"""The tools with which a fault is planted into the Python worker: edits of its source, and changes of its frames."""

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from stepwire.actions import Send
from stepwire.session import Session
from stepwire.worker.socket_thread import SocketThread

Message = dict[str, Any]
Patch = Callable[[], None]


def edit(owner: Any, name: str, old: str, new: str) -> Patch:
    """Replace a piece of a function's source. The piece must be there, so a fault cannot become outdated unseen."""

    def plant() -> None:
        function = inspect.unwrap(getattr(owner, name))
        source = textwrap.dedent(inspect.getsource(function))
        assert old in source, f"{owner.__name__}.{name} no longer contains {old!r}"
        names: dict[str, Any] = {}
        exec(source.replace(old, new), function.__globals__, names)  # the source is this repository's own
        setattr(owner, name, names[name])

    return plant


def put(owner: Any, name: str, value: Any) -> Patch:
    """Replace an attribute."""

    def plant() -> None:
        assert hasattr(owner, name), f"{owner} has no {name}"
        setattr(owner, name, value)

    return plant


def both(*patches: Patch) -> Patch:
    def plant() -> None:
        for patch in patches:
            patch()

    return plant


def frames_out(change: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]) -> Patch:
    """Change each frame that the worker sends."""

    def plant() -> None:
        perform = SocketThread._perform

        def changed(self: SocketThread, action: Any) -> None:
            if not isinstance(action, Send):
                perform(self, action)
                return
            for topic, body in change(action.topic, action.body):
                perform(self, Send(topic, body))

        SocketThread._perform = changed  # type: ignore[method-assign]

    return plant


def out(kind: str, change: Callable[[Message], Message | None]) -> Patch:
    """Change each message of a kind that the worker sends. None: it is not sent."""

    def rewritten(topic: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
        message = json.loads(body)
        if message["type"] != kind:
            yield topic, body
            return
        changed = change(message)
        if changed is not None:
            yield topic, json.dumps(changed).encode()

    return frames_out(rewritten)


def error_out(change: Callable[[Message], None]) -> Patch:
    """Change each result that has an error."""

    def changed(message: Message) -> Message:
        for result in message["results"]:
            if result.get("error"):
                change(result)
        return message

    return out("results", changed)


def bodies_in(change: Callable[[bytes], bytes | None]) -> Patch:
    """Change each body that the worker receives. None: it is not received."""

    def plant() -> None:
        receive = Session.receive

        def changed(self: Session, topic: bytes, body: bytes, now_ms: float) -> None:
            new = change(body)
            if new is not None:
                receive(self, topic, new, now_ms)

        Session.receive = changed  # type: ignore[method-assign]

    return plant


def received(change: Callable[[Message], Message | None]) -> Patch:
    """Change each message that the worker receives."""

    def rewritten(body: bytes) -> bytes | None:
        try:
            message = json.loads(body)
        except ValueError:
            return body
        if not isinstance(message, dict):
            return body
        changed = change(message)
        return None if changed is None else json.dumps(changed).encode()

    return bodies_in(rewritten)


def steps_in(change: Callable[[Message], None]) -> Patch:
    """Change each step that the worker receives."""

    def changed(message: Message) -> Message:
        for step in message.get("steps", []) if message.get("type") == "steps" else []:
            change(step)
        return message

    return received(changed)
