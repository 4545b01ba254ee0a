"""The demo's processes: a broker, Python workers, and level-0 programs in the languages that are here.

Each is a child of ours with a group of its own, so that a Ctrl-C reaches us alone; each is ended by its number, and if
we are killed, the kernel (of Linux) ends it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec
from stepwire.client import Client

from stepwire_broker.end_with_parent import end_with_parent

from . import books

T = TypeVar("T")

HERE: Final = Path(__file__).parent
WORKFLOW: Final = HERE / "workflow.yaml"
START_S: Final = 20.0
STOP_S: Final = 3.0  # then it is killed
PROBE_S: Final = 10.0
LOOK_S: Final = 0.02
LAST_WORDS_CHARACTERS: Final = 1_500
SLOTS: Final = {"shop": "24", "payments": "8"}  # either worker could do it all, so what a killed one did is not queued


class DemoFailed(Exception):
    """The demo cannot go on, or what it shows is not so. The message says what, and where to look."""


class Language(NamedTuple):
    """How a level-0 program of this language is run, how one sees whether it can be, and how it gets there."""

    name: str
    command: tuple[str, ...]
    probe: tuple[str, ...]
    install: str


LANGUAGES: Final = (
    Language("python", (sys.executable, str(HERE / "level0.py")), (), ""),
    Language(
        "ruby",
        ("ruby", str(HERE / "level0.rb")),
        ("ruby", "-e", "require 'ffi-rzmq'; require 'json'"),
        "apt-get install ruby-ffi-rzmq",
    ),
    Language(
        "node",
        ("node", str(HERE / "level0.cjs")),
        ("node", "-e", "require(require.resolve('zeromq', {paths: [process.cwd()]}))"),
        "npm install zeromq",
    ),
)


class Shop:
    """`with Shop(directory) as shop`: whatever it started is gone afterwards. The directory stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._endpoints: dict[str, str] = {}
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        for name in ("", books.LEDGERS, "logs"):
            (self.directory / name).mkdir(mode=0o700, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        (self.directory / books.BANK_IS_SLOW).unlink(missing_ok=True)
        self._end_all()

    # -- processes ----------------------------------------------------------------------------------------------------

    def next_run(self) -> int:
        """Which run this is, in this directory. The ledgers of the last one are put aside."""
        file = self.directory / "run"
        number = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
        ledgers = self.directory / books.LEDGERS
        if any(ledgers.iterdir()):
            ledgers.rename(self.directory / f"{books.LEDGERS}-of-run-{number - 1}")
            ledgers.mkdir(mode=0o700)
        file.write_text(f"{number}\n", encoding="ascii")
        return number

    def open(self) -> Client:
        """Start the broker; ready when this is over."""
        settings = ["--set", "http.listen=127.0.0.1:0"]
        command = [sys.executable, "-m", "stepwire", "serve", "-o", "json", *settings]
        broker = self._start("broker", command, {}, stdout=subprocess.PIPE)
        assert broker.stdout is not None
        line = broker.stdout.readline()
        if not line:
            raise DemoFailed(f"the broker did not start: {self._last_words('broker')}")
        facts: dict[str, Any] = msgspec.json.decode(line)
        self.url = facts["http"]
        self._endpoints = {"STEPWIRE_STEPS": facts["steps"], "STEPWIRE_RESULTS": facts["results"]}
        client = Client(self.url, token_file=self.directory / facts["token_file"])
        self._clients.append(client)
        return client

    def start_worker(self, name: str, offer: str) -> int:
        command = [sys.executable, "-m", f"{__package__}.worker", offer]
        return self._start(name, command, {"STEPWIRE_NAME": name, "STEPWIRE_SLOTS": SLOTS[offer]}).pid

    def start_level0(self, language: Language) -> int:
        return self._start(f"level0-{language.name}", language.command, {}).pid

    def languages(self) -> tuple[list[Language], list[Language]]:
        """Those whose level-0 program runs here, and those that miss something."""
        probes = {
            language: subprocess.Popen(
                language.probe,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for language in LANGUAGES
            if language.probe and shutil.which(language.probe[0])
        }
        here: list[Language] = []
        missing: list[Language] = []
        for language in LANGUAGES:
            is_here = not language.probe or (language in probes and _succeeds(probes[language]))
            (here if is_here else missing).append(language)
        return here, missing

    def leave_to_play_with(self, languages: Sequence[Language], order: Mapping[str, Any]) -> None:
        """A Procfile for `stepwire dev` with the same programs, and an order to submit."""
        commands = {offer: f"python -m {__package__}.worker {offer}" for offer in SLOTS}
        commands |= {f"level0-{language.name}": shlex.join(language.command) for language in languages}
        lines = (f"{name}: {command}\n" for name, command in commands.items())
        (self.directory / "Procfile").write_text("".join(lines), encoding="utf-8")
        (self.directory / "order.json").write_bytes(msgspec.json.format(msgspec.json.encode(order)) + b"\n")

    def kill(self, name: str) -> int:
        """SIGKILL: it gets no chance to say anything. When, in nanoseconds of the wall clock."""
        process = self._running.pop(name)
        at_ns = time.time_ns()
        process.kill()
        process.wait()
        return at_ns

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def until(self, look: Callable[[], T | None], what: str, bound_s: float = START_S) -> T:
        """The first answer that is one. If any of our processes ends meanwhile, that is said instead of waiting."""
        until_s = time.monotonic() + bound_s
        while True:
            found = look()
            if found is not None:
                return found
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise DemoFailed(f"{name} has ended: {self._last_words(name)}")
            if time.monotonic() > until_s:
                raise DemoFailed(f"not within {bound_s:g} s: {what}; see {self.directory / 'logs'}")
            time.sleep(LOOK_S)

    def until_connected(self, client: Client, *names: str) -> None:
        def look() -> bool | None:
            connected = {one["worker"].partition(":")[0] for one in client.workers()["workers"]}
            return set(names) <= connected or None

        self.until(look, f"{', '.join(names)} connected")

    def _start(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], stdout: int | None = None
    ) -> "subprocess.Popen[bytes]":
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**_environ(), **self._endpoints, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent(),
            )
        self._running[name] = process
        return process

    def _end_all(self) -> None:
        """Workers first, while the broker still takes their results. What does not end in time is killed."""
        for names in ([name for name in self._running if name != "broker"], ["broker"]):
            ending = [self._running.pop(name) for name in names if name in self._running]
            for process in ending:
                process.terminate()
            until_s = time.monotonic() + STOP_S
            for process in ending:
                try:
                    process.wait(max(0.0, until_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _last_words(self, name: str) -> str:
        """Of its log, which begins anew with each process; what the broker says of its own end is in its last line."""
        text = self._log(name).read_text(encoding="utf-8", errors="replace").strip()
        try:
            return str(msgspec.json.decode(text.rpartition("\n")[2])["error"]["detail"])
        except (msgspec.DecodeError, TypeError, KeyError):
            return text[-LAST_WORDS_CHARACTERS:] or f"it said nothing; see {self._log(name)}"

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def _succeeds(probe: "subprocess.Popen[bytes]") -> bool:
    try:
        return probe.wait(PROBE_S) == 0
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return False


def _environ() -> dict[str, str]:
    """Without the user's own settings: the demo is the same everywhere."""
    return {k: v for k, v in os.environ.items() if not k.startswith("STEPWIRE_") and k != "DATABASE_URL"}
