"""The generated reference pages match the code and cover all of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from stepwire_broker.cli import reference
from stepwire_broker.cli.failure import Exit
from stepwire_broker.configuration.loader import KEYS

from .a_place import Place

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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(empty: Place, shell: str) -> None:
    done = empty.stepwire("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "_STEPWIRE_COMPLETE" in done.out
    assert empty.stepwire("completion", "tcsh").code == 2


def test_bash_completes_commands_and_options(empty: Place) -> None:
    (empty.directory / "completion.bash").write_text(empty.stepwire("completion", "bash").out)
    script = (
        f'PATH="{Path(sys.executable).parent}:$PATH"; . ./completion.bash;'
        ' COMP_WORDS=(stepwire task sub) COMP_CWORD=2; _stepwire_completion stepwire; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=empty.directory, env=empty.environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "submit\n", done
