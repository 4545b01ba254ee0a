"""A shell completes commands, options, and what the broker knows, with the shells that are installed here."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .a_place import Place

BIN = Path(sys.executable).parent
PATIENCE_S = 30


def in_bash(here: Place, line: str) -> list[str]:
    """The completions of a line, by the function that the script defines, with the words as bash gives them."""
    (here.directory / "completion.bash").write_text(here.stepwire("completion", "bash").out)
    script = '. ./completion.bash; _stepwire_completion stepwire; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=here.directory,
        env={**here.environ, "PATH": f"{BIN}:{here.environ['PATH']}", "COMP_LINE": line, "COMP_POINT": str(len(line))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


def typed(here: Place, shell: list[str], setup: str, line: str, shown: str) -> str:
    """Type a line into an interactive shell and press TAB until the shell shows the text. Returns the screen."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(here.directory)
        environ = {**here.environ, "PATH": f"{BIN}:{here.environ['PATH']}", "TERM": "dumb", "HOME": str(here.directory)}
        os.execvpe(shell[0], shell, environ)
    screen = b""
    try:
        os.write(master, f"{setup}; echo REA''DY\n".encode())
        until = time.monotonic() + PATIENCE_S
        sent = False
        while time.monotonic() < until and shown.encode() not in screen.rpartition(b"READY")[2]:
            if select.select([master], [], [], 0.5)[0]:
                screen += os.read(master, 65536)
            if b"READY" in screen and not sent:
                os.write(master, line.encode())
                sent = True
            elif sent:
                os.write(master, b"\t")
        return screen.decode(errors="replace").rpartition("READY")[2]
    finally:
        os.close(master)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(empty: Place, shell: str) -> None:
    done = empty.stepwire("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "_STEPWIRE_COMPLETE" in done.out


def test_a_shell_without_a_script_is_named_with_the_supported_ones(empty: Place) -> None:
    done = empty.stepwire("completion", "powershell")
    assert done.code == 2
    assert done.err.startswith("stepwire: powershell is not supported; the shells are bash, zsh, fish\n")


def test_bash_completes_commands_and_options(empty: Place) -> None:
    assert in_bash(empty, "stepwire task sub") == ["submit"]
    assert in_bash(empty, "stepwire task submit --foll") == ["--follow"]
    assert in_bash(empty, "stepwire task list --state pa") == ["paused"]
    assert in_bash(empty, "stepwire task list --state=pa") == ["paused"]


def test_bash_completes_the_names_and_ids_of_the_broker(shop: Place) -> None:
    task = shop.stepwire("task", "submit", "shop::slow", "-q").out.strip()
    # bash replaces only what follows the last colon
    assert in_bash(shop, "stepwire task submit shop::sl") == ["slow"]
    assert in_bash(shop, "stepwire task submit shop::order --version ") == ["1"]
    assert task in in_bash(shop, "stepwire task show ")
    assert task in in_bash(shop, "stepwire task cancel ")
    assert in_bash(shop, "stepwire executor show b") == ["bus"]
    assert "shop.charge" in in_bash(shop, "stepwire breaker open shop.")
    assert len(in_bash(shop, "stepwire worker show ")) == 1
    assert shop.stepwire("task", "cancel", task).code == 0


def test_without_a_broker_names_are_completed_by_nothing(empty: Place) -> None:
    assert in_bash(empty, "stepwire task submit ") == []
    assert in_bash(empty, "stepwire worker drain ") == []


SHELLS = {
    "bash": (["bash", "--norc", "-i"], ". <(stepwire completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; . <(stepwire completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "stepwire completion fish | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_an_interactive_shell_completes_the_name_of_a_workflow(shop: Place, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words, setup = SHELLS[shell]
    screen = typed(shop, words, setup, "stepwire task submit shop::sl", "shop::slow")
    assert "shop::slow" in screen, screen
