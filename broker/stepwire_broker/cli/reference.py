"""The reference pages, written from what they describe: `python -m stepwire_broker.cli.reference DIRECTORY`."""

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from stepwire_broker.configuration import setting_texts
from stepwire_broker.core.definitions.workflow_schema import workflow_schema

from .failure import MEANING
from .main import main
from .options import Options, StepwireGroup, global_options

HEAD: Final = (
    "<!-- Written by `python -m stepwire_broker.cli.reference docs/reference`. Change the code, not this. -->\n"
)


def cli_page() -> str:
    """Every command with its arguments and options."""
    context = click.Context(main, info_name="stepwire", obj=Options())
    lines = [HEAD, "# The command line", ""]
    lines += ["Data goes to stdout, everything else to stderr. These options may stand anywhere in a command:", ""]
    lines += _options(context, global_options())
    lines += ["", "## Exit codes", "", "| code | means |", "| --- | --- |"]
    lines += [f"| {code.value} | {meaning} |" for code, meaning in MEANING.items()]
    for path, command in _commands(context, main):
        lines += ["", *_command(path, command)]
    return "\n".join(lines) + "\n"


def config_page() -> str:
    """Every setting with its default, unit and environment variable."""
    lines = [
        HEAD,
        "# Configuration",
        "",
        "The file is the first of `--config FILE`, `$STEPWIRE_CONFIG`, `./stepwire.yaml`, `stepwire/stepwire.yaml` in "
        "the user's configuration directory, and `/etc/stepwire/stepwire.yaml`. A value is the first of: the flag "
        "(`stepwire serve --set KEY=VALUE`), the environment variable, the file that the variable with `_FILE` after "
        "its name points to, the configuration file, the default. `stepwire config show --origin` says which.",
        "",
        "A key that ends in `_ms` is a whole number of milliseconds; without `_ms` it is a duration: `lease: 10s`. "
        "A key without a feature yet is marked with *later*.",
    ]
    for section, names in setting_texts.sections():
        title = f"`{section}`" if section else "Top level"
        lines += ["", f"## {title}", "", "| key | default | unit | environment | |", "| --- | --- | --- | --- | --- |"]
        for key in names:
            about = _cell(setting_texts.ABOUT[key])
            default = _cell(msgspec.json.encode(setting_texts.default_of(key)).decode())
            row = (
                f"`{key}`",
                f"`{default}`",
                setting_texts.unit_of(key),
                f"`{setting_texts.environment_of(key)}`",
                about,
            )
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _schema_file(schema: Callable[[], dict[str, Any]]) -> Callable[[], str]:
    return lambda: msgspec.json.format(msgspec.json.encode(schema())).decode() + "\n"


PAGES: Final = {
    "cli.md": cli_page,
    "config.md": config_page,
    "workflow.schema.json": _schema_file(workflow_schema),
    "config.schema.json": _schema_file(setting_texts.schema),
}


def _commands(context: click.Context, group: click.Group) -> Iterator[tuple[click.Context, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if command.hidden:
            continue
        below = click.Context(command, info_name=name, parent=context)
        yield below, command
        if isinstance(command, StepwireGroup):
            yield from _commands(below, command)


def _command(context: click.Context, command: click.Command) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"{'###' if context.parent and context.parent.parent else '##'} {context.command_path}", ""]
    lines += [*_paragraphs(inspect.cleandoc(command.help or "")), "", "```", f"{context.command_path} {usage}", "```"]
    own = _options(context, [p for p in command.params if isinstance(p, click.Option) and p.expose_value])
    return [*lines, "", *own] if own else lines


def _paragraphs(text: str) -> Iterator[str]:
    """Help is one paragraph a line, but for those that begin with \\b, which stand as they are."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith("\b"):
            yield "```"
            yield from paragraph.removeprefix("\b").strip("\n").split("\n")
            yield "```"
        else:
            yield " ".join(paragraph.split())


def _options(context: click.Context, options: list[click.Option]) -> list[str]:
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    if not records:
        return []
    return ["| option | |", "| --- | --- |", *(f"| `{_cell(name)}` | {_cell(about)} |" for name, about in records)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page(), encoding="utf-8")
