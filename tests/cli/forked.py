"""Starts Stepwire's programs in a tenth of the time: a process that has imported their modules forks for each one.

Each program is a process of its own, with its own directory, environment, standard streams and exit code, and runs the
same `main` as the installed `stepwire`, or the same module as `python -m`. Programs on a terminal are not started here.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
# A Python and a C library read these when they start.
READ_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "_STEPWIRE_COMPLETE")
FOLLOWED: Final = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # a forked program does as they say
STEPWIRE: Final = "stepwire"
MODULES: Final = (STEPWIRE, "tests.system.handlers", "tests.system.poll_worker", "tests.system.serve_with_faults")
IMPORTED: Final = (  # when a broker or a worker starts
    "stepwire.client",
    "stepwire.worker",
    "stepwire_broker.api.server",
    "stepwire_broker.cli.connection",
    "stepwire_broker.configuration.loader",
    "stepwire_broker.engine",
    "tests.system.ledger",
    "tests.system.recorded_session",
)
KEPT: Final = ("PATH", "VIRTUAL_ENV")
STREAMS: Final = 3
NUMBER_BYTES: Final = 20
COMMAND_BYTES: Final = 128 * 1024
LIMIT_S: Final = 300.0  # for a command that hangs


def run(words: Sequence[str], directory: Path, environ: Mapping[str, str], stdin: str) -> tuple[int, str, str]:
    """Run one command to its end. Returns its exit code, output and errors."""
    argv = [sys.executable, "-m", STEPWIRE, *words]
    with start(argv, directory, environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        try:
            out, err = one.communicate(stdin, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            one.kill()
            raise
    return one.returncode, out, err


def start(
    argv: Sequence[str],
    directory: Path,
    environ: Mapping[str, str],
    *,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    start_new_session: bool = False,
    may_fork: bool = True,
) -> "subprocess.Popen[str]":
    """Start a program: forked if it is a file or one of these modules, and a new process like any other otherwise."""
    how: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "text": True}
    popen = _Forked if may_fork and can_fork(argv, environ) else subprocess.Popen
    return popen(list(argv), cwd=directory, env=dict(environ), start_new_session=start_new_session, **how)


def can_fork(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """The program is a file or one of these modules, and a Python or C library would read nothing else at its start.
    The modules of further folders on PYTHONPATH would not be those that the process that forks has imported."""
    if argv[0] != sys.executable or not (argv[1].endswith(".py") or (argv[1] == "-m" and argv[2] in MODULES)):
        return False
    if not _folders(environ) <= _folders(os.environ) | {str(REPOSITORY)}:
        return False
    return all(name in FOLLOWED or environ[name] == os.environ.get(name) for name in environ if _is_read_at_start(name))


def _folders(environ: Mapping[str, str]) -> set[str]:
    return set(filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)))


def _is_read_at_start(name: str) -> bool:
    return name.startswith(READ_AT_START)


class _Forked(subprocess.Popen[str]):
    """A process that another one forked. Its parent waits for it, and reports its end to this object."""

    def _execute_child(
        self,
        args: Sequence[str],
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Path,
        env: Mapping[str, str],
        startupinfo: Any,
        creationflags: Any,
        shell: bool,
        theirs_in: int,
        ours_in: int,
        ours_out: int,
        theirs_out: int,
        ours_err: int,
        theirs_err: int,
        restore_signals: bool,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: int,
        start_new_session: bool,
        *more: Any,
    ) -> None:
        is_module = args[1] == "-m"
        command = Command(is_module, list(args[1 + is_module :]), str(cwd), dict(env), start_new_session)
        self._reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # one packet is one message
        with theirs:
            streams = enumerate((theirs_in, theirs_out, theirs_err))
            _forker().send([theirs.fileno(), *(number if file < 0 else file for number, file in streams)])
        self._reports.send(json.dumps(command).encode())
        self.pid = int(self._reports.recv(NUMBER_BYTES))
        self._child_created = True
        self._close_pipe_fds(theirs_in, ours_in, ours_out, theirs_out, ours_err, theirs_err)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Like `os.waitpid`."""
        poll = select.poll()  # other files of the tests may have numbers that are too high for select()
        poll.register(self._reports, select.POLLIN)
        if not poll.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        with self._reports:
            return self.pid, int(self._reports.recv(NUMBER_BYTES))

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            with contextlib.ExitStack() as stack:
                stack.callback(self._waitpid_lock.release)  # type: ignore[attr-defined]
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


class _Forker:
    """The process that forks. It ends with the test process that started it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in os.environ if name in KEPT or _is_read_at_start(name)}
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
        with self._lock:
            socket.send_fds(self._control, [b"c"], files)


@cache
def _forker() -> _Forker:
    return _Forker()


# -- in the process that forks ----------------------------------------------------------------------------------------


class Command(NamedTuple):
    is_module: bool  # or a file
    words: list[str]  # with its name
    directory: str
    environ: dict[str, str]
    is_leader: bool  # of a session of its own


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
    reports = socket.socket(fileno=files[0])
    command = Command(*json.loads(reports.recv(COMMAND_BYTES)))
    pid = os.fork()
    if pid == 0:
        for target, file in enumerate(files[1:]):
            os.dup2(file, target)
            os.close(file)
        reports.close()
        for key in selector.get_map().values():
            if key.data is not None:
                os.close(key.fd)
        return command
    for file in files[1:]:
        os.close(file)
    with contextlib.suppress(OSError):  # the test may have ended
        reports.send(str(pid).encode())
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reports))
    return None


def _report(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A program has ended."""
    pid, reports = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    status = os.waitpid(pid, 0)[1]
    with reports, contextlib.suppress(OSError):  # the test may have ended
        reports.send(str(status).encode())


def _import_all(group: Any, context: Any) -> None:
    """Import the modules of all commands."""
    import click

    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            _import_all(command, click.Context(command, info_name=name, parent=context))


def main() -> None:
    import click
    import stepwire_broker.cli.main as program

    _import_all(program.main, click.Context(program.main, info_name="stepwire"))
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    command = commands_of(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        _become(command)


def _become(command: Command) -> None:
    if command.is_leader:
        os.setsid()
    os.chdir(command.directory)
    os.environ.clear()
    os.environ.update(command.environ)
    name, *sys.argv[1:] = command.words
    # As `python` and `python -m` have it.
    sys.path[0] = command.directory if command.is_module else os.path.dirname(os.path.abspath(name))
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in command.environ
    if "PYTHONUNBUFFERED" in command.environ:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    if command.is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = name
        runpy.run_path(os.path.abspath(name), run_name="__main__")


if __name__ == "__main__":
    main()
