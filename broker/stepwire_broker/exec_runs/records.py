"""Records of running programs: one small file for each, written before the program's own code starts.

The records must survive the end of this process. They need not survive a crash of the machine, which ends the programs
as well. Therefore nothing is synced to the disk.
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
    """The records cannot be kept, or a recorded program cannot be ended. The message names the remedy."""


class RunsInUse(RunsRefused):
    """Another live process keeps its records in the directory."""


class Record(Struct, frozen=True, kw_only=True):
    """The identity of a program and of its processes. The members from `handler_class` on are for human readers."""

    pid: int
    started: int
    host: str  # the machine, boot and pid namespace of `pid` and `pid_started`
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
    """A directory of records, locked for this process until `close`."""

    def __init__(self, directory: str) -> None:
        """Make the directory if it does not exist, and lock it. Raises RunsRefused."""
        self.directory = Path(directory).absolute()
        self._host = host.identity()
        if not self._host or not _can_hold_processes():
            raise RunsRefused(
                "executors.exec: programs need /proc and pidfd_open, which identify a process reliably; use Linux "
                "5.3 or later, and a sandbox that allows both"
            )
        _prepare(self.directory)
        self._lock = _lock(self.directory)

    def close(self) -> None:
        os.close(self._lock)

    def add(self, record: Record) -> Path:
        """Store a record, so that a later broker process ends the program. The file is named by pid. Raises OSError."""
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
        """True if the record's pid and start time identify the same process in this pid namespace."""
        return record.host == self._host

    def all(self) -> tuple[list[tuple[Path, Record]], list[tuple[Path, str]]]:
        """Return the readable records, and the unreadable records with the reason."""
        readable, unreadable = [], []
        for path in sorted(self.directory.iterdir()):
            if path.suffix == _UNFINISHED:
                path.unlink(missing_ok=True)  # no program begins before its record is renamed
            elif path.suffix == SUFFIX:
                try:
                    readable.append((path, _read(path)))
                except (OSError, ValueError) as error:
                    unreadable.append((path, str(error)))
        return readable, unreadable


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
            raise ValueError("not a regular file")
        record = _decode(file.read(RECORD_BYTES_MAX))
    if record.pid <= 1 or record.started <= 0 or not record.mark:
        raise ValueError("the record names no process")
    return record


def _prepare(directory: Path) -> None:
    """Make a private directory. Its records decide which processes are killed, so only this user may write it."""
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise RunsRefused(f"executors.exec.runs_dir: {directory} cannot be made: {error.strerror}") from None
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunsRefused(
            f"executors.exec.runs_dir: {directory} decides which processes are killed, so only this user may write it; "
            f"chmod 700 {directory}, or give another directory"
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
