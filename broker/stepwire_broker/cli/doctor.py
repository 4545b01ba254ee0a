"""`stepwire doctor`: is everything here as it has to be? Each finding is a sentence, and says what to do about it."""

import os
import resource
import shutil
import socket
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

import click
from stepwire.client import Client, ClientError

from stepwire_broker.configuration import loader
from stepwire_broker.core.definitions.settings import Settings

from . import config_commands, output
from .connection import address, open_client
from .failure import Exit, Failure, leave
from .options import Options, StepwireCommand

Version = tuple[int, ...]

LIBZMQ_MIN: Final = (4, 3, 4)  # before that, holes that need no key are known
LIBZMQ_GOOD: Final = (4, 3, 5)
SQLITE_MIN: Final = (3, 37, 0)  # STRICT tables
# Two connections that write or checkpoint at the same moment can corrupt the log of these: sqlite.org/wal.html.
SQLITE_WAL_RESET_FIRST: Final = (3, 7, 0)
SQLITE_WAL_RESET_FIXED: Final = (3, 51, 3)
OPEN_FILES_MIN: Final = 4096
DISK_FREE_RED_BYTES: Final = 64 * 1024 * 1024
DISK_FREE_LOW_BYTES: Final = 1024 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 2.0

_SIGNS: Final = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "red": ("✗", "red")}


class Finding(NamedTuple):
    state: Literal["ok", "note", "warning", "red"]
    about: str
    text: str
    todo: str = ""


@click.command(cls=StepwireCommand)
@click.pass_obj
def doctor(options: Options) -> None:
    """Look at versions, files, addresses and how open this broker is to others; with or without a running broker.

    The exit code is 1 if anything is red.
    """
    findings = list(examine(options))
    if options.output == "text":
        _draw([one for one in findings if one.state != "ok" or options.verbosity >= 0])
    else:
        output.several(options, [one._asdict() for one in findings], [], "")
    red = sum(one.state == "red" for one in findings)
    if red:
        output.note(options, f"{red} of {len(findings)} findings {'is' if red == 1 else 'are'} red")
        leave(Exit.FAILURE)


def examine(options: Options) -> Iterator[Finding]:
    yield from versions()
    try:
        loaded = config_commands.load(options)
    except Failure as failure:
        yield Finding("red", "configuration", failure.message, failure.hint)
        return
    yield Finding("ok", "configuration", str(loaded.file) if loaded.file else "no file: defaults and environment")
    yield from (Finding("note", "configuration", note) for note in loaded.notes)
    settings = loaded.settings
    yield from endpoints(settings)
    yield from files(settings)
    yield from posture(settings)
    yield from broker(options, settings)


def versions() -> Iterator[Finding]:
    import zmq

    yield of_libzmq(zmq.zmq_version_info())
    yield of_sqlite(sqlite3.sqlite_version_info)


def of_libzmq(version: Version) -> Finding:
    shown = f"libzmq {_dotted(version)}"
    if version < LIBZMQ_MIN:
        todo = f"install pyzmq with libzmq {_dotted(LIBZMQ_GOOD)}: pip install -U pyzmq"
        return Finding("red", "libzmq", f"{shown} has holes that whoever reaches the port can use", todo)
    if version < LIBZMQ_GOOD:
        return Finding("warning", "libzmq", f"{shown} is older than what is tested", "pip install -U pyzmq")
    return Finding("ok", "libzmq", shown)


def of_sqlite(version: Version) -> Finding:
    shown = f"SQLite {_dotted(version)}"
    if version < SQLITE_MIN:
        return Finding("red", "SQLite", f"{shown} is too old", f"a Python with SQLite {_dotted(SQLITE_MIN)} is needed")
    if SQLITE_WAL_RESET_FIRST <= version < SQLITE_WAL_RESET_FIXED:
        return Finding(
            "warning",
            "SQLite",
            f"{shown} can corrupt a database that two connections write at once; the broker has only one that does",
            "let no other program write to it while the broker runs;"
            f" SQLite {_dotted(SQLITE_WAL_RESET_FIXED)} has it fixed",
        )
    return Finding("ok", "SQLite", shown)


def endpoints(settings: Settings) -> Iterator[Finding]:
    from stepwire_broker.api.listening import ListenError, check_listen
    from stepwire_broker.bus.endpoints import EndpointRefused, read_endpoint

    for key in ("bus.steps", "bus.results"):
        written = loader.value_of(settings, key)
        try:
            read_endpoint(key, written, allow_insecure=settings.bus.allow_insecure)
        except EndpointRefused as error:
            yield Finding("red", key, str(error))
        else:
            yield Finding("ok", key, written)
    try:
        check_listen(settings.http)
    except ListenError as error:
        yield Finding("red", "http.listen", str(error))
    else:
        yield Finding("ok", "http.listen", settings.http.listen)


def files(settings: Settings) -> Iterator[Finding]:
    """What is there has to be its owner's alone. What is not there is made by the first start."""
    from stepwire_broker.api.token import STATE_DIR, TOKEN_FILE
    from stepwire_broker.bus.endpoints import EndpointRefused, read_endpoint
    from stepwire_broker.store.errors import StoreRefused
    from stepwire_broker.store.sqlite.opening import path_of

    private: dict[str, Path] = {"state directory": STATE_DIR}
    private["token"] = Path(settings.http.tokens_file) if settings.http.tokens_file else TOKEN_FILE
    try:
        database = path_of(settings.database.url)
    except StoreRefused as error:
        yield Finding("red", "database", loader.shown_without_password(str(error), settings.database.url))
    else:
        for name, suffix in (("database", ""), ("database log", "-wal"), ("database lock", ".lock")):
            private[name] = Path(f"{database}{suffix}")
        yield from _disk(database)
    for name, path in private.items():
        yield from _private(name, path)
    for key in ("bus.steps", "bus.results"):
        try:
            endpoint = read_endpoint(key, loader.value_of(settings, key), allow_insecure=True)
        except EndpointRefused:
            continue
        if endpoint.path is not None:
            yield from _socket(key, Path(endpoint.path))


def _private(name: str, path: Path) -> Iterator[Finding]:
    try:
        found = path.stat()
    except FileNotFoundError:
        if name in ("state directory", "token", "database"):
            yield Finding("note", name, f"{path} is not there yet: the first start makes it")
        return
    except OSError as error:
        yield Finding("red", name, f"{path} cannot be looked at: {error.strerror}")
        return
    mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
    if found.st_uid != os.geteuid():
        yield Finding(
            "red", name, f"{path} belongs to user {found.st_uid}, and this is {os.geteuid()}", "run as its owner"
        )
    elif found.st_mode & 0o077:
        yield Finding(
            "red", name, f"{path} is open to others: its mode is {found.st_mode & 0o777:o}", f"chmod {mode} {path}"
        )
    else:
        yield Finding("ok", name, f"{path} is its owner's alone")


def _socket(key: str, path: Path) -> Iterator[Finding]:
    """Whoever may write to a socket may connect to it; whoever may write beside it may put another in its place."""
    directory = path.parent
    try:
        is_private = not directory.stat().st_mode & 0o077
        is_open = directory.stat().st_mode & stat.S_IWOTH and not directory.stat().st_mode & stat.S_ISVTX
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("red", f"{key} socket", f"{path} cannot be looked at: {error.strerror}")
        return
    if is_open:
        yield Finding("red", f"{key} socket", f"everybody may write to {directory}", f"chmod 700 {directory}")
    elif not stat.S_ISSOCK(mode):
        yield Finding("red", f"{key} socket", f"{path} is there and is not a socket", "remove it, or name another path")
    elif mode & 0o022 and not is_private:
        yield Finding("warning", f"{key} socket", f"others may connect to {path}", f"chmod 700 {directory}")
    else:
        yield Finding("ok", f"{key} socket", f"only its owner can connect to {path}")


def _disk(database: Path) -> Iterator[Finding]:
    directory = next(parent for parent in database.absolute().parents if parent.is_dir())
    free_bytes = shutil.disk_usage(directory).free
    shown = f"{free_bytes // (1024 * 1024)} MiB are free where the database lies"
    if free_bytes < DISK_FREE_RED_BYTES:
        yield Finding("red", "disk", shown, "free some: when it is full, nothing is accepted")
    elif free_bytes < DISK_FREE_LOW_BYTES:
        yield Finding("warning", "disk", shown, "free some: when it is full, nothing is accepted")
    else:
        yield Finding("ok", "disk", shown)


def posture(settings: Settings) -> Iterator[Finding]:
    """Who could read and send here?"""
    bus, http = settings.bus, settings.http
    over_tcp = [key for key in ("bus.steps", "bus.results") if loader.value_of(settings, key).startswith("tcp://")]
    if over_tcp and bus.allow_insecure:
        todo = "listen on 127.0.0.1 or on ipc paths, or be sure that this network is yours"
        text = f"{' and '.join(over_tcp)}: everybody on the network can read every step and send results"
        yield Finding("warning", "bus", text, todo)
    elif over_tcp:
        text = f"{' and '.join(over_tcp)}: every user of this host can read every step and send results"
        yield Finding("warning", "bus", text, "use ipc paths in a directory that is yours alone")
    else:
        yield Finding("ok", "bus", "only who may open its sockets can read steps and send results")
    if http.allow_insecure:
        yield Finding("warning", "http", "http.allow_insecure: tokens may travel unencrypted", "let a proxy end TLS")
    else:
        yield Finding("ok", "http", "a token is asked for, and only this host is listened to")
    if os.geteuid() == 0:
        yield Finding(
            "warning", "user", "this is root, and a broker needs no such power", "run it as a user of its own"
        )
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files != resource.RLIM_INFINITY and open_files < OPEN_FILES_MIN:
        todo = f"ulimit -n {OPEN_FILES_MIN}, or LimitNOFILE= in its unit"
        yield Finding("warning", "open files", f"a process may have {open_files}: too few for many workers", todo)


def broker(options: Options, settings: Settings) -> Iterator[Finding]:
    try:
        url, _ = address(options, settings)
        with open_client(options, settings) as client:
            yield from _answers(client, url)
    except Failure as failure:
        yield Finding("red", "broker", failure.message, failure.hint)


def _answers(client: Client, url: str) -> Iterator[Finding]:
    if not client.is_alive():
        if _somebody_listens(url):
            yield Finding(
                "red", "broker", f"something answers at {url}, and it is not a broker", "name another http.listen"
            )
        else:
            yield Finding("note", "broker", f"none answers at {url}", "stepwire serve")
        return
    try:
        readiness = client.readiness()
        workers = client.workers()["workers"]
    except ClientError as error:
        denied = "the token is not this broker's" if error.status == 401 else error.message
        yield Finding("red", "broker", f"{url}: {denied}", "name its token: --token-file FILE, or STEPWIRE_TOKEN")
        return
    if readiness["ready"]:
        yield Finding("ok", "broker", f"{url} accepts work")
    else:
        yield Finding("red", "broker", f"{url} accepts nothing now: {', '.join(readiness['reasons'])}")
    stuck = [one["worker"] for one in workers if one["stuck"]]
    if stuck:
        todo = f"see: stepwire worker show {stuck[0]}"
        yield Finding("warning", "workers", f"all that these run is past its time: {', '.join(stuck)}", todo)
    else:
        yield Finding("note" if not workers else "ok", "workers", f"{len(workers)} connected")


def _somebody_listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _draw(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    if not output.is_terminal():
        for one in findings:
            click.echo(f"{one.state}\t{one.about}\t{one.text}" + (f"\t{one.todo}" if one.todo else ""))
        return
    console = Console()
    for one in findings:
        sign, style = _SIGNS[one.state]
        console.print(Text.assemble((f"{sign} {one.about}", style), f"  {one.text}"))
        if one.todo:
            console.print(Text(f"    {one.todo}", style="dim"))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
