"""The dialogues themselves: every line is a valid message, and the runner accepts the right messages only."""

import base64
from typing import Any

import msgspec
import pytest
from conformance.dialogue import Dialogue, Frame, load, play
from conformance.driver_process import Failed
from conformance.values import Bindings, match, members, render
from stepwire_protocol import codec
from stepwire_protocol.errors import InvalidMessage

from .receivers import read_as_broker, read_as_worker

DIALOGUES = load()


def messages_of(dialogue: Dialogue) -> list[tuple[dict[str, Any], Bindings]]:
    """Every line that is a message, with the names that are bound when it is sent."""
    bindings: Bindings = {}
    lines = []
    for line in dialogue.lines:
        for one in line.get("any_order", [line]):
            if "topic" in one:
                render([one.get("peer"), one.get("message", {})], bindings)
                lines.append((one, dict(bindings)))
    return lines


def test_dialogues_have_different_names() -> None:
    assert len({d.name for d in DIALOGUES}) == len(DIALOGUES)


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_every_line_of_a_dialogue_is_a_valid_message(dialogue: Dialogue) -> None:
    for line, bindings in messages_of(dialogue):
        read = read_as_broker if line["from"] == "worker" else read_as_worker
        topic = render(line["topic"], bindings).encode().replace(b"results@b2 ", b"results@b1 ")  # read by that broker
        if "text" in line or "base64" in line:
            body = base64.b64decode(line["base64"]) if "base64" in line else render(line["text"], bindings).encode()
            with pytest.raises(InvalidMessage) as refused:
                read([topic + body])
            assert refused.value.code == line["code"]
            continue
        sent = render(line["message"], bindings)
        message = read([topic + msgspec.json.encode(sent)])
        reread = read([topic + codec.encode(message)])
        assert reread == message
        assert list(match(sent, members(reread), {})) == []


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_time_never_decreases_in_a_dialogue(dialogue: Dialogue) -> None:
    times = [line["at_ms"] for line in dialogue.lines]
    assert times == sorted(times)
    assert dialogue.drives


class Echo:
    """A real side that sends the lines of the dialogue, or one wrong message, to test the runner itself."""

    def __init__(self, dialogue: Dialogue, side: str, spoil: int | None = None) -> None:
        self._lines = [(line, b) for line, b in messages_of(dialogue) if line["from"] == side]
        self._spoil = spoil
        self._at = 0
        self._now_ms = 0

    def receive(self, until_ms: int) -> Frame | None:
        if self._at >= len(self._lines):
            self._now_ms = until_ms
            return None
        line, bindings = self._lines[self._at]
        self._at += 1
        message = render(line["message"], bindings)
        if self._spoil == self._at:
            message = _spoilt(message)
        return Frame(render(line["topic"], bindings), message, render(line.get("peer"), bindings))

    def now_ms(self) -> int:
        return self._now_ms

    def wait_until(self, at_ms: int) -> None:
        self._now_ms = max(self._now_ms, at_ms)

    def be_silent(self, for_ms: int, broker: str | None = None) -> None:
        self._now_ms += for_ms

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        assert topic.endswith(" ")

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None: ...

    def act(self, what: str, facts: dict[str, Any]) -> None: ...

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        return None


def _spoilt(message: dict[str, Any]) -> dict[str, Any]:
    if "type" not in message:
        return message | {"protocol_version": "9.9"}
    return message | {"type": "cancel" if message["type"] != "cancel" else "go"}


def without_silence(dialogue: Dialogue) -> Dialogue:
    """The dialogue without the times at which no message may come: an Echo cannot wait until they are over."""
    lines = [line for line in dialogue.lines if "expect_nothing_ms" not in line]
    return msgspec.structs.replace(dialogue, lines=lines)


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_a_side_that_sends_its_lines_passes(dialogue: Dialogue) -> None:
    for side in dialogue.drives:
        play(without_silence(dialogue), side, Echo(dialogue, side))


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_a_side_that_sends_another_message_fails(dialogue: Dialogue) -> None:
    for side in dialogue.drives:
        count = sum(line["from"] == side for line, _ in messages_of(dialogue))
        for spoil in range(1, count + 1):
            with pytest.raises(Failed):
                play(without_silence(dialogue), side, Echo(dialogue, side, spoil))


MATCHES: list[tuple[Any, Any, bool]] = [
    (1, 1, True),
    (1, 2, False),
    (1, True, False),
    (1, 1.0, False),
    (None, None, True),
    ("a", "a", True),
    ("${x}.1", "7.1", True),
    ("${x}.1", "8.1", False),
    ({"a": 1}, {"a": 1, "b": 2}, True),
    ({"a": 1}, {"b": 2}, False),
    ({"a": 1}, [], False),
    ([1, 2], [1, 2], True),
    ([1, 2], [1, 2, 3], False),
    ({"$any": True, "example": 5}, {"anything": []}, True),
    ({"$ref": "x"}, 7, True),
    ({"$ref": "x"}, 8, False),
    ({"$bind": "x", "example": 1}, 7, True),
    ({"$bind": "x", "example": 1}, 1, False),
    ({"$bind": "new", "example": 1}, 99, True),
]


@pytest.mark.parametrize(("pattern", "value", "fits"), MATCHES)
def test_a_pattern_fits_or_names_the_differences(pattern: Any, value: Any, fits: bool) -> None:
    assert (list(match(pattern, value, {"x": 7})) == []) is fits


def test_a_bound_name_keeps_its_value() -> None:
    bindings: Bindings = {}
    assert list(match({"$bind": "id", "example": 1}, 5, bindings)) == []
    assert render({"$ref": "id"}, bindings) == 5
    assert render("@${id} ", bindings) == "@5 "
    assert list(match({"a": {"$bind": "id", "example": 1}}, {"a": 6}, bindings)) != []
