"""The help: complete sentences, grouped commands, and examples that the command line accepts."""

import json
import shlex
from collections.abc import Iterator

import click
import pytest
from stepwire_broker.cli.examples import EXAMPLES
from stepwire_broker.cli.failure import Failure
from stepwire_broker.cli.main import main
from stepwire_broker.cli.options import Options, path_of, summary_of

from .a_place import Place

USAGE = 2


def commands(context: click.Context, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        below = click.Context(command, info_name=name, parent=context)
        yield path_of(below), command
        if isinstance(command, click.Group):
            yield from commands(below, command)


ROOT = click.Context(main, info_name="stepwire", obj=Options())
COMMANDS = dict(commands(ROOT, main))
LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines if not line.startswith("#")]


def test_every_command_has_examples() -> None:
    assert EXAMPLES.keys() == {"", *COMMANDS}


@pytest.mark.parametrize(("name", "line"), LINES)
def test_an_example_is_accepted_by_the_command_line(name: str, line: str) -> None:
    program, *words = shlex.split(line.partition(" > ")[0], comments=True)
    assert program == "stepwire"
    context, command = ROOT, main  # type: click.Context, click.Command | None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found, command, words = command.resolve_command(context, words)
        assert command is not None
        context = click.Context(command, info_name=found, parent=context, obj=Options())
    if words != ["--version"]:
        command.parse_args(context, words)
    if line == EXAMPLES[name][0]:
        assert path_of(context).startswith(name)


def test_a_wrong_example_would_be_refused() -> None:
    """The parser that judges the examples refuses an unknown option."""
    command = COMMANDS["task cancel"]
    with pytest.raises(Failure, match="no such option"):
        command.parse_args(click.Context(command, info_name="cancel", parent=ROOT, obj=Options()), ["--bad"])


def test_the_help_lists_every_command_under_a_heading_with_its_whole_first_sentence(empty: Place) -> None:
    shown = " ".join(empty.stepwire("--help").out.split())
    for heading, names in main.sections.items():
        assert f" {heading}: " in shown
        for name in names:
            assert f" {name} {summary_of(COMMANDS[name])}" in shown
    assert "..." not in shown.partition("Options:")[0].partition("ARGS")[2].removeprefix("]...")


def test_help_prints_the_help_of_a_command_or_of_the_program(empty: Place) -> None:
    assert empty.stepwire("help").out == empty.stepwire("--help").out
    assert empty.stepwire("help", "task", "retry").out == empty.stepwire("task", "retry", "--help").out
    unknown = empty.stepwire("help", "task", "nope")
    assert (unknown.code, unknown.err) == (
        USAGE,
        "stepwire: there is no command stepwire task nope\n  see: stepwire task --help\n",
    )
    misspelt = empty.stepwire("help", "task", "submitt").err
    assert misspelt.startswith("stepwire: there is no command stepwire task submitt; did you mean submit?\n")
    assert empty.stepwire("help", "tsk").err.startswith(
        "stepwire: there is no command stepwire tsk; did you mean task?"
    )


def test_the_version_is_printed_by_a_command_and_by_an_option(empty: Place) -> None:
    by_option = empty.stepwire("--version")
    assert by_option.out == empty.stepwire("version").out
    assert by_option.out.startswith("stepwire ")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["task", "retr"], "there is no command stepwire task retr; did you mean retry?", "see: stepwire task --help"),
        (["tsk"], "there is no command stepwire tsk; did you mean task?", "see: stepwire --help"),
        (["task", "show"], "missing argument 'ID'", "see: stepwire task show --help"),
        (
            ["task", "show", "x"],
            "'x' is not the id of a task: use a number like 6591",
            "see: stepwire task show --help",
        ),
        (["task", "list", "--stat", "x"], "no such option '--stat'", "see: stepwire task list --help"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_command(
    empty: Place, words: list[str], message: str, hint: str
) -> None:
    done = empty.stepwire(*words)
    lines = done.err.splitlines()
    assert (done.code, done.out, len(lines)) == (USAGE, "", 2)
    assert lines[0].startswith(f"stepwire: {message}")
    assert lines[1].strip().endswith(hint)
    for form in (["--json"], ["-o", "json"], ["-o", "jsonl"], ["--output=json"]):
        error = json.loads(empty.stepwire(*words, *form).err)["error"]
        assert (error["code"], error["hint"]) == ("usage", hint)
        assert error["detail"].startswith(message)
