"""The principals of `bus.curve.clients_dir`, read again while the broker runs.

An invalid file changes nothing: the principal keeps what its last valid file granted, and the fault is reported once.
All other files apply. A principal whose file is removed has no access.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_broker.bus.admission import Admission, ZapVerdict, proof_of_key, proof_of_user
from stepwire_broker.core.model.principal import OWNER

from . import client_file
from .client_file import ClientFile
from .key_text import KeyFileError, raw
from .trusted_text import check_directory

CLIENTS_MAX: Final = 10_000

_Mark = tuple[int, int, int]  # inode, size and time of the last change


class DirectoryReading(NamedTuple):
    """The state of the directory at one moment."""

    clients: tuple[ClientFile, ...] = ()  # in the order of their names
    faults: tuple[str, ...] = ()


class Clients:
    """Not for two threads at once: `read` may run in a thread, but only one call at a time."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._marks: dict[str, _Mark] = {}
        self._read: dict[str, ClientFile | str] = {}  # by file: the client, or its fault
        self._valid: dict[str, ClientFile] = {}  # by file: the last valid content

    def read(self) -> DirectoryReading:
        """Read the changed files."""
        if self._directory is None:
            return DirectoryReading()
        try:
            marks = _marks(self._directory)
        except KeyFileError as error:
            return DirectoryReading(tuple(self._valid.values()), (str(error),))
        for name, mark in marks.items():
            if self._marks.get(name) != mark or isinstance(self._read[name], str):
                self._read[name] = _client(self._directory / name)
        for name in self._read.keys() - marks.keys():
            del self._read[name]
        self._marks = marks
        return self._settle()

    def _settle(self) -> DirectoryReading:
        """Apply the valid files, in the order of their names. Clients that have a key already keep it."""
        faults = []
        owners: dict[str | int, str] = {}
        settled: dict[str, ClientFile] = {}
        for name in sorted(self._read, key=lambda name: (self._valid.get(name) != self._read[name], name)):
            client = self._read[name]
            fault = _shared(client, owners) if isinstance(client, ClientFile) else client
            if fault is not None:
                faults.append(fault)
                previous = self._valid.get(name)
                if previous is None or _shared(previous, owners) is not None:
                    continue
                client = previous
            assert isinstance(client, ClientFile)
            settled[name] = client
            owners |= dict.fromkeys((*client.public, *client.unix), name)
        self._valid = settled
        return DirectoryReading(tuple(settled[name] for name in sorted(settled)), tuple(faults))


def proofs_of(client: ClientFile) -> dict[str, str]:
    """The lines of the client's keys and users, each with its name in the file of last uses."""
    proofs = {f"public={key}": proof_of_key(raw(key) or b"") for key in client.public}
    return proofs | {f"unix={uid}": proof_of_user(uid) for uid in client.unix}


def admission(
    clients: tuple[ClientFile, ...], now_ms: int, *, anonymous: str | None, blocked: frozenset[str]
) -> Admission:
    """Return which connections are admitted at this time. The broker's own user is always admitted over ipc."""
    keys: dict[bytes, str] = {}
    uids: dict[int, str] = {}
    refused: dict[bytes, ZapVerdict] = {}
    refused_uids: dict[int, ZapVerdict] = {}
    for client in clients:
        reason = client.refusal(now_ms)
        for key in filter(None, map(raw, client.public)):
            if reason is None:
                keys[key] = client.name
            else:
                refused[key] = ZapVerdict(client.name, reason)
        if reason is None:
            uids |= dict.fromkeys(client.unix, client.name)
        else:
            refused_uids |= dict.fromkeys(client.unix, ZapVerdict(client.name, reason))
    return Admission(
        keys=keys,
        uids={**uids, os.geteuid(): OWNER},
        anonymous=anonymous,
        refused_keys=refused,
        refused_uids=refused_uids,
        blocked=blocked,
    )


def _client(path: Path) -> ClientFile | str:
    try:
        return client_file.read(path)
    except KeyFileError as error:
        return str(error)


def _shared(client: ClientFile, owners: dict[str | int, str]) -> str | None:
    """The fault of a client with a key or a user that another client has."""
    for identity in (*client.public, *client.unix):
        if identity in owners:
            what = f"the user {identity}" if isinstance(identity, int) else f"the public key {identity}"
            return f"{client.name} and {owners[identity]} both have {what}: each principal needs its own"
    return None


def _marks(directory: Path) -> dict[str, _Mark]:
    """The files of the directory. Names that begin with a dot are ignored: unfinished files, and links of mounts."""
    try:
        if not directory.exists():
            raise KeyFileError(
                f"{directory} does not exist, so no key is admitted: `stepwire keys init` creates it, or "
                "name the directory in bus.curve.clients_dir"
            )
        check_directory(directory)
        names = sorted(entry.name for entry in os.scandir(directory) if not entry.name.startswith("."))
        if len(names) > CLIENTS_MAX:
            raise KeyFileError(f"{directory} has {len(names)} files: at most {CLIENTS_MAX} principals are allowed")
        marks = {}
        for name in names:
            status = os.stat(directory / name)
            marks[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return marks
    except OSError as error:
        raise KeyFileError(f"{directory} cannot be read: {error.strerror}") from None
