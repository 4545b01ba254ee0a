"""`stepwire dev`: a broker and the handlers of a Procfile in one terminal, until Ctrl-C.

Each process has a group of its own, so Ctrl-C reaches only us: handlers are told to stop first, while the broker still
takes their results, and the broker last. If we are killed, the kernel (of Linux) tells the broker, and each handler
that is a single command.
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

import click
import msgspec

from stepwire_broker.end_with_parent import end_with_parent

from . import children, output
from .failure import Exit, leave, usage
from .options import Options, StepwireCommand

PROCFILE: Final = "Procfile"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
RESTART_MS: Final = 500  # doubled for each death in a row
RESTART_MAX_MS: Final = 10_000
SETTLED_S: Final = 10.0  # who has lived so long begins anew
STOP_S: Final = 30.0  # then it is killed
LINE_BYTES_MAX: Final = 64 * 1024
COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")

_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_NOT_PLAIN: Final = re.compile(r"[;&|()`\n]|^\s*(if|for|while|case|cd|exit|set|trap|until|\{|!)\b")


class Entry(NamedTuple):
    name: str
    command: str


@click.command(cls=StepwireCommand)
@click.option(
    "--procfile", metavar="FILE", help="Lines of `name: command`. [Procfile, if there is one]", type=click.Path()
)
@click.pass_obj
def dev(options: Options, procfile: str | None) -> None:
    """Run a broker and handlers, each line of theirs behind its name. Ctrl-C ends all; what dies is started again."""
    entries = _entries(procfile)
    leave(asyncio.run(_Processes(options, entries).run()))


def read_procfile(text: str, where: str) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = (part.strip() for part in line.partition(":"))
        if not (colon and command and NAME.fullmatch(name)):
            usage(f"{where}, line {number}: it needs a form like `worker: python worker.py`")
        if name in (*entries, "broker", "dev"):
            usage(f"{where}, line {number}: the name {name} is taken; give each process one of its own")
        entries[name] = Entry(name, command)
    return list(entries.values())


def _entries(procfile: str | None) -> list[Entry]:
    path = Path(procfile or PROCFILE)
    if procfile is None and not path.exists():
        return []
    try:
        return read_procfile(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        usage(f"{path} cannot be read: {error}")


class _Processes:
    """The processes, and what is common to them: the terminal, and the end."""

    def __init__(self, options: Options, entries: list[Entry]) -> None:
        self._options = options
        self._entries = entries
        self._width = max(len(name) for name in ("broker", *(entry.name for entry in entries)))
        self._is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        names = ("broker", *(entry.name for entry in entries))
        self._colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked)
        broker = await self._start("broker", *self._broker_command(), env=dict(os.environ))
        reading = asyncio.ensure_future(self._pump("broker", broker.stderr))
        facts = await self._ready(broker)
        if facts is None:
            await reading
            code = await broker.wait()
            if self._stopping.is_set():
                return Exit.OK
            self._say("dev", f"the broker could not start (exit code {code})")
            return Exit.USAGE if code == Exit.USAGE else Exit.FAILURE
        self._say("broker", f"ready: {facts['http']}, state in {facts['database']}, token in {facts['token_file']}")
        if not self._entries:
            self._say("dev", f"there is no {PROCFILE}, so only the broker runs; `stepwire new NAME` makes one")
        environ = children.environ_of_handlers(facts["steps"], facts["results"], facts["http"], facts["token_file"])
        keeping = [asyncio.ensure_future(self._keep(entry, environ)) for entry in self._entries]
        ending = asyncio.ensure_future(broker.wait())
        asked = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ending, asked), return_when=asyncio.FIRST_COMPLETED)
        is_lost = ending.done() and not self._stopping.is_set()
        if is_lost:
            self._say("dev", f"the broker {children.ended(ending.result())}, so all ends")
            self._stopping.set()
        await asyncio.gather(*(self._stop(e.name, kept) for e, kept in zip(self._entries, keeping, strict=True)))
        await self._stop("broker", reading)
        asked.cancel()
        self._say("dev", "all have ended")
        return Exit.FAILURE if is_lost else Exit.OK

    async def _keep(self, entry: Entry, environ: dict[str, str]) -> None:
        """Start it, and again whenever it ends, more slowly the more often it does."""
        deaths = 0
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            process = await self._start(entry.name, "/bin/sh", "-c", _for_shell(entry.command), env=environ)
            self._say(entry.name, f"started, process {process.pid}")
            await asyncio.gather(self._pump(entry.name, process.stdout), self._pump(entry.name, process.stderr))
            code = await process.wait()
            if self._stopping.is_set():
                self._say(entry.name, children.ended(code))
                return
            deaths = 0 if time.monotonic() - begun_s > SETTLED_S else deaths
            wait_ms = min(RESTART_MS * 2**deaths, RESTART_MAX_MS)
            deaths = min(deaths + 1, 16)
            self._say(entry.name, f"{children.ended(code)}; it is started again in {wait_ms / 1000:g} s")
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
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
            children.tell(process, signal.SIGTERM)
        return process

    async def _stop(self, name: str, ended: "asyncio.Future[None]") -> None:
        """Tell its group to stop, and see to it that all of it does."""
        process = self._running.get(name)
        if process is not None:
            children.tell(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(ended), STOP_S)
        except TimeoutError:
            self._say(name, f"has not ended in {STOP_S:g} s and is killed")
            if process is not None:
                children.tell(process, signal.SIGKILL)
            await ended

    def _asked(self) -> None:
        """Once: stop. Again: at once."""
        if not self._stopping.is_set():
            self._say("dev", "stopping; again to end everything at once")
            self._stopping.set()
            if "broker" in self._running and len(self._running) == 1:
                children.tell(self._running["broker"], signal.SIGTERM)
            return
        for process in self._running.values():
            children.tell(process, signal.SIGKILL)

    async def _ready(self, broker: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """What the broker says of itself in its first line; None if it ended without one."""
        assert broker.stdout is not None
        line = await broker.stdout.readline()
        if not line:
            return None
        facts: dict[str, Any] = msgspec.json.decode(line)
        return facts

    async def _pump(self, name: str, stream: asyncio.StreamReader | None) -> None:
        """Line by line, until the last one who writes to it has ended."""
        assert stream is not None
        rest = b""
        while chunk := await stream.read(LINE_BYTES_MAX):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                self._say(name, _told(text) if name == "broker" else text)
            if len(rest) >= LINE_BYTES_MAX:
                self._say(name, rest.decode(errors="replace"))
                rest = b""
        if rest:
            self._say(name, rest.decode(errors="replace"))

    def _say(self, name: str, text: str) -> None:
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
    """A plain command takes the shell's place, so that it hears signals itself and its exit code is seen."""
    is_plain = _NOT_PLAIN.search(_QUOTED.sub("''", command)) is None and "=" not in command.split()[0]
    return f"exec {command}" if is_plain else command


def _told(line: str) -> str:
    """A line of the broker's log, for people."""
    try:
        facts = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return line
    for name in ("timestamp", "level"):
        facts.pop(name, None)
    event = str(facts.pop("event", ""))
    shown = (f"{name}={value if isinstance(value, str) else output.shortened(value)}" for name, value in facts.items())
    return " ".join((event.replace("_", " "), *shown))
