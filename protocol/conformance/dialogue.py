"""Dialogues: messages between a broker and a worker, from a file. One side is real; the runner plays the other one.

`play` performs the lines of a dialogue. A `Stage` connects `play` to the real side: a driver with simulated
time, a worker or a broker on real sockets, or a test's list of messages. protocol/vectors/README.md has the format.
"""

import base64
import json
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from . import vectors
from .driver_process import Failed
from .values import Bindings, match, render

Side: TypeAlias = Literal["broker", "worker"]

# The id of the worker, if the worker is played or accepts a given id.
WORKER = "shop-1:0123456789abcdef"
# Messages that either side may send, and resend, at any time: a dialogue does not list each of them.
BACKGROUND = frozenset({"hello", "heartbeat", "heartbeat_ack", "here"})
WITHIN_MS = 5_000


class Frame(NamedTuple):
    """One message of the real side."""

    topic: str
    message: dict[str, Any]  # with every member, defaults filled in
    peer: str | None = None  # level 0: the handler that received it, by its name in the dialogue

    @property
    def kind(self) -> str:
        """The message's type; for level-0 messages, which have no type, the topic."""
        return str(self.message.get("type", self.topic.rstrip()))


class Stage(Protocol):
    """The real side, and the connection to it."""

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        """Send a message of the played side to the real side. `peer`: the level-0 handler that sends the message."""

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        """Subscribe or unsubscribe this played handler."""

    def receive(self, until_ms: int) -> Frame | None:
        """The next message of the real side, or None if there is none until this time."""

    def now_ms(self) -> int: ...

    def wait_until(self, at_ms: int) -> None:
        """Let time pass. The played side continues to send heartbeats, or their acks."""

    def be_silent(self, for_ms: int, broker: str | None = None) -> None:
        """Let time pass without any message of the played side; with `broker`, of this played broker only."""

    def act(self, what: str, facts: dict[str, Any]) -> None:
        """Cause an event at the real side: a task is submitted, a handler completes, a broker restarts."""

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        """Check that a fact is true at the real side, now or soon. Returns None, or the reason why not."""


class Dialogue(Struct):
    """One entry of dialogues.json."""

    name: str
    about: str
    drives: list[Side]
    lines: list[dict[str, Any]]
    given: dict[str, Any]
    simulated: bool = False  # needs exact times, or two brokers: only for a session in simulated time
    strength: Literal["must", "should"] = "must"


def load() -> list[Dialogue]:
    return msgspec.convert(vectors.load("dialogues")["dialogues"], list[Dialogue])


def play(dialogue: Dialogue, real: Side, stage: Stage) -> Bindings:
    """Play the dialogue line by line. Raises Failed with the first line that the real side did not follow."""
    course = _Course(real, stage)
    for number, line in enumerate(dialogue.lines, 1):
        try:
            stage.wait_until(line["at_ms"])
            course.line(line)
        except Failed as failed:
            raise Failed(f"{dialogue.name!r}, line {number}: {failed}\n  {json.dumps(line)}") from None
    return course.bindings


class _Course:
    """The state of one dialogue while it is played."""

    def __init__(self, real: Side, stage: Stage) -> None:
        self.bindings: Bindings = {}
        self._real = real
        self._stage = stage
        self._received: list[Frame] = []

    def line(self, line: dict[str, Any]) -> None:
        if "any_order" in line:
            self._in_any_order(line["any_order"])
        elif "silent" in line:
            assert line["silent"] != self._real, "a real side cannot be made silent"
            self._stage.be_silent(line["for_ms"], line.get("broker"))
        elif "expect_nothing_ms" in line:
            if line["from"] == self._real:
                self._expect_nothing(line)
        elif "subscribe" in line or "unsubscribe" in line:
            assert line["from"] != self._real, "a real handler decides itself what it subscribes"
            on = "subscribe" in line
            self._stage.subscribe(line["peer"], line["subscribe" if on else "unsubscribe"], on=on)
        elif "when" in line:
            facts = render(line["facts"], self.bindings)
            if line["at"] == self._real:
                self._stage.act(line["when"], facts)
        elif "then" in line:
            facts = render(line["facts"], self.bindings)
            if line["at"] == self._real and (why := self._stage.see(line["then"], facts)):
                raise Failed(why)
        elif line["from"] == self._real:
            self._expect([line])
        else:
            self._send(line)

    def _in_any_order(self, lines: list[dict[str, Any]]) -> None:
        if lines[0]["from"] != self._real:
            for line in lines:
                self._send(line)
            return
        awaited = list(lines)
        while awaited:
            awaited.remove(self._expect(awaited))

    def _send(self, line: dict[str, Any]) -> None:
        topic = render(line["topic"], self.bindings)
        if "base64" in line:
            body = base64.b64decode(line["base64"])
        elif "text" in line:
            body = render(line["text"], self.bindings).encode()
        else:
            body = msgspec.json.encode(render(line["message"], self.bindings))
        self._stage.send(topic, body, render(line.get("peer"), self.bindings))

    def _expect(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Wait for a message that matches one of these lines, and return that line.

        Background messages and repetitions of earlier messages may come first. Any other message fails the dialogue.
        """
        until_ms = self._stage.now_ms() + lines[0].get("within_ms", WITHIN_MS)
        skipped: list[str] = []
        while (frame := self._stage.receive(until_ms)) is not None:
            reasons = []
            for line in lines:
                bindings = dict(self.bindings)
                differences = [
                    *match(line.get("peer"), frame.peer, bindings, "peer"),
                    *match(line["topic"], frame.topic, bindings, "topic"),
                    *match(line["message"], frame.message, bindings),
                ]
                if not differences:
                    self.bindings = bindings
                    self._received.append(frame)
                    return line
                reasons.append("; ".join(differences))
            received = f"{frame.topic}{json.dumps(frame.message)}\n    {' / '.join(reasons)}"
            if frame.kind in lines[0].get("nothing_of", ()):
                raise Failed(f"a message came that may not come before: {received}")
            # At level 0 no message is ever sent twice.
            may_be_skipped = frame.kind in BACKGROUND or (frame.peer is None and frame in self._received)
            if not may_be_skipped:
                raise Failed(f"another message came: {received}")
            skipped.append(received)
        raise Failed("no such message in time" + "".join(f"\n  only {received}" for received in skipped[-3:]))

    def _expect_nothing(self, line: dict[str, Any]) -> None:
        until_ms = self._stage.now_ms() + line["expect_nothing_ms"]
        while (frame := self._stage.receive(until_ms)) is not None:
            if frame.kind in line["of"]:
                raise Failed(f"a message came where none may: {frame.topic}{json.dumps(frame.message)}")
