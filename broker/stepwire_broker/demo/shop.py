"""The demo's processes: a broker, Python workers, and level-0 programs in the installed languages.

Each process is a child with its own session, so that Ctrl-C reaches only the demo. The demo ends each child by its
process id. If the demo is killed, the Linux kernel ends the children.
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
from stepwire_broker.errors import BrokerError

from . import books, sdks

T = TypeVar("T")

HERE: Final = Path(__file__).parent
WORKFLOW: Final = HERE / "workflow.yaml"
START_S: Final = 20.0
SDK_START_S: Final = 10.0  # the worker of an SDK that has not connected by then does not take part
STOP_S: Final = 3.0  # a process that has not ended by then is killed
PROBE_S: Final = 10.0
POLL_S: Final = 0.02
LOG_TAIL_CHARACTERS: Final = 1_500
SLOTS: Final = {
    "shop": "24",
    "payments": "8",
}  # one worker has enough slots for all steps, so the steps of a killed worker start at once on the other


class DemoFailed(BrokerError):
    """The demo cannot continue. The message names the reason and the log to read."""


class Language(NamedTuple):
    """The commands for one language: run its level-0 program, test for its ZeroMQ binding, install the binding."""

    name: str
    command: tuple[str, ...]
    probe: tuple[str, ...]
    install: str


# The handlers of the level-0 programs. A program cannot declare its handlers, so the broker's configuration names them.
CONFIGURATION: Final = """\
# The configuration of this demo's broker.
bus:
  level0:
    handlers: [lists.price, lists.invoice]  # that the programs without an SDK have
"""
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
    """The demo's processes and its directory. `with Shop(directory)` ends all processes, and keeps the directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tried: dict[str, subprocess.Popen[bytes]] = {}  # workers of SDKs, which may end at once
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
        """The number of this run in the directory. The ledgers of the last run are renamed."""
        file = self.directory / "run"
        number = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
        ledgers = self.directory / books.LEDGERS
        if any(ledgers.iterdir()):
            ledgers.rename(self.directory / f"{books.LEDGERS}-of-run-{number - 1}")
            ledgers.mkdir(mode=0o700)
        file.write_text(f"{number}\n", encoding="ascii")
        return number

    def open(self) -> Client:
        """Write the broker's configuration, start the broker and wait until it is ready."""
        (self.directory / "stepwire.yaml").write_text(CONFIGURATION, encoding="utf-8")
        settings = ["--set", "http.listen=127.0.0.1:0"]
        command = [sys.executable, "-m", "stepwire", "serve", "-o", "json", *settings]
        broker = self._start("broker", command, {}, stdout=subprocess.PIPE)
        assert broker.stdout is not None
        line = broker.stdout.readline()
        if not line:
            raise DemoFailed(f"the broker did not start: {self._log_tail('broker')}")
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

    def try_sdks(self, programs: Mapping[str, Path]) -> None:
        """Start the worker of each SDK. `until_sdks_are_known` returns those that are built."""
        for language, program in programs.items():
            self._start(language, [str(program)], sdks.environ(language))
            self._tried[language] = self._running.pop(language)

    def until_sdks_are_known(self, client: Client) -> list[str]:
        """Wait until each worker of an SDK has connected or ended. Returns the languages of those that have connected;
        the others end here."""
        until_s = time.monotonic() + SDK_START_S
        connected: set[str] = set()
        while self._tried and time.monotonic() < until_s:
            connected = {one["worker"].partition(":")[0] for one in client.workers()["workers"]}
            if all(name in connected or process.poll() is not None for name, process in self._tried.items()):
                break
            time.sleep(POLL_S)
        ready = [name for name, process in self._tried.items() if name in connected and process.poll() is None]
        self._running |= {name: self._tried.pop(name) for name in ready}
        _end(list(self._tried.values()))
        self._tried.clear()
        return ready

    def languages(self) -> tuple[list[Language], list[Language]]:
        """The languages whose level-0 program can run here, and the languages that are not installed completely."""
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
        installed: list[Language] = []
        missing: list[Language] = []
        for language in LANGUAGES:
            is_installed = not language.probe or (language in probes and _succeeds(probes[language]))
            (installed if is_installed else missing).append(language)
        return installed, missing

    def write_playground(self, languages: Sequence[Language], order: Mapping[str, Any]) -> None:
        """Write a Procfile for `stepwire dev` with the same programs, and an order to submit."""
        commands = {offer: f"python -m {__package__}.worker {offer}" for offer in SLOTS}
        commands |= {f"level0-{language.name}": shlex.join(language.command) for language in languages}
        lines = (f"{name}: {command}\n" for name, command in commands.items())
        (self.directory / "Procfile").write_text("".join(lines), encoding="utf-8")
        (self.directory / "order.json").write_bytes(msgspec.json.format(msgspec.json.encode(order)) + b"\n")

    def kill(self, name: str) -> int:
        """Send SIGKILL, which gives the process no time to report anything. Returns the wall clock in nanoseconds."""
        process = self._running.pop(name)
        at_ns = time.time_ns()
        process.kill()
        process.wait()
        return at_ns

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def until(self, probe: Callable[[], T | None], condition: str, timeout_s: float = START_S) -> T:
        """Poll until `probe` returns a value. Raises DemoFailed if a process of the demo ends, or after the timeout."""
        until_s = time.monotonic() + timeout_s
        while True:
            value = probe()
            if value is not None:
                return value
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise DemoFailed(f"{name} has ended: {self._log_tail(name)}")
            if time.monotonic() > until_s:
                raise DemoFailed(f"not within {timeout_s:g} s: {condition}; see {self.directory / 'logs'}")
            time.sleep(POLL_S)

    def until_connected(self, client: Client, *names: str) -> None:
        def are_connected() -> bool | None:
            connected = {one["worker"].partition(":")[0] for one in client.workers()["workers"]}
            return set(names) <= connected or None

        self.until(are_connected, f"{', '.join(names)} connected")

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
        """End the workers first, while the broker still accepts their results."""
        self._running |= self._tried
        for names in ([name for name in self._running if name != "broker"], ["broker"]):
            _end([self._running.pop(name) for name in names if name in self._running])

    def _log_tail(self, name: str) -> str:
        """The end of a process's log. For the broker, the error in the last line of its log."""
        text = self._log(name).read_text(encoding="utf-8", errors="replace").strip()
        try:
            return str(msgspec.json.decode(text.rpartition("\n")[2])["error"]["detail"])
        except (msgspec.DecodeError, TypeError, KeyError):
            return text[-LOG_TAIL_CHARACTERS:] or f"its log is empty: {self._log(name)}"

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End these processes. Those that have not ended in time are killed."""
    for process in processes:
        process.terminate()
    until_s = time.monotonic() + STOP_S
    for process in processes:
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _succeeds(probe: "subprocess.Popen[bytes]") -> bool:
    try:
        return probe.wait(PROBE_S) == 0
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return False


def _environ() -> dict[str, str]:
    """The environment without the user's settings, so that the demo is the same everywhere."""
    return {k: v for k, v in os.environ.items() if not k.startswith("STEPWIRE_") and k != "DATABASE_URL"}
