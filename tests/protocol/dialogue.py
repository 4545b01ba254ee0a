"""Dialogues: what broker and worker say to each other, from a file, with one of the two real and the other played.

Pure matching and the course of a dialogue. Sockets, processes and clocks are a `Stage`, which whoever runs a dialogue
passes in: the codec's test has none, a session with a pretended clock has one, a broker behind real sockets another.
The format is described in protocol/vectors/README.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"

Side: TypeAlias = Literal["broker", "worker"]
Bindings: TypeAlias = dict[str, Any]

# What both sides say at any time, and say again; a dialogue waits through it.
CHATTER = frozenset({"hello", "heartbeat", "heartbeat_ack", "here"})
WITHIN_MS = 5_000


class Frame(NamedTuple):
    topic: str
    message: dict[str, Any]  # with every member, defaults filled in
    peer: str | None = None  # of level 0: which handler it went to, as the dialogue calls it

    @property
    def kind(self) -> str:
        """At level 0, where messages have no type, the topic says it."""
        return str(self.message.get("type", self.topic.rstrip()))


class Stage(Protocol):
    """The real side and the way to it."""

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        """Say this to the real side, in the name of the played one: of this handler, where there are several."""

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        """This played handler asks for the topic, or takes that back."""

    def receive(self, until_ms: int) -> Frame | None:
        """The next thing the real side says, or None when it has said nothing by then."""

    def now_ms(self) -> int: ...

    def wait_until(self, at_ms: int) -> None:
        """Let time pass, and do what the played side does by itself meanwhile: heartbeats, or their echo."""

    def be_silent(self, for_ms: int) -> None:
        """Let time pass, and let the played side say nothing at all."""

    def act(self, what: str, facts: dict[str, Any]) -> None:
        """Make this happen at the real side: a task is submitted, a handler completes, a broker restarts."""

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        """Is this so at the real side by now, or soon? None, or why not."""


class Failed(AssertionError):
    """The real side did not keep to the dialogue."""


class Dialogue(Struct):
    name: str
    about: str
    drives: list[Side]
    lines: list[dict[str, Any]]
    given: dict[str, Any]
    strength: Literal["must", "should"] = "must"


def load() -> list[Dialogue]:
    text = json.loads((VECTORS / "dialogues.json").read_text())
    assert text["format"] == 1
    return msgspec.convert(text["dialogues"], list[Dialogue])


def play(dialogue: Dialogue, real: Side, stage: Stage) -> Bindings:
    """Go through the dialogue, line by line. Raises Failed with the line that the real side did not keep to."""
    course = _Course(real, stage)
    for number, line in enumerate(dialogue.lines, 1):
        stage.wait_until(line["at_ms"])
        try:
            course.line(line)
        except Failed as failed:
            raise Failed(f"{dialogue.name!r}, line {number}: {failed}\n  {json.dumps(line)}") from None
    return course.bindings


class _Course:
    def __init__(self, real: Side, stage: Stage) -> None:
        self.bindings: Bindings = {}
        self._real = real
        self._stage = stage
        self._heard: list[Frame] = []

    def line(self, line: dict[str, Any]) -> None:
        if "any_order" in line:
            self._in_any_order(line["any_order"])
        elif "silent" in line:
            assert line["silent"] != self._real, "a real side cannot be made silent"
            self._stage.be_silent(line["for_ms"])
        elif "expect_nothing_ms" in line:
            if line["from"] == self._real:
                self._expect_nothing(line)
        elif "subscribe" in line or "unsubscribe" in line:
            assert line["from"] != self._real, "what a real handler subscribes to is not played"
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
            self._say(line)

    def _in_any_order(self, lines: list[dict[str, Any]]) -> None:
        if lines[0]["from"] != self._real:
            for line in lines:
                self._say(line)
            return
        awaited = list(lines)
        while awaited:
            awaited.remove(self._expect(awaited))

    def _say(self, line: dict[str, Any]) -> None:
        topic = render(line["topic"], self.bindings)
        if "text" in line:
            body = render(line["text"], self.bindings).encode()
        else:
            body = msgspec.json.encode(render(line["message"], self.bindings))
        self._stage.send(topic, body, render(line.get("peer"), self.bindings))

    def _expect(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """The line that is said of these. Chatter, and what was said before, may come between; nothing else may."""
        until_ms = self._stage.now_ms() + lines[0].get("within_ms", WITHIN_MS)
        passed: list[str] = []
        while (frame := self._stage.receive(until_ms)) is not None:
            why = []
            for line in lines:
                found = dict(self.bindings)
                differences = [
                    *match(line.get("peer"), frame.peer, found, "peer"),
                    *match(line["topic"], frame.topic, found, "topic"),
                    *match(line["message"], frame.message, found),
                ]
                if not differences:
                    self.bindings = found
                    self._heard.append(frame)
                    return line
                why.append("; ".join(differences))
            said = f"{frame.topic}{json.dumps(frame.message)}\n    {' / '.join(why)}"
            # At level 0 nobody says anything again.
            may_come_between = frame.kind in CHATTER or (frame.peer is None and frame in self._heard)
            if not may_come_between:
                raise Failed(f"said otherwise: {said}")
            passed.append(said)
        raise Failed("not said in time" + "".join(f"\n  but {said}" for said in passed[-3:]))

    def _expect_nothing(self, line: dict[str, Any]) -> None:
        until_ms = self._stage.now_ms() + line["expect_nothing_ms"]
        while (frame := self._stage.receive(until_ms)) is not None:
            if frame.kind in line["of"]:
                raise Failed(f"should have said nothing, and said {frame.topic}{json.dumps(frame.message)}")


# -- values -----------------------------------------------------------------------------------------------------------


def match(pattern: Any, value: Any, bindings: Bindings, at: str = "$") -> Iterator[str]:
    """How `value` differs from the pattern; nothing when it fits. Members that the pattern does not name are free."""
    if isinstance(pattern, dict) and ("$ref" in pattern or pattern.get("$bind") in bindings):
        pattern = render(pattern, bindings)
    if isinstance(pattern, dict) and "$any" in pattern:
        return
    if isinstance(pattern, dict) and "$bind" in pattern:
        bindings[pattern["$bind"]] = value
    elif isinstance(pattern, dict):
        if not isinstance(value, dict):
            yield f"{at} is {value!r}, not an object"
            return
        for name, inner in pattern.items():
            name = render(name, bindings)
            if name not in value:
                yield f"{at}.{name} is missing"
            else:
                yield from match(inner, value[name], bindings, f"{at}.{name}")
    elif isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern):
            yield f"{at} is {value!r}, not {len(pattern)} items"
            return
        for i, (inner, item) in enumerate(zip(pattern, value, strict=True)):
            yield from match(inner, item, bindings, f"{at}[{i}]")
    else:
        pattern = render(pattern, bindings)
        if type(pattern) is not type(value) or pattern != value:
            yield f"{at} is {value!r}, not {pattern!r}"


def render(pattern: Any, bindings: Bindings) -> Any:
    """The pattern as a value: what was bound, else its example, which is bound from here on."""
    if isinstance(pattern, dict):
        if "$ref" in pattern:
            return bindings[pattern["$ref"]]
        if "$any" in pattern:
            return pattern["example"]
        if "$bind" in pattern:
            return bindings.setdefault(pattern["$bind"], pattern["example"])
        return {render(name, bindings): render(value, bindings) for name, value in pattern.items()}
    if isinstance(pattern, list):
        return [render(item, bindings) for item in pattern]
    if isinstance(pattern, str) and "${" in pattern:
        for name, value in bindings.items():
            pattern = pattern.replace("${" + name + "}", str(value))
        assert "${" not in pattern, f"{pattern!r} names something that was not bound before"
    return pattern


def members(value: Any) -> Any:
    """A message as plain values, with every member it has, the ones it was not sent with too."""
    if isinstance(value, Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return tag | {name: members(member) for name, member in fields.items() if member is not UNSET}
    if isinstance(value, Raw):
        return json.loads(bytes(value))
    if isinstance(value, list | tuple):
        return [members(item) for item in value]
    if isinstance(value, dict):
        return {name: members(member) for name, member in value.items()}
    return value
