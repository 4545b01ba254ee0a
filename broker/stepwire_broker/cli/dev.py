"""`stepwire dev`: a broker and the handlers of a Procfile in one terminal, until Ctrl-C.

Each process has its own process group, so Ctrl-C reaches only `stepwire dev`. The command stops the handlers first,
while the broker still accepts their results, and the broker last. If `stepwire dev` is killed, the Linux kernel sends
TERM to the broker and to each handler that is a single command.
"""

import asyncio
import itertools
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec

from stepwire_broker.end_with_parent import end_with_parent

from . import children, config_commands, output
from .failure import Exit, leave, usage
from .json_values import read_text
from .options import Options, StepwireCommand

PROCFILE: Final = "Procfile"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
RESTART_MS: Final = 500  # doubled for each crash in a row
RESTART_MAX_MS: Final = 10_000
SETTLED_S: Final = 10.0  # a process that ran this long is restarted after RESTART_MS again
STOP_S: Final = 30.0  # a process that has not ended by then is killed
STOP_WITHOUT_BROKER_S: Final = 3.0  # the same for handlers whose results no broker can accept
LINE_BYTES_MAX: Final = 64 * 1024
COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")

_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_NOT_PLAIN: Final = re.compile(r"[;&|()`\n]|^\s*(if|for|while|case|cd|exit|set|trap|until|\{|!)\b")


class Entry(NamedTuple):
    name: str
    command: str


@click.command(cls=StepwireCommand)
@click.option(
    "--procfile",
    metavar="FILE",
    help="File with lines of `name: command`. [./Procfile, if it exists]",
    type=click.Path(),
)
@click.pass_obj
def dev(options: Options, procfile: str | None) -> None:
    """Run a broker and handlers, prefixing each output line with the process name.

    A process that ends is restarted, after a pause that grows with each crash in a row. Ctrl-C stops all processes; a
    second Ctrl-C kills them.
    """
    entries = _entries(procfile)
    leave(asyncio.run(_Processes(options, entries, procfile or PROCFILE).run()))


def read_procfile(text: str, where: str) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = (part.strip() for part in line.partition(":"))
        if not (colon and command and NAME.fullmatch(name)):
            usage(f"{where}, line {number}: use a form like `worker: python worker.py`")
        if name in ("broker", "dev"):
            usage(f"{where}, line {number}: the name {name} is reserved; give the process another name")
        if name in entries:
            usage(f"{where}, line {number}: the name {name} is taken; give each process its own name")
        entries[name] = Entry(name, command)
    return list(entries.values())


def _entries(procfile: str | None) -> list[Entry]:
    if procfile is None and not Path(PROCFILE).exists():
        return []
    file = procfile or PROCFILE
    return read_procfile(read_text(file), file)


def _without_processes(procfile: str) -> str:
    """Why no handler runs, and what to do."""
    if Path(procfile).exists():
        return f"{procfile} names no process; add a line like `worker: python worker.py`"
    return f"there is no {PROCFILE}; `stepwire new NAME` creates one"


class _Pauses:
    """The pauses before restarts of one process. Crashes in a row double them."""

    def __init__(self) -> None:
        self._pause_ms = RESTART_MS

    def next_s(self, lived_s: float) -> float:
        if lived_s > SETTLED_S:
            self._pause_ms = RESTART_MS
        pause_ms, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, RESTART_MAX_MS)
        return pause_ms / 1000


class _Broker(NamedTuple):
    """One process of the broker. `facts` are those of its first line; None if it ended without one."""

    process: asyncio.subprocess.Process
    facts: dict[str, Any] | None
    started_s: float
    reading: "asyncio.Future[Any]"

    async def end(self) -> int:
        """Wait for the end of the process and of its output. Returns the exit code."""
        await self.reading
        return await self.process.wait()


class _Processes:
    """The broker and the handlers: starts them, prints their output, and stops them."""

    def __init__(self, options: Options, entries: list[Entry], procfile: str) -> None:
        self._options = options
        self._procfile = procfile
        self._entries = entries
        self._width = max(len(name) for name in ("broker", *(entry.name for entry in entries)))
        self._is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        names = ("broker", *(entry.name for entry in entries))
        self._colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._broker_is_gone = asyncio.Event()

    async def run(self) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop_signal)
        broker = await self._start_broker()
        if broker.facts is None:
            code = await broker.end()
            if self._stopping.is_set():
                return Exit.OK
            self._print("dev", f"the broker could not start (exit code {code})")
            return Exit.USAGE if code == Exit.USAGE else Exit.FAILURE
        if not self._entries:
            self._print("dev", f"only the broker runs: {_without_processes(self._procfile)}")
        facts = broker.facts
        pass_env = config_commands.load(self._options).settings.handlers.pass_env
        environ = children.handler_environ(
            facts["steps"], facts["results"], facts["http"], facts["token_file"], pass_env
        )
        keeping = asyncio.ensure_future(self._keep_broker(broker, urlsplit(facts["http"]).netloc))
        handlers = [asyncio.ensure_future(self._keep_running(entry, environ)) for entry in self._entries]
        await self._stopping.wait()
        await asyncio.gather(
            *(self._stop_handler(each.name, ended) for each, ended in zip(self._entries, handlers, strict=True))
        )
        await self._stop("broker", keeping, STOP_S)
        self._print("dev", "all processes have ended")
        return Exit.OK

    async def _keep_broker(self, broker: _Broker, address: str) -> None:
        """Start the broker again whenever it ends, at the same HTTP address. Handlers connect again by themselves."""
        pauses = _Pauses()
        while True:
            code = await broker.end()
            self._broker_is_gone.set()
            if self._stopping.is_set():
                return
            await self._pause("broker", code, pauses.next_s(time.monotonic() - broker.started_s))
            if self._stopping.is_set():
                return
            broker = await self._start_broker("--listen", address)
            if broker.facts is not None:
                self._broker_is_gone.clear()

    async def _start_broker(self, *words: str) -> _Broker:
        started_s = time.monotonic()
        process = await self._start("broker", *self._broker_command(), *words, env=dict(os.environ))
        errors = asyncio.ensure_future(self._pump("broker", process.stderr))
        facts = await self._ready(process)
        if facts is not None:
            text = f"ready: {facts['http']}, state in {facts['database']}, token in {facts['token_file']}"
            self._print("broker", text)
        return _Broker(process, facts, started_s, asyncio.gather(errors, self._pump("broker", process.stdout)))

    async def _keep_running(self, entry: Entry, environ: dict[str, str]) -> None:
        """Start the process, and restart it whenever it ends."""
        pauses = _Pauses()
        while not self._stopping.is_set():
            started_s = time.monotonic()
            process = await self._start(
                entry.name, "/bin/sh", "-c", _for_shell(entry.command), env={"STEPWIRE_NAME": entry.name, **environ}
            )
            self._print(entry.name, f"started, process {process.pid}")
            await asyncio.gather(self._pump(entry.name, process.stdout), self._pump(entry.name, process.stderr))
            code = await process.wait()
            if self._stopping.is_set():
                self._print(entry.name, children.end_text(code))
                return
            lived_s = time.monotonic() - started_s
            if code == 0 and lived_s < SETTLED_S:
                self._print(
                    entry.name, "the process ended soon and without an error: did its program call worker.run()?"
                )
            await self._pause(entry.name, code, pauses.next_s(lived_s))

    async def _pause(self, name: str, code: int, pause_s: float) -> None:
        """Print how the process ended, and wait before its restart."""
        self._print(name, f"{children.end_text(code)}; restarting in {pause_s:g} s")
        try:
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        except TimeoutError:
            pass

    async def _start(self, name: str, *command: str, env: dict[str, str]) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**env, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
        self._running[name] = process
        if self._stopping.is_set():
            children.send_signal(process, signal.SIGTERM)
        return process

    async def _stop_handler(self, name: str, ended: "asyncio.Future[None]") -> None:
        """Stop the process. It may wait for acks of its results, but not for those of a broker that has ended."""
        gone = asyncio.ensure_future(self._broker_is_gone.wait())
        stopping = asyncio.ensure_future(self._stop(name, ended, STOP_S))
        await asyncio.wait((stopping, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not stopping.done():
            await self._stop(name, ended, STOP_WITHOUT_BROKER_S)
        await stopping

    async def _stop(self, name: str, ended: "asyncio.Future[None]", wait_s: float) -> None:
        """Send TERM to the process group; kill it if it has not ended in time."""
        process = self._running.get(name)
        if process is not None:
            children.send_signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(ended), wait_s)
        except TimeoutError:
            self._print(name, f"killed: it did not end within {wait_s:g} s")
            if process is not None:
                children.send_signal(process, signal.SIGKILL)
            await ended

    def _on_stop_signal(self) -> None:
        """Stop on the first signal; kill everything on the second."""
        if not self._stopping.is_set():
            self._print("dev", "stopping; press Ctrl-C again to kill everything")
            self._stopping.set()
            if "broker" in self._running and len(self._running) == 1:
                children.send_signal(self._running["broker"], signal.SIGTERM)
            return
        for process in self._running.values():
            children.send_signal(process, signal.SIGKILL)

    async def _ready(self, broker: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """The facts of the broker's first line; None if it ended without one."""
        assert broker.stdout is not None
        line = await broker.stdout.readline()
        if not line:
            return None
        facts: dict[str, Any] = msgspec.json.decode(line)
        return facts

    async def _pump(self, name: str, stream: asyncio.StreamReader | None) -> None:
        """Print the stream line by line, until the last process that writes to it has ended."""
        assert stream is not None
        rest = b""
        while chunk := await stream.read(LINE_BYTES_MAX):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                shown = _readable(text) if name == "broker" else text
                if shown is not None:
                    self._print(name, shown)
            if len(rest) >= LINE_BYTES_MAX:
                self._print(name, rest.decode(errors="replace"))
                rest = b""
        if rest:
            self._print(name, rest.decode(errors="replace"))

    def _print(self, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}} | "
        if self._is_coloured:
            prefix = click.style(prefix, fg=self._colours.get(name, "white"), bold=name == "dev")
        sys.stdout.write(f"{prefix}{text}\n")
        sys.stdout.flush()

    def _broker_command(self) -> list[str]:
        command = [sys.executable, "-m", "stepwire", "serve", "-o", "json"]
        if self._options.config_file:
            command += ["-c", self._options.config_file]
        flag = "-v" if self._options.verbosity > 0 else "-q"
        return [*command, *[flag] * abs(self._options.verbosity)]


def _for_shell(command: str) -> str:
    """Replace the shell by a plain command, so that the command receives signals and its exit code is visible."""
    is_plain = _NOT_PLAIN.search(_QUOTED.sub("''", command)) is None and "=" not in command.split()[0]
    return f"exec {command}" if is_plain else command


def _readable(line: str) -> str | None:
    """A line of the broker's JSON log as text. None for its start, which the line `ready` reports."""
    try:
        facts = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return line
    for name in ("timestamp", "level"):
        facts.pop(name, None)
    event = str(facts.pop("event", ""))
    if event == "broker_started":
        return None
    if not event and isinstance(error := facts.get("error"), dict):  # the last line of a broker that cannot run
        return ": ".join(str(error[name]) for name in ("detail", "hint") if error.get(name))
    shown = (f"{name}={value if isinstance(value, str) else output.shortened(value)}" for name, value in facts.items())
    return " ".join((event.replace("_", " "), *shown))
