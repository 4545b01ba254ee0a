"""The generated reference pages match the code and cover all of it."""

from pathlib import Path

import pytest
from stepwire_broker.cli import reference
from stepwire_broker.cli.failure import Exit
from stepwire_broker.configuration.loader import KEYS

DOCS = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_fresh(name: str) -> None:
    command = "python -m stepwire_broker.cli.reference docs/reference"
    assert (DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name](), f"run: {command}"


def test_every_setting_and_every_exit_code_is_listed() -> None:
    settings, commands = reference.config_page(), reference.cli_page()
    for key in KEYS:
        assert f"| `{key}` |" in settings
    for code in Exit:
        assert f"\n| {code.value} | " in commands
    for command in ("stepwire serve", "stepwire task submit", "stepwire workflow graph", "stepwire config init"):
        assert f"# {command}\n" in commands
