"""Two commands, with a stopwatch: `python -m tests.system.two_commands [python | go | …]`.

From an empty directory to a worker in another network namespace over CURVE, as docs/operating/security.md describes it:
the commands, the configuration and the worker are those of the page, with the address of the broker's namespace in the
place of 127.0.0.1. For other languages than Python, the worker is the conformance worker of the SDK (`check.sh build`),
and the principal has its name. Ends with a task that the worker has run, and with `stepwire doctor`.

Needs root, for the two namespaces and the wire between them. Both are removed at the end.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.docs.pages import blocks

from .harness import REPOSITORY, eventually

PAGE: Final = REPOSITORY / "docs/operating/security.md"
BROKER, WORKER = "10.77.41.1", "10.77.41.2"
BOUND_S: Final = 60.0
COMMANDS: Final = ("stepwire keys init", "stepwire keys new shop")
ALLOWED: Final = ("user", "SQLite")  # warnings about this machine: root runs the broker, and its SQLite is old


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.two_commands", description=__doc__.split("\n\n")[0])
    parser.add_argument("languages", nargs="*", default=["python", "go"])
    languages = parser.parse_args().languages
    if os.geteuid() != 0:
        parser.error("this needs root, for network namespaces")
    for language in languages:
        print(f"{language}:")
        for step, seconds in run(language):
            print(f"  {seconds:6.1f} s  {step}", flush=True)
    return 0


def run(language: str) -> list[tuple[str, float]]:
    """Follow the page. Returns the steps with their seconds; the last one is the sum. Raises AssertionError."""
    with namespaces() as (inside, outside), tempfile.TemporaryDirectory(prefix="sw-two-") as directory:
        there = Follower(Path(directory), inside, outside, "shop" if language == "python" else "conform")
        try:
            there.follow(language)
        finally:
            there.end()
        return [*there.steps, ("in all", sum(seconds for _, seconds in there.steps))]


class Follower:
    """Follows the page in one directory for the broker and one for the worker, as on two machines."""

    def __init__(self, directory: Path, inside: str, outside: str, name: str) -> None:
        self.steps: list[tuple[str, float]] = []
        self._here, self._far = directory / "broker", directory / "worker"
        for each in (self._here, self._far):
            each.mkdir(mode=0o700)
        self._inside, self._outside = inside, outside
        self._name = name
        self._blocks = blocks(PAGE.read_text())
        self._processes: list[subprocess.Popen[str]] = []

    def follow(self, language: str) -> None:
        for command in COMMANDS:
            with self._timed(command):
                self._call(self._command(command))
        with self._timed("stepwire serve"):
            (self._here / "stepwire.yaml").write_text(self._file("stepwire.yaml"))
            self._start(self._inside, self._here, ["stepwire", "serve"], {}, "is ready")
        key_file = f"{self._name}.key"
        with self._timed(f"copy {key_file}, and start the worker"):
            (self._far / key_file).touch(mode=0o600)
            (self._far / key_file).write_bytes((self._here / key_file).read_bytes())
            environ, command = self._worker(language)
            self._start(self._outside, self._far, command, environ, "connected to broker b1")
        with self._timed("run a task"):
            self._run_a_task(language)
        with self._timed("stepwire doctor"):
            self._doctor()

    def end(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _command(self, begin: str) -> str:
        """The command of the page that begins so, with the name of this worker."""
        lines = [line for block in self._blocks if block.language == "console" for line in block.text.splitlines()]
        found = next(line.removeprefix("$ ") for line in lines if line.startswith(f"$ {begin}"))
        return found if self._name == "shop" else found.replace("shop", self._name)

    def _file(self, name: str) -> str:
        """The file of the page, with the address of the broker's namespace."""
        text = next(block.text for block in self._blocks if block.word == "file" and block.rest == name)
        return text.replace("127.0.0.1", BROKER)

    def _worker(self, language: str) -> tuple[dict[str, str], list[str]]:
        """The variables and the program of the page's worker, or of another language's SDK."""
        text = next(block.text for block in self._blocks if block.word == "terminal" and block.rest == "shop")
        words = shlex.split(text.replace("\\\n", " ").splitlines()[0].removeprefix("$ env "))
        environ = dict(word.split("=", 1) for word in words if "=" in word)
        environ = {
            name: value.replace("127.0.0.1", BROKER).replace("shop", self._name) for name, value in environ.items()
        }
        if language == "python":
            (self._far / "worker.py").write_text(self._file("worker.py"))
            return environ, [sys.executable, "worker.py"]
        return environ, [str(REPOSITORY / "handlers_sdk" / language / "bin/conform")]

    def _run_a_task(self, language: str) -> None:
        handler = "shop.pack" if language == "python" else "conform.echo"
        (self._here / "one.yaml").write_text(f"name: one\nsteps:\n  - {{name: only, handler_class: {handler}}}\n")
        self._call("stepwire workflow apply one.yaml")
        task = json.loads(self._call("stepwire task submit one -o json"))["task_id"]
        shown: dict[str, Any] = {}

        def is_completed() -> bool:
            shown.update(json.loads(self._call(f"stepwire task show {task} -o json")))
            return bool(shown["state"] == "completed")

        eventually(is_completed, "the task to complete", BOUND_S)

    def _doctor(self) -> None:
        findings = json.loads(self._call("stepwire doctor -o json"))
        bad = [each for each in findings if each["state"] in ("red", "warning") and each["about"] not in ALLOWED]
        assert not bad, bad

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.steps.append((step, time.monotonic() - began_s))

    def _call(self, command: str) -> str:
        words = ["ip", "netns", "exec", self._inside, *_program(shlex.split(command))]
        done = subprocess.run(
            words, cwd=self._here, env=self._environ(), capture_output=True, text=True, timeout=BOUND_S
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, namespace: str, directory: Path, command: list[str], environ: dict[str, str], sign: str) -> None:
        """Start a program, and wait until it has written these words."""
        log = directory / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *_program(command)],
                cwd=directory,
                env={**self._environ(), **environ},
                stdout=file,
                stderr=file,
                text=True,
            )
        self._processes.append(process)

        def is_there() -> bool:
            assert process.poll() is None, f"{command[-1]} has ended:\n{log.read_text()}"
            return sign in log.read_text()

        eventually(is_there, f"{sign!r} of {command[-1]}", BOUND_S)

    def _environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        return {**kept, "HOME": str(self._here)}


def _program(words: list[str]) -> list[str]:
    """The command, with the `stepwire` of this environment."""
    return [sys.executable, "-m", "stepwire", *words[1:]] if words[0] == "stepwire" else words


@contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them; the first one has the address BROKER, the second one WORKER."""
    names = [f"sw-{role}-{os.getpid()}" for role in ("broker", "worker")]
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", names[1])
        for name, address in zip(names, (BROKER, WORKER), strict=True):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", "wire")
            for device in ("wire", "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield names[0], names[1]
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


if __name__ == "__main__":
    sys.exit(main())
