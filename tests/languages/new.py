"""`stepwire new --lang LANG`, then the commands that it prints, then `stepwire dev` and a task, in an empty directory.

    python -m tests.languages.new go

Prints the seconds of each part. Everything that was started has ended when this program ends.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from stepwire_broker.cli.project_languages import LANGUAGES

from tests.system.harness import Stuck, eventually

BUILD_BOUND_S: Final = 420.0
COMMAND_BOUND_S: Final = 60.0
READY_BOUND_S: Final = 60.0
WORKER_BOUND_S: Final = 240.0  # the Procfile of a compiled language builds the worker
END_BOUND_S: Final = 60.0
STEPWIRE: Final = (sys.executable, "-m", "stepwire")
DEV: Final = " && stepwire dev"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lang", choices=LANGUAGES)
    lang = parser.parse_args().lang
    home = Path(tempfile.mkdtemp(prefix="sw-new-"))
    try:
        Project(home, lang).follow()
    finally:
        shutil.rmtree(home, ignore_errors=True)


class Project:
    """A project in a new directory, and the commands of a user who follows what `stepwire new` prints."""

    def __init__(self, home: Path, lang: str) -> None:
        self._lang = lang
        self._home = home
        self._directory = home / "my-shop"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPWIRE_")}
        path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
        self._environ = kept | {"PATH": path}
        # Other brokers of this machine may have the usual ports. Commands find the address in .stepwire/url.
        self._listeners = {"STEPWIRE_HTTP__LISTEN": "127.0.0.1:0"}
        if lang == "java":
            self._listeners |= dict.fromkeys(("STEPWIRE_BUS__STEPS", "STEPWIRE_BUS__RESULTS"), "tcp://127.0.0.1:0")

    def follow(self) -> None:
        began = time.monotonic()
        next_line = self._run(*STEPWIRE, "new", "my-shop", "--lang", self._lang, directory=self._home).stderr.strip()
        if not (next_line.startswith("next: cd my-shop") and next_line.endswith(DEV)):
            fail(f"`stepwire new` printed {next_line!r}")
        build = next_line.removeprefix("next: ").removesuffix(DEV)
        self._run("sh", "-c", build, directory=self._home, bound_s=BUILD_BOUND_S)
        built = time.monotonic()
        with self._dev():
            self._run(*STEPWIRE, "workflow", "apply", "workflow.yaml")
            submit = ("task", "submit", "my_shop", "--context", '{"name": "Ada"}', "--wait", "--json")
            task = json.loads(self._run(*STEPWIRE, *submit, bound_s=WORKER_BOUND_S).stdout)
            if task["result"] != {"greet": {"greeting": "Hello, Ada!"}}:
                fail(f"the task ended with {task}")
            completed = time.monotonic()
        ended = time.monotonic()
        print(
            f"{self._lang}: created, built and tested in {built - began:.1f} s, "
            f"started, and completed a task in {completed - built:.1f} s, "
            f"stopped in {ended - completed:.1f} s: {ended - began:.1f} s"
        )

    def _run(
        self, *command: str, directory: Path | None = None, bound_s: float = COMMAND_BOUND_S
    ) -> "subprocess.CompletedProcess[str]":
        process = subprocess.Popen(
            command,
            cwd=directory or self._directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=bound_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            fail(f"{' '.join(command)} did not end within {bound_s:g} s:\n{out}{err}{self._log()}")
        if process.returncode != 0:
            fail(f"{' '.join(command)} ended with {process.returncode}:\n{out}{err}{self._log()}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    @contextmanager
    def _dev(self) -> Iterator[None]:
        """`stepwire dev`, ended by Ctrl-C."""
        with (self._home / "dev.log").open("wb") as log:
            dev = subprocess.Popen(
                [*STEPWIRE, "dev"],
                cwd=self._directory,
                env=self._environ | self._listeners,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(lambda: "broker | ready: " in self._log() or dev.poll() is not None, "ready", READY_BOUND_S)
            yield
            dev.send_signal(signal.SIGINT)
            if dev.wait(END_BOUND_S) != 0 or "dev    | all processes have ended" not in self._log():
                fail(f"`stepwire dev` ended with {dev.returncode}:\n{self._log()}")
            if "worker | ended with exit code 0" not in self._log():
                fail(f"the worker did not drain:\n{self._log()}")
        except (Stuck, subprocess.TimeoutExpired) as late:
            fail(f"{late}\n{self._log()}")
        finally:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second one kills all its processes
                if dev.poll() is None:
                    dev.send_signal(number)
                    with_bound(dev, 10.0)

    def _log(self) -> str:
        log = self._home / "dev.log"
        return log.read_text(errors="replace") if log.exists() else ""


def with_bound(process: "subprocess.Popen[bytes]", bound_s: float) -> None:
    try:
        process.wait(bound_s)
    except subprocess.TimeoutExpired:
        pass


def fail(text: str) -> NoReturn:
    raise SystemExit(text)


if __name__ == "__main__":
    main()
