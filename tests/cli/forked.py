"""Starts commands in a quarter of the time: a process that has imported all commands forks for each of them.

Each command is a process of its own, with its own directory, environment, standard streams and exit code, and runs the
same `main` as the installed `stepwire`. Commands on a terminal and commands that keep running are not started here.
"""

import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
# A Python and a C library read these when they start.
READ_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "_STEPWIRE_COMPLETE")
KEEP_RUNNING: Final = frozenset({"serve", "dev", "demo", "bench", "exec-worker", "tap", "top"})
STREAMS: Final = 3
LIMIT_S: Final = 60.0


def can_fork(words: Sequence[str], changed: Mapping[str, str]) -> bool:
    """`changed`: the variables that differ from those of the other commands."""
    return KEEP_RUNNING.isdisjoint(words) and not any(name.startswith(READ_AT_START) for name in changed)


def run(words: Sequence[str], directory: Path, environ: Mapping[str, str], stdin: str) -> tuple[int, str, str]:
    """Run one command to its end. Returns its exit code, output and errors."""
    reply, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(STREAMS)]
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = pipes
    _forker().send([theirs.detach(), theirs_in, theirs_out, theirs_err])
    with reply, ThreadPoolExecutor(STREAMS) as threads:
        reply.sendall(json.dumps([list(words), str(directory), dict(environ)]).encode())
        reply.shutdown(socket.SHUT_WR)
        threads.submit(_write, ours_in, stdin)
        out, err = (threads.submit(_read, each) for each in (ours_out, ours_err))
        lines = reply.makefile()
        pid = int(lines.readline())
        reply.settimeout(LIMIT_S)
        try:
            code = int(lines.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(words), LIMIT_S, err.result()) from None
        return code, out.result(), err.result()


def _write(pipe: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "w") as file:
        file.write(text)


def _read(pipe: int) -> str:
    with os.fdopen(pipe) as file:
        return file.read()


class _Forker:
    """The process that forks. It ends with the test process that started it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV") if name in os.environ}
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forked", str(theirs.fileno())],
                env={**kept, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()

    def send(self, files: list[int]) -> None:
        """Pass these files on, and close them here."""
        with self._lock:
            socket.send_fds(self._control, [b"c"], files)
        for file in files:
            os.close(file)


@cache
def _forker() -> _Forker:
    return _Forker()


# -- in the process that forks ----------------------------------------------------------------------------------------


class Command(NamedTuple):
    words: list[str]
    directory: str
    environ: dict[str, str]


def commands_of(control: socket.socket) -> Command | None:
    """Fork for each command. Returns the command in its own process, and None in the process that forks, at the end."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ, None)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                _report(selector, key)
                continue
            _, files, _, _ = socket.recv_fds(control, 1, 1 + STREAMS, socket.MSG_CMSG_CLOEXEC)
            if not files:
                return None
            command = _forked(selector, files)
            if command is not None:
                return command


def _forked(selector: selectors.BaseSelector, files: list[int]) -> Command | None:
    reply = socket.socket(fileno=files[0])
    with reply.makefile() as lines:
        command = Command(*json.loads(lines.read()))
    pid = os.fork()
    if pid == 0:
        for target, file in enumerate(files[1:]):
            os.dup2(file, target)
            os.close(file)
        reply.close()
        return command
    for file in files[1:]:
        os.close(file)
    reply.sendall(f"{pid}\n".encode())
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reply))
    return None


def _report(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A command has ended."""
    pid, reply = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with reply, contextlib.suppress(OSError):  # the test may have ended
        reply.sendall(f"{code}\n".encode())


def _import_all(group: Any, context: Any) -> None:
    """Import the modules of all commands."""
    import click

    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            _import_all(command, click.Context(command, info_name=name, parent=context))


def main() -> None:
    import click
    import stepwire.__main__
    import stepwire.client
    import stepwire_broker.cli.connection
    import stepwire_broker.cli.main as program
    import stepwire_broker.configuration.loader  # noqa: F401 - so that no command has to

    _import_all(program.main, click.Context(program.main, info_name="stepwire"))
    gc.collect()
    gc.freeze()
    command = commands_of(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        os.chdir(command.directory)
        os.environ.clear()
        os.environ.update(command.environ)
        sys.path[0] = command.directory  # as `python -m` has it
        sys.argv[1:] = command.words
        stepwire.__main__.main()


if __name__ == "__main__":
    main()
