"""Texts of the product name only commands that exist: its hints, errors, help and the files that it writes."""

import ast
import re
from collections.abc import Iterator

from stepwire_broker.cli.project_languages import TEMPLATES

from tests.house.source import ROOT, product

from .test_help import COMMANDS

# Not commands: the first words of a file, and of what a sealed payload is bound to.
NAMED = re.compile(r"(?<!from )\bstepwire(?! erasures, key| sealed v1) ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}


def texts() -> Iterator[tuple[str, str]]:
    """Each text of the product, with its place."""
    for path in sorted(TEMPLATES.rglob("*.in")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for source in product():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{source.path}:{node.lineno}", node.value


def unknown_commands(text: str) -> list[str]:
    """The commands that a text names and that do not exist. A word after a command without subcommands is an
    argument."""
    return [
        mention[0]
        for mention in NAMED.finditer(text)
        if mention[1] not in COMMANDS
        or (mention[1] in GROUPS and mention[2] is not None and f"{mention[1]} {mention[2]}" not in COMMANDS)
    ]


def test_every_command_that_a_text_names_exists() -> None:
    unknown = [(place, command) for place, text in texts() for command in unknown_commands(text)]
    assert unknown == []


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "`stepwire config reference`, then stepwire confg show, or stepwire task show 7, or stepwire explain 7"
    assert unknown_commands(text) == ["stepwire config reference", "stepwire confg show", "stepwire explain"]
