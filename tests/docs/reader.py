"""A reader who runs a page from the top, in an empty directory."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

import yaml
from stepwire_broker.configuration import loader
from stepwire_broker.core.definitions.workflow import read_workflow
from stepwire_broker.definition_files import read_document

from . import syntax
from .pages import REPOSITORY, Block, blocks

COMMAND_BOUND_S: Final = 60.0
SEEN_BOUND_S: Final = 40.0
PORTS: Final = ("7410", "7411", "7412", "8000", "8001", "8002")  # as the pages have them
_EXIT: Final = re.compile(r"^\[exit (\d+)\]$")


class Wrong(AssertionError):
    """The page does not match what happens."""


class Reader:
    """One shell that keeps its directory and variables, and terminals for commands that keep running."""

    def __init__(
        self, directory: Path, more_environ: Mapping[str, str] | None = None, command_bound_s: float = COMMAND_BOUND_S
    ) -> None:
        self._directory = directory
        self._ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        (directory / ".venv").symlink_to(sys.prefix)
        self._environ = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "STEPWIRE_HTTP__LISTEN": f"127.0.0.1:{self._ports['7410']}",
            "STEPWIRE_URL": f"http://127.0.0.1:{self._ports['7410']}",
            **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
            **{name: self._with_ports(value) for name, value in (more_environ or {}).items()},
        }
        self._shell = _Shell(directory, self._environ, command_bound_s)
        self._terminals: dict[str, _Terminal] = {}

    def close(self) -> None:
        """End terminals in reverse order: handlers before the broker, as a reader would."""
        for terminal in reversed(self._terminals.values()):
            terminal.close()

    def read(self, text: str) -> None:
        for block in blocks(text):
            try:
                self.do(block)
            except Exception as error:
                raise Wrong(f"line {block.line}: {error}") from error

    def do(self, block: Block) -> None:
        text = self._with_ports(block.text)
        match block.word, block.language:
            case ("not run", _):
                return
            case ("not run, parsed", _):
                syntax.check(block.language, block.text)
            case ("in the clone", _):
                shutil.copytree(REPOSITORY / block.rest, self._shell.directory() / block.rest)
            case ("file", _):
                path = self._shell.directory() / block.rest
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                path.chmod(0o600)
            case ("terminal", "console"):
                ((command, expected),) = _commands(text)
                self._open(block.rest, command, expected)
            case ("seen in", _):
                self._terminals[block.rest].wait_for(text.splitlines())
            case ("", "sh"):
                code, output = self._shell.run(text)
                if code != 0:
                    raise Wrong(f"the exit code is {code}\n{output}")
            case ("", "console"):
                for command, expected in _commands(text):
                    self._console(command, expected)
            case ("", "python"):
                self._console(f"python - <<'END_OF_PYTHON'\n{text}END_OF_PYTHON", [])
            case ("", "yaml"):
                _check_yaml(text)
            case ("", _):
                return
            case word, language:
                raise Wrong(f"a block of {language} cannot be `{word}: {block.rest}`")

    def _open(self, name: str, command: str, expected: list[str]) -> None:
        self._terminals[name] = terminal = _Terminal(command, self._shell.directory(), self._environ)
        terminal.wait_for(expected)

    def _console(self, command: str, expected: list[str]) -> None:
        if command.endswith(" &"):
            self._open(command, command.removesuffix(" &"), expected)
            return
        expected_code = 0
        if expected and (exit_line := _EXIT.match(expected[-1])):
            expected, expected_code = expected[:-1], int(exit_line[1])
        code, output = self._shell.run(command)
        if code != expected_code:
            raise Wrong(f"$ {command}\nthe exit code is {code}, not {expected_code}\n{output}")
        missing = first_missing(expected, output)
        if missing is not None:
            raise Wrong(f"$ {command}\nits output has no line like\n  {missing}\nafter the earlier ones:\n{output}")

    def _with_ports(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"(?<=[: ]){port}\b", free, text)
        return text


class _Shell:
    """Runs each block in a bash of its own, with the directory and the variables that the previous one left."""

    def __init__(self, directory: Path, environ: Mapping[str, str], command_bound_s: float) -> None:
        self._environ = {**environ, "LEFT": str(directory / ".left")}
        self._cwd = directory
        self._bound_s = command_bound_s

    def directory(self) -> Path:
        return self._cwd

    def run(self, command: str) -> tuple[int, str]:
        """Run a command until its first failing line. Return the exit code and all output."""
        left = Path(self._environ["LEFT"])
        script = f"""
            [ ! -f "$LEFT" ] || . "$LEFT"
            trap 'export -p > "$LEFT"; pwd > "$LEFT.directory"' EXIT
            set -ea
            eval {shlex.quote(command)}
        """
        with tempfile.TemporaryFile("w+") as output:  # not a pipe, which background processes would hold open
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-c", script],
                cwd=self._cwd,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(self._bound_s)
            except subprocess.TimeoutExpired:
                raise Wrong(f"$ {command}\nhas not ended in {self._bound_s:g} s\n{_all_of(output)}") from None
            finally:
                end_group(process)  # commands that keep running need a terminal block
            self._cwd = Path(left.with_name(".left.directory").read_text().rstrip("\n"))
            return code, _all_of(output)


class _Terminal:
    """A command that keeps running, and its output so far."""

    def __init__(self, command: str, directory: Path, environ: Mapping[str, str]) -> None:
        self._command = command
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", f"exec {command}" if "\n" not in command else command],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_for(self, expected: list[str]) -> None:
        until_s = time.monotonic() + SEEN_BOUND_S
        while (missing := first_missing(expected, output := _all_of(self._output))) is not None:
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise Wrong(f"$ {self._command}\nhas not printed\n  {missing}\nbut:\n{output}")
            time.sleep(0.02)

    def close(self) -> None:
        end_group(self._process)
        self._output.close()


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process group, with SIGTERM first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            continue
        break
    process.wait()


def first_missing(expected: list[str], output: str) -> str | None:
    """Return the first expected line that is missing, in order, or None."""
    lines = iter(output.splitlines())
    for line in expected:
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(_loosely(line))
        if not any(pattern.fullmatch(" ".join(printed.split())) for printed in lines):
            return line
    return None


def _loosely(line: str) -> str:
    """Return a pattern for a line: numbers and spaces may differ, and `…` matches anything."""
    pattern = re.escape(" ".join(line.split()))
    pattern = re.sub(r"[0-9]+", "[0-9]+", pattern)
    return pattern.replace("…", ".*")


def _commands(text: str) -> list[tuple[str, list[str]]]:
    """Return each command, which may continue after a final \\, with its expected lines."""
    commands: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ ") and not goes_on:
            commands.append((line[2:], []))
        elif goes_on:
            command, expected = commands.pop()
            commands.append((f"{command}\n{line.removeprefix('> ')}", expected))
        elif commands:
            commands[-1][1].append(line)
        else:
            raise Wrong(f"a console block begins with `$ `, not with {line!r}")
        goes_on = commands[-1][0].endswith("\\")
    return commands


def _check_yaml(text: str) -> None:
    """Check a block of YAML: a workflow or a configuration."""
    if "steps" in (yaml.safe_load(text) or {}):
        read_workflow(read_document(text).value)
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stepwire.yaml")
        path.write_text(text)
        path.chmod(0o600)
        loader.load(str(path), {}, {})


def _all_of(output: IO[str]) -> str:
    output.flush()
    return os.pread(output.fileno(), 1 << 22, 0).decode(errors="replace")


def _free_ports(count: int) -> list[str]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(listener.getsockname()[1]) for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
