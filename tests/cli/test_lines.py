"""Lines for people fit the terminal and are broken between words. A pipe gets them as they are."""

import pytest
from stepwire_broker.cli.output import wrapped

from .a_place import Place

CASES = [
    ("short", 20, 0, "short"),
    ("", 20, 0, ""),
    ("the step is held", 12, 0, "the step is\nheld"),
    ("  see: stepwire task list", 14, 0, "  see:\n  stepwire\n  task list"),
    ("why      no worker offers it", 20, 9, "why      no worker\n         offers it"),
    ("one --two-three", 12, 0, "one\n--two-three"),
    ("result   /a/very/long/path", 16, 9, "result   /a/very/long/path"),
    ("first line\nsecond line", 12, 0, "first line\nsecond line"),
    ("label", 20, 9, "label"),
    ("see: stepwire task list; more", 20, 0, "see:\nstepwire task list;\nmore"),
    ("next: stepwire db check, then stepwire serve", 30, 0, "next: stepwire db check, then\nstepwire serve"),
]


@pytest.mark.parametrize(("text", "width", "indent", "lines"), CASES)
def test_a_line_is_broken_between_words_and_keeps_its_indent(text: str, width: int, indent: int, lines: str) -> None:
    assert wrapped(text, width, indent) == lines


@pytest.mark.parametrize(
    "words",
    [("task", "show", "999999"), ("worker", "show", "missing"), ("why", "TASK"), ("step", "list", "--limit", "1")],
)
def test_a_terminal_gets_whole_words_and_a_pipe_whole_lines(shop: Place, words: tuple[str, ...]) -> None:
    shop.stepwire("task", "submit", "shop::order", "--context", '{"card":"unknown"}', "--wait")
    shop.stepwire("task", "submit", "shop::order", "--context", '{"card":"unknown"}', "--wait")
    piped = shop.stepwire(*words)
    seen = shop.on_terminal(*words, columns=40, NO_COLOR="1").out
    assert max(map(len, piped.err.splitlines())) > 20
    for line in piped.err.splitlines():
        assert " ".join(line.split()) in " ".join(seen.split())
    if not piped.out:
        assert max(map(len, seen.splitlines())) <= 40


def test_a_sentence_of_why_is_broken_between_words(shop: Place) -> None:
    task = shop.stepwire("task", "submit", "shop::slow", "-q").out.strip()
    sentence = shop.stepwire("why", task).out
    lines = shop.on_terminal("why", task, columns=40).out.splitlines()
    assert len(sentence.splitlines()) == 1
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert " ".join(lines) == sentence.strip()
