"""The findings of `stepwire doctor` about the posture: what a broker with these settings leaves open, and to whom."""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stepwire.client import Client, ClientError
from stepwire_protocol import patterns

from stepwire_broker import posture
from stepwire_broker.api.token import MORE_TOKENS_FILE, TOKEN_FILE, Line, TokenError, Tokens, read_lines, uses_file_of
from stepwire_broker.bus.endpoints import EndpointRefused, Protection, read_endpoint
from stepwire_broker.configuration import loader
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.definitions.settings import Settings, listed
from stepwire_broker.core.reading.literal_secrets import literals
from stepwire_broker.last_uses import DIGITS, read_uses
from stepwire_broker.open_files import connections_of_bus, files_for_bus
from stepwire_broker.timestamps import rfc3339

from .finding import Finding

WORKFLOWS_EXAMINED_MAX: Final = 200
UNUSED_MS: Final = 90 * 24 * 3600 * 1000
BUS_KEYS: Final = ("bus.steps", "bus.results")
_TODO: Final = {
    "bus_loopback": "use ipc paths, or create keys: stepwire keys init",
    "bus_network": "create keys: stepwire keys init; or make sure that you control this network",
    "http_network": "set http.tls.cert_file and http.tls.key_file, or end TLS in a proxy on this host",
}


def of_settings(settings: Settings) -> Iterator[Finding]:
    yield from _listeners(settings)
    yield from _programs(settings)
    yield from _tokens(settings)
    yield from _process(settings)


def _listeners(settings: Settings) -> Iterator[Finding]:
    """The same codes as in the start line of the broker, in `/readyz`, in `top` and in the metrics."""
    open_keys: dict[str, list[str]] = {}
    for key in BUS_KEYS:
        for written in listed(loader.value_of(settings, key)):
            code = _code_of(settings, key, written)
            if code is not None and key not in open_keys.setdefault(code, []):
                open_keys[code].append(key)
    for code, keys in open_keys.items():
        yield Finding("warning", "bus", f"{' and '.join(keys)}: {posture.INSECURE[code]}", _TODO[code])
    if not open_keys:
        yield Finding("ok", "bus", "only this user and principals with a client file can connect")
    if settings.bus.allow_insecure and "bus_network" not in open_keys:
        text = "bus.allow_insecure is set, and no listener needs it: a later change would open the bus to every host"
        yield Finding("warning", "bus.allow_insecure", text, "remove the setting")
    if settings.http.allow_insecure and not posture.has_tls(settings.http):
        text = f"http.allow_insecure is set: {posture.INSECURE['http_network']}"
        yield Finding("warning", "http", text, _TODO["http_network"])
    elif settings.http.listen is None:
        yield Finding("ok", "http", f"only the Unix socket {settings.http.socket} is served, to this user")
    elif not posture.has_tls(settings.http):
        yield Finding("ok", "http", "requests need a token, and only this host can connect")


def _code_of(settings: Settings, key: str, written: str) -> str | None:
    """The code of an endpoint that needs no key; None for the others, and for malformed ones."""
    try:
        endpoint = read_endpoint(key, written, Protection(True, settings.bus.curve.secret_file is not None))
    except EndpointRefused:
        return None
    if not endpoint.is_open:
        return None
    return "bus_loopback" if endpoint.is_loopback else "bus_network"


def _programs(settings: Settings) -> Iterator[Finding]:
    if settings.security.strict:
        refusal = posture.programs_in_broker(settings)
        if refusal is not None:
            yield Finding("red", "exec", refusal)
    elif commands := settings.executors.exec.commands:
        subject = (
            "1 command of executors.exec runs"
            if len(commands) == 1
            else f"{len(commands)} commands of executors.exec run"
        )
        text = f"{subject} as the broker's user, and can read its state and its token"
        yield Finding("note", "exec", text, "programs that you do not trust: stepwire exec-worker, as another user")


def _tokens(settings: Settings) -> Iterator[Finding]:
    """The tokens without expiry and with wide rights. The files' modes are examined with the other files."""
    given = settings.http.tokens_file
    files = (TOKEN_FILE, MORE_TOKENS_FILE) if given is None else (Path(given),)
    if settings.security.strict:
        try:
            Tokens(*files, is_strict=True)
        except TokenError as error:
            yield Finding("red", "tokens", str(error))
            return
    elif given is not None and not Path(given).exists():
        yield Finding(
            "red", "tokens", f"http.tokens_file is {given!r}, which does not exist", "stepwire token new NAME"
        )
    for file in files:
        if not file.exists():
            continue
        try:
            lines = read_lines(file)
        except TokenError as error:
            yield Finding("red", "tokens", str(error))
            continue
        uses = read_uses(uses_file_of(given))
        for line in lines:
            yield from _token(file, line, uses.get(line.digest.hex()[:DIGITS]))


def _token(file: Path, line: Line, used_ms: int | None) -> Iterator[Finding]:
    """`used_ms`: the last use; None if none is known."""
    grant = line.grant
    if file == TOKEN_FILE:
        text = f"the token in {file} has every scope and never expires: it is for operators on this host"
        yield Finding("note", "tokens", text, "create one for each client: stepwire token new NAME --expires 90d")
        return
    if used_ms is not None and time.time_ns() // 1_000_000 - used_ms > UNUSED_MS:
        text = f"the token {grant.name!r} was not used since {rfc3339(used_ms)}"
        yield Finding("note", "tokens", text, f"stepwire token revoke {grant.name}")
    if grant.expires_ms is None:
        todo = f"stepwire token revoke {grant.name}; stepwire token new {grant.name} --expires 90d"
        yield Finding("note", "tokens", f"the token {grant.name!r} never expires", todo)
    if grant.allows(Scope.WORK) and Scope.ADMIN not in grant.scopes and patterns.ANY in grant.handlers:
        text = f"workers with the token {grant.name!r} may offer every handler, and so receive every step"
        yield Finding("warning", "tokens", text, "create one with --handlers PATTERN, and revoke this one")


def literal_secrets(client: Client) -> Iterator[Finding]:
    """Workflows in use whose documents probably hold a secret. Values are not shown."""
    try:
        for one in client.workflows()["workflows"][:WORKFLOWS_EXAMINED_MAX]:
            namespace, name, version = one["namespace"], one["name"], one["version"]
            document = client.workflow(name, namespace=namespace, version=version)["document"]
            for step in document["steps"]:
                for path, _ in literals(step.get("handler_config") or {}, ("handler_config",)):
                    place = ".".join(map(str, path))
                    where = f"{namespace}::{name} {version}, step {step['name']}: {place}"
                    text = f"{where} probably holds a secret, in plain text"
                    yield Finding("warning", "workflows", text, 'store a reference instead: {"$secret": "NAME"}')
    except ClientError as error:
        yield Finding("note", "workflows", f"the workflows were not searched for secrets: {error.message}")


def _process(settings: Settings) -> Iterator[Finding]:
    if os.geteuid() == 0:
        todo = "run the broker as a user of its own"
        yield Finding("warning", "user", "this process runs as root, which a broker does not need", todo)
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises its own limit to this one
    connections_max = settings.bus.max_connections
    connections = connections_of_bus(connections_max, open_files)
    if connections < connections_max:
        todo = f"ulimit -n {files_for_bus(connections_max)}, or LimitNOFILE= in the systemd unit"
        text = f"a process may open {open_files} files: enough for {connections} connections of the bus"
        yield Finding("warning", "open files", f"{text}, fewer than bus.max_connections", todo)
