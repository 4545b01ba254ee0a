"""`stepwire doctor`: checks the installation and the broker. Each finding is one sentence with a remedy."""

import os
import shutil
import socket
import sqlite3
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
from stepwire.client import Client, ClientError

from stepwire_broker.configuration import loader
from stepwire_broker.core.definitions.settings import Settings, listed
from stepwire_broker.posture import INSECURE

from . import config_commands, doctor_audit, doctor_brokers, doctor_keys, doctor_posture, doctor_tls, output
from .connection import address, open_client
from .doctor_posture import BUS_KEYS
from .failure import Exit, Failure, leave
from .finding import Finding
from .options import Options, StepwireCommand
from .readiness_texts import with_meaning

Version = tuple[int, ...]

LIBZMQ_MIN: Final = (4, 3, 4)  # older versions have vulnerabilities that need no key
LIBZMQ_GOOD: Final = (4, 3, 5)
SQLITE_MIN: Final = (3, 37, 0)  # STRICT tables
# In these versions two connections that write or checkpoint at once can corrupt the log: sqlite.org/wal.html.
SQLITE_WAL_RESET_FIRST: Final = (3, 7, 0)
SQLITE_WAL_RESET_FIXED: Final = (3, 51, 3)
DISK_FREE_RED_BYTES: Final = 64 * 1024 * 1024
DISK_FREE_LOW_BYTES: Final = 1024 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 2.0

# A worker elsewhere, or in the broker's process: nothing is wrong.
_EXPECTED_REASONS: Final = frozenset({"it runs on another host", "it is not connected to the bus"})

_SIGNS: Final = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "red": ("✗", "red")}


@click.command(cls=StepwireCommand)
@click.pass_obj
def doctor(options: Options) -> None:
    """Check versions, files, addresses, and who can access this broker. Works with or without a running broker.

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
    yield from doctor_posture.of_settings(settings)
    yield from doctor_tls.tls(settings.http)
    yield from doctor_tls.jwt(settings.http)
    yield from doctor_keys.keys(settings.bus)
    yield from doctor_audit.audit(settings)
    yield from broker(options, loaded)


def versions() -> Iterator[Finding]:
    import zmq

    yield of_libzmq(zmq.zmq_version_info())
    yield of_sqlite(sqlite3.sqlite_version_info)
    yield Finding("ok", "OpenSSL", ssl.OPENSSL_VERSION)


def of_libzmq(version: Version) -> Finding:
    shown = f"libzmq {_dotted(version)}"
    if version < LIBZMQ_MIN:
        todo = f"install pyzmq with libzmq {_dotted(LIBZMQ_GOOD)}: pip install -U pyzmq"
        return Finding(
            "red", "libzmq", f"{shown} has vulnerabilities that any program with access to the port can use", todo
        )
    if version < LIBZMQ_GOOD:
        return Finding("warning", "libzmq", f"{shown} is older than the tested versions", "pip install -U pyzmq")
    return Finding("ok", "libzmq", shown)


def of_sqlite(version: Version) -> Finding:
    shown = f"SQLite {_dotted(version)}"
    if version < SQLITE_MIN:
        todo = f"use a Python with SQLite {_dotted(SQLITE_MIN)} or newer"
        return Finding("red", "SQLite", f"{shown} is too old", todo)
    if SQLITE_WAL_RESET_FIRST <= version < SQLITE_WAL_RESET_FIXED:
        return Finding(
            "warning",
            "SQLite",
            f"{shown} can corrupt a database if two connections write at once; the broker writes with one only",
            "let no other program write to the database while the broker runs;"
            f" SQLite {_dotted(SQLITE_WAL_RESET_FIXED)} fixes this",
        )
    return Finding("ok", "SQLite", shown)


def endpoints(settings: Settings) -> Iterator[Finding]:
    from stepwire_broker.api.listening import ListenError, check_listen
    from stepwire_broker.bus.endpoints import EndpointRefused, read_endpoint
    from stepwire_broker.bus.sockets import protection_of, read_endpoints

    is_strict = settings.security.strict
    refused = False
    for key in BUS_KEYS:
        for written in listed(loader.value_of(settings, key)):
            try:
                endpoint = read_endpoint(key, written, protection_of(settings.bus, is_strict=is_strict))
            except EndpointRefused as error:
                refused = True
                yield Finding("red", key, str(error))
            else:
                yield Finding("ok", key, f"{written}{', with CURVE' if endpoint.has_curve else ''}")
    if not refused:
        try:
            read_endpoints(settings.bus, is_strict=is_strict)
        except EndpointRefused as error:
            yield Finding("red", "bus.steps", str(error))
    try:
        check_listen(settings.http, is_strict=is_strict)
    except ListenError as error:
        yield Finding("red", "http.listen", str(error))
    else:
        yield Finding("ok", "http.listen", settings.http.listen or f"null: only {settings.http.socket} is served")


def files(settings: Settings) -> Iterator[Finding]:
    """Files that exist must be accessible to their owner only. The first start creates missing files."""
    from stepwire_broker.api.token import STATE_DIR, TOKEN_FILE
    from stepwire_broker.bus.endpoints import EndpointRefused, Protection, read_endpoint
    from stepwire_broker.store import StoreRefused, check_server
    from stepwire_broker.store.sqlite.opening import faults_of_place, path_of

    private: dict[str, Path] = {"state directory": STATE_DIR}
    if settings.http.tokens_file is not None:
        private["token"] = Path(settings.http.tokens_file)
    elif not settings.security.strict:
        private["token"] = TOKEN_FILE
    try:
        server = check_server(settings.database)
        database = None if server is not None else path_of(settings.database.url)
    except StoreRefused as error:
        server = database = None
        yield Finding("red", "database", loader.shown_without_password(str(error), settings.database.url))
    if server is not None:
        yield Finding("ok", "database", server)
    if database is not None:
        for name, suffix in (("database", ""), ("database log", "-wal"), ("database lock", ".lock")):
            private[name] = Path(f"{database}{suffix}")
        yield from _disk(database)
        yield from (Finding("red", "database place", fault) for fault in faults_of_place(database))
    for name, path in private.items():
        yield from _private(name, path)
    for key in BUS_KEYS:
        for written in listed(loader.value_of(settings, key)):
            try:
                endpoint = read_endpoint(key, written, Protection(allow_insecure=True))
            except EndpointRefused:
                continue
            if endpoint.path is not None:
                yield from _socket(key, Path(endpoint.path))


def _private(name: str, path: Path) -> Iterator[Finding]:
    try:
        status = path.stat()
    except FileNotFoundError:
        if name in ("state directory", "token", "database"):
            yield Finding("note", name, f"{path} does not exist yet: the first start creates it")
        return
    except OSError as error:
        yield Finding("red", name, f"{path} cannot be checked: {error.strerror}")
        return
    mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
    if status.st_uid != os.geteuid():
        text = f"{path} belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
        yield Finding("red", name, text, "run as the owner")
    elif status.st_mode & 0o077:
        text = f"{path} is accessible to other users: its mode is {status.st_mode & 0o777:o}"
        yield Finding("red", name, text, f"chmod {mode} {path}")
    else:
        yield Finding("ok", name, f"{path} is accessible to its owner only")


def _socket(key: str, path: Path) -> Iterator[Finding]:
    """A user with write access to a socket can connect to it; one with access to its directory can replace it."""
    from stepwire_broker.bus.endpoints import EndpointRefused
    from stepwire_broker.bus.paths import check_directory

    directory = path.parent
    try:
        check_directory(key, str(directory))
    except EndpointRefused as error:
        yield Finding("red", f"{key} socket", str(error))
        return
    try:
        is_private = not directory.stat().st_mode & 0o077
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("red", f"{key} socket", f"{path} cannot be checked: {error.strerror}")
        return
    if not stat.S_ISSOCK(mode):
        yield Finding("red", f"{key} socket", f"{path} exists and is not a socket", "remove it, or set another path")
    elif mode & 0o022 and not is_private:
        yield Finding("warning", f"{key} socket", f"other users can connect to {path}", f"chmod 700 {directory}")
    else:
        yield Finding("ok", f"{key} socket", f"only its owner can connect to {path}")


def _disk(database: Path) -> Iterator[Finding]:
    directory = next(parent for parent in database.absolute().parents if parent.is_dir())
    free_bytes = shutil.disk_usage(directory).free
    shown = f"{_size(free_bytes)} are free on the database's disk"
    todo = "free space: with a full disk the broker accepts no work"
    if free_bytes < DISK_FREE_RED_BYTES:
        yield Finding("red", "disk", shown, todo)
    elif free_bytes < DISK_FREE_LOW_BYTES:
        yield Finding("warning", "disk", shown, todo)
    else:
        yield Finding("ok", "disk", shown)


def broker(options: Options, loaded: loader.Configuration) -> Iterator[Finding]:
    try:
        urls = address(options, loaded).urls
        is_deployment_known = False
        for url in urls:
            with open_client(options, loaded, url=url) as client:
                found = list(_broker_findings(client, url))
                yield from found
                if not is_deployment_known and found[0].state != "note":
                    is_deployment_known = True
                    yield from doctor_brokers.findings(client)
    except Failure as failure:
        yield Finding("red", "broker", failure.message, failure.hint)


def _broker_findings(client: Client, url: str) -> Iterator[Finding]:
    if not client.is_alive():
        if _is_port_open(url):
            text = f"a program answers at {url}, but it is not a broker"
            yield Finding("red", "broker", text, "set another http.listen")
        else:
            yield Finding("note", "broker", f"no broker answers at {url}", "stepwire serve")
        return
    try:
        readiness = client.readiness()
        workers = client.workers()["workers"]
        health = client.orchestration()
    except ClientError as error:
        problem = "the broker does not accept the token" if error.status == 401 else error.message
        yield Finding("red", "broker", f"{url}: {problem}", "pass its token: --token-file FILE, or STEPWIRE_TOKEN")
        return
    if readiness["ready"]:
        yield Finding("ok", "broker", f"{url} accepts work")
    else:
        text = f"{url} accepts no work now: {', '.join(map(with_meaning, readiness['reasons']))}"
        yield Finding("red", "broker", text)
    for what in readiness.get("insecure", ()):
        yield Finding("warning", "broker", f"the running broker is insecure: {INSECURE.get(what, what)}")
    yield of_stages(health)
    stuck = [one["worker"] for one in workers if one["stuck"]]
    if stuck:
        todo = f"see: stepwire worker show {stuck[0]}"
        text = f"every step that these workers run is past its timeout: {', '.join(stuck)}"
        yield Finding("warning", "workers", text, todo)
    else:
        yield Finding("note" if not workers else "ok", "workers", f"{len(workers)} connected")
    yield from _unprovable(workers)
    yield from of_brokers(workers)
    yield from doctor_posture.literal_secrets(client)


def of_stages(health: dict[str, Any]) -> Finding:
    """The health of the broker's stages, with the reason and the members concerned."""
    status = health["status"]
    if status in ("healthy", "starting"):
        return Finding("ok", "stages", status)
    members = [
        f"{name} {member['id']}: {member['reason']}"
        for name, pool in health["executor_pools"].items()
        for member in pool["members"]
        if member["reason"]
    ]
    shown = "; ".join(members[:3]) + (f"; and {len(members) - 3} more" if len(members) > 3 else "")
    text = f"{status}: {health['reason']}" + (f" ({shown})" if shown else "")
    return Finding("red" if status == "unhealthy" else "warning", "stages", text, "see: GET /health/orchestration")


def _unprovable(workers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Workers whose death should be provable, and is not: the statements of their SDK are incomplete or wrong."""
    by_reason: dict[str, list[str]] = {}
    for one in workers:
        reason = one["death_unprovable_because"]
        if reason and one["level"] and one["pid"] and reason not in _EXPECTED_REASONS:
            by_reason.setdefault(reason, []).append(one["worker"])
    for reason, names in by_reason.items():
        shown = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
        text = f"the death of {shown} cannot be proven, because {reason}"
        yield Finding("note", "workers", text, "if such a worker is killed, its steps wait for the end of its lease")


def of_brokers(workers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Workers that do not reach every broker, or that must serve their brokers in turn."""
    missing: dict[str, list[str]] = {}
    for one in workers:
        for name in one.get("missing_brokers", ()):
            missing.setdefault(name, []).append(one["worker"])
    for name, without in missing.items():
        text = f"{_counted(without)} no session with the broker {name}, whose steps do not reach it"
        yield Finding("warning", "workers", text, f"give it the endpoints of {name}, and read its log")
    small = [one["worker"] for one in workers if one["slots"] + one["prefetch"] < len(one.get("brokers", ()))]
    if small:
        text = f"{_counted(small)} fewer slots than brokers, and serves them in turn"
        yield Finding("note", "workers", text, "without a declared prefetch, a worker takes at least 10 steps more")


def _counted(workers: list[str]) -> str:
    return f"{workers[0]} and {len(workers) - 1} more have" if len(workers) > 1 else f"{workers[0]} has"


def _is_port_open(url: str) -> bool:
    parts = urlsplit(url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(parts.path)
            return True
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
    console = Console(highlight=False)
    for one in findings:
        sign, style = _SIGNS[one.state]
        about = f"{sign} {one.about}"
        text = Text(output.terminal_wrapped(f"{about}  {one.text}", indent=4))
        text.stylize(style, 0, len(about))
        console.print(text, soft_wrap=True)
        if one.todo:
            console.print(Text(output.terminal_wrapped(f"    {one.todo}"), style="dim"), soft_wrap=True)


def _size(count_bytes: int) -> str:
    """`75 GiB`, `1.5 GiB`, `63 MiB`."""
    gib = count_bytes / 1024**3
    if gib < 1:
        return f"{count_bytes // 1024**2} MiB"
    return f"{gib:.1f} GiB" if gib < 10 else f"{gib:.0f} GiB"


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
