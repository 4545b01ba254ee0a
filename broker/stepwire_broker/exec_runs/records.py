"""What runs, in a directory: one small file for each program, there before the program's own code begins.

Only the end of this process is guarded against, not that of the machine, which ends the programs too: so nothing is
forced to the disk.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from stepwire_protocol import host

from stepwire_broker.errors import BrokerError

from .process_groups import ProcessGroup

LOCK: Final = "lock"
SUFFIX: Final = ".run"
_UNFINISHED: Final = ".new"
UNREADABLE: Final = ".unreadable"
RECORD_BYTES_MAX: Final = 16 * 1024

_encode: Final = msgspec.json.Encoder().encode


class RunsRefused(BrokerError):
    """The run records cannot be kept, or a recorded program cannot be ended. The message says what to do."""


class RunsInUse(RunsRefused):
    """The records belong to another process that is alive."""


class Record(Struct, frozen=True, kw_only=True):
    """What identifies a program and all that it starts; the rest is for whoever looks into the file."""

    pid: int
    started: int
    host: str  # which machine, boot and pid namespace these two are of
    mark: str
    handler_class: str
    task_id: int
    step_id: int
    delivery: int
    program: str

    @property
    def group(self) -> ProcessGroup:
        return ProcessGroup(self.pid, self.started, self.mark)


_decode: Final = msgspec.json.Decoder(Record).decode


class Records:
    """A directory that is this process's alone while it has it."""

    def __init__(self, directory: str) -> None:
        """Makes the directory if it is not there. Raises RunsRefused."""
        self.directory = Path(directory).absolute()
        self._host = host.identity()
        if not self._host or not _can_hold_processes():
            raise RunsRefused(
                "executors.exec: programs can only be run where /proc and pidfd_open tell which process is which: on "
                "Linux 5.3 or later, in a sandbox that allows it"
            )
        _prepare(self.directory)
        self._lock = _lock(self.directory)

    def close(self) -> None:
        os.close(self._lock)

    def add(self, record: Record) -> Path:
        """On record: from here on a later process will end it. The file's name says the pid, for people. Raises
        OSError."""
        path = self.directory / f"{record.pid}-{record.started}{SUFFIX}"
        unfinished = path.with_suffix(_UNFINISHED)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, _encode(record))
        finally:
            os.close(descriptor)
        os.rename(unfinished, path)
        return path

    def record(self, pid: int, *, mark: str, handler_class: str, ids: tuple[int, int, int], program: str) -> Record:
        task_id, step_id, delivery = ids
        return Record(
            pid=pid,
            started=host.started(pid),
            host=self._host,
            mark=mark,
            handler_class=handler_class,
            task_id=task_id,
            step_id=step_id,
            delivery=delivery,
            program=program,
        )

    def is_of_this_boot(self, record: Record) -> bool:
        return record.host.partition(":")[0] == self._host.partition(":")[0]

    def is_visible(self, record: Record) -> bool:
        """Do its pid and start time mean here what they meant to who wrote it?"""
        return record.host == self._host

    def all(self) -> tuple[list[tuple[Path, Record]], list[tuple[Path, str]]]:
        """What is on record, and what cannot be read, with the reason."""
        found, unreadable = [], []
        for path in sorted(self.directory.iterdir()):
            if path.suffix == _UNFINISHED:
                path.unlink(missing_ok=True)  # nothing was started before it had its name
            elif path.suffix == SUFFIX:
                try:
                    found.append((path, _read(path)))
                except (OSError, ValueError) as error:
                    unreadable.append((path, str(error)))
        return found, unreadable


def _can_hold_processes() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return False
    return True


def _read(path: Path) -> Record:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file")
        record = _decode(file.read(RECORD_BYTES_MAX))
    if record.pid <= 1 or record.started <= 0 or not record.mark:
        raise ValueError("it names no process")
    return record


def _prepare(directory: Path) -> None:
    """What lies there says whom we kill: nobody else may write it."""
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise RunsRefused(f"executors.exec.runs_dir: {directory} cannot be made: {error.strerror}") from None
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunsRefused(
            f"executors.exec.runs_dir: {directory} has to be this user's alone, for it says which processes are ended; "
            f"chmod 700 {directory}, or give another"
        )


def _lock(directory: Path) -> int:
    path = directory / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunsRefused(f"executors.exec.runs_dir: {path} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise RunsRefused(f"executors.exec.runs_dir: {path} cannot be locked: {error.strerror}") from None
        raise RunsInUse(
            f"executors.exec.runs_dir: another broker (process {holder or 'unknown'}) keeps its records in {directory};"
            " give each broker its own"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
