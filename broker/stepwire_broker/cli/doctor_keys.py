"""The findings of `stepwire doctor` about the keys of the bus: files, owners, modes, expiry, and wide grants."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stepwire_protocol import patterns

from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.keys.client_file import ClientFile
from stepwire_broker.bus.keys.clients import Clients, proofs_of
from stepwire_broker.bus.keys.key_text import KeyFileError
from stepwire_broker.core.definitions.settings import BusSettings, listed
from stepwire_broker.last_uses import read_uses, uses_file
from stepwire_broker.timestamps import rfc3339

from .finding import Finding

DAY_MS: Final = 24 * 3600 * 1000
EXPIRES_SOON_MS: Final = 14 * DAY_MS
UNUSED_MS: Final = 90 * DAY_MS
_SECRET: Final = "bus.curve.secret_file"
_CLIENTS: Final = "bus.curve.clients_dir"


def keys(bus: BusSettings) -> Iterator[Finding]:
    if bus.curve.secret_file is not None:
        yield from _secret(Path(bus.curve.secret_file))
    if bus.curve.clients_dir is not None:
        yield from _clients(Path(bus.curve.clients_dir), time.time_ns() // 1_000_000)
    elif bus.curve.secret_file is not None and any(one.startswith("tcp://") for one in listed(bus.steps)):
        text = "no directory of clients is set, so no worker can connect over tcp"
        yield Finding("red", _CLIENTS, text, "stepwire keys init prints the setting")


def _secret(path: Path) -> Iterator[Finding]:
    try:
        keys = server_key.read_all(path)
    except KeyFileError as error:
        yield Finding("red", _SECRET, str(error), "" if path.exists() else "stepwire keys init")
        return
    yield Finding("ok", _SECRET, f"{path} holds a key pair, and is accessible to its owner only")
    if keys.next is not None:
        yield Finding("note", "keys", keys.phase, "to keep the old key: stepwire keys rotate --server --cancel")


def _clients(directory: Path, now_ms: int) -> Iterator[Finding]:
    reading = Clients(directory).read()
    for fault in reading.faults:
        yield Finding("red", _CLIENTS, fault, "until the file is valid, its principal keeps its former rights or none")
    valid = [client for client in reading.clients if client.refusal(now_ms) is None]
    if not reading.faults:
        yield Finding("ok", _CLIENTS, f"{len(valid)} of {len(reading.clients)} principals have access")
    uses = read_uses(uses_file(directory))
    for client in valid:
        yield from _client(client, now_ms)
        used_ms = max((uses[proof] for proof in proofs_of(client).values() if proof in uses), default=None)
        if used_ms is not None and now_ms - used_ms > UNUSED_MS:
            text = f"the keys of {client.name} were not used since {rfc3339(used_ms)}"
            yield Finding("note", "keys", text, f"stepwire keys revoke {client.name}")
    expired = [client.name for client in reading.clients if client.refusal(now_ms) == "expired_key"]
    if expired:
        text = f"the access of these principals has expired: {', '.join(expired)}"
        yield Finding("warning", "keys", text, f"stepwire keys allow {expired[0]} --expires 90d, or revoke it")


def _client(client: ClientFile, now_ms: int) -> Iterator[Finding]:
    expires_ms = client.grant.expires_ms
    if expires_ms is None:
        text = f"the access of {client.name} never expires"
        yield Finding("note", "keys", text, f"stepwire keys allow {client.name} --expires 90d")
    elif expires_ms - now_ms <= EXPIRES_SOON_MS:
        text = f"the access of {client.name} ends at {rfc3339(expires_ms)}"
        yield Finding("warning", "keys", text, f"stepwire keys allow {client.name} --expires 90d")
    if patterns.ANY in client.grant.handlers:
        text = f"{client.name} may offer every handler, and so receive every step"
        todo = f"stepwire keys allow {client.name} --handlers PATTERN"
        yield Finding("warning", "keys", text, todo)
    if len(client.public) > 1:
        text = f"{client.name} has {len(client.public)} keys: a rotation is not finished"
        yield Finding("note", "keys", text, f"stepwire keys rotate {client.name} --finish")
