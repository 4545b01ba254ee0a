"""Opening a SQLite database so that what it acknowledges is kept: one broker, one connection that writes, every commit
synced. Whatever cannot be made so is refused here, with what to do about it.
"""

import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from .errors import StoreRefused

VERSION_MIN: Final = (3, 37)  # STRICT tables
BUSY_TIMEOUT_MS: Final = 100  # the lane tries again by itself; this only spares it a round for a short lock
READ_BUSY_TIMEOUT_MS: Final = 1_000
CACHE_KIB: Final = 32 * 1024
READ_CACHE_KIB: Final = 4 * 1024
STATEMENTS_MAX: Final = 512
AUTOCHECKPOINT_PAGES: Final = 16_384
LOG_BYTES_MAX: Final = 64 * 1024 * 1024  # the log file is cut back to this after it was longer
LOG_STRIDE_BYTES: Final = 4 * 1024 * 1024  # the log file is made longer by this, ahead of what is written to it
ROOM_FACTOR: Final = 20  # but only where the disk has so many strides free
QUICK_CHECK_BYTES_MAX: Final = 128 * 1024 * 1024  # a third of a second; a larger one is for an operator to check

# Their locks and their shared memory are not what the write-ahead log needs: it corrupts there, sooner or later.
NETWORK_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "afs"})

SYNCHRONOUS_FULL: Final = 2
LOCK_TRIES: Final = 10
LOCK_PAUSE_S: Final = 0.02


def path_of(url: str) -> Path:
    """`sqlite:///relative.db` or `sqlite:////absolute.db`."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "sqlite":
        raise StoreRefused(
            f"database.url is {url!r}: this broker keeps its state in SQLite, so it needs a form like "
            "sqlite:///.stepwire/state.db"
        )
    if not rest.startswith("/"):
        raise StoreRefused(
            f"database.url is {url!r}: write three slashes before a relative path, sqlite:///state.db, and four before "
            "an absolute one, sqlite:////var/lib/stepwire/state.db"
        )
    name = rest[1:]
    if name in ("", ":memory:") or "?" in name or "\0" in name or name.endswith("/"):
        raise StoreRefused(
            f"database.url is {url!r}: it has to name a file, with nothing after it; state that must survive a restart "
            "cannot be kept in memory"
        )
    return Path(name)


class InUse(StoreRefused):
    """Another process has the right to write the database."""


class Lock:
    """The right to be the one broker of a file. The kernel takes it back when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise InUse(
                f"{path} belongs to another broker that runs now (process {holder or 'unknown'}): stop that one, or "
                "give this one its own database.url; several brokers on one database need PostgreSQL"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        """`holder` takes it for an instant, to see whether it is free: that must keep no broker from starting."""
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(LOCK_PAUSE_S)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        os.close(self._descriptor)


def holder(path: Path) -> int | None:
    """The process that has the database, 0 if it does not say which it is; None: nobody has it."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(descriptor, 32, 0).strip()
        return int(said) if said.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def restoring(path: Path) -> Path:
    """What a restore has made ready to take the database's place. It has this name only while names are changed."""
    return Path(f"{path}.restoring")


def prepare(path: Path) -> Lock:
    """The directory, the lock, and the file, readable by nobody else."""
    held = lock(path)
    try:
        if restoring(path).exists():
            raise StoreRefused(f"a restore of {path} was interrupted: run `stepwire db restore FILE --yes` again")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        sync_names(path.parent)
    except OSError as error:
        held.release()
        raise StoreRefused(f"{path}: {error.strerror}; the broker must own the file and be able to write it") from error
    except StoreRefused:
        held.release()
        raise
    return held


def lock(path: Path) -> Lock:
    """The directory and the lock: nobody else writes here now."""
    if sqlite3.sqlite_version_info < VERSION_MIN:
        raise StoreRefused(
            f"this Python has SQLite {sqlite3.sqlite_version}; the broker needs {_dotted(VERSION_MIN)} or newer"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_network(path.parent)
        return Lock(path)
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror}; the broker must be able to write in {path.parent}") from error


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def sync_names(directory: Path) -> None:
    """A file that was just created has its name only once its directory is synced, and so has the directory."""
    for one in (directory, directory.absolute().parent):
        descriptor = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_writer(path: Path) -> sqlite3.Connection:
    """The connection that writes and checkpoints. There must be no second one: this SQLite may be of the versions that
    can corrupt a log when two connections reset it at once."""
    connection = _connect(f"{path.absolute().as_uri()}?mode=rw", path)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreRefused(
                f"{path}: its file system gives no write-ahead log (SQLite says {mode!r}); put it on a local disk"
            )
        connection.execute("PRAGMA synchronous=FULL")
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        if synchronous != SYNCHRONOUS_FULL:
            raise StoreRefused(f"{path}: SQLite would not take synchronous=FULL (it says {synchronous})")
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "foreign_keys=ON",
            "mmap_size=0",
            f"cache_size=-{CACHE_KIB}",
            f"wal_autocheckpoint={AUTOCHECKPOINT_PAGES}",
            f"journal_size_limit={LOG_BYTES_MAX}",
            "temp_store=MEMORY",
            "trusted_schema=OFF",
            # Zero what is deleted where its page is written anyway. Some builds zero every freed page: six times the
            # writes, and twice the time, when a task with payloads of some pages goes.
            "secure_delete=FAST",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        _check(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise refused(path, error) from error
    except StoreRefused:
        connection.close()
        raise
    return connection


def lay_out_log(path: Path) -> int:
    """Lengthen the write-ahead log by a stride of zeros, and say how long it is now; 0 where that cannot be, and then
    it grows by itself. A commit that makes the file longer has the file system's books synced too, and takes twice as
    long as one that writes over what is there. SQLite writes over whatever stands behind the last valid frame, as it
    does after every checkpoint, and its recovery ends at the first frame that is none. Only while nobody writes."""
    try:
        descriptor = os.open(f"{path}-wal", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < ROOM_FACTOR * LOG_STRIDE_BYTES:
            return 0
        end = os.fstat(descriptor).st_size
        os.pwrite(descriptor, bytes(LOG_STRIDE_BYTES), end)
        os.fdatasync(descriptor)
        return end + LOG_STRIDE_BYTES
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def open_reader(path: Path) -> sqlite3.Connection:
    """It can neither write nor checkpoint: the file is open for reading only."""
    connection = _connect(f"{path.absolute().as_uri()}?mode=ro", path)
    try:
        for pragma in (
            "query_only=ON",
            f"busy_timeout={READ_BUSY_TIMEOUT_MS}",
            "mmap_size=0",
            f"cache_size=-{READ_CACHE_KIB}",
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except sqlite3.Error as error:
        connection.close()
        raise refused(path, error) from error
    return connection


def _connect(uri: str, path: Path) -> sqlite3.Connection:
    try:
        # Transactions are begun by hand, and a connection is handed from the thread that opens to the one that works.
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_MAX
        )
    except sqlite3.Error as error:
        raise refused(path, error) from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """A corrupt database is refused at the start rather than met in the middle, where that costs no noticeable time."""
    if path.stat().st_size > QUICK_CHECK_BYTES_MAX:
        return
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise StoreRefused(f"{path} is corrupt: {'; '.join(found)}. Keep a copy of it and restore a backup")


def refused(path: Path, error: sqlite3.Error) -> StoreRefused:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        advice = "it is not a SQLite database; name another file in database.url"
    elif code == sqlite3.SQLITE_CORRUPT:
        advice = "it is corrupt; keep a copy of it and restore a backup"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = "another program holds a lock on it; close that one"
    else:
        advice = f"SQLite says {error}"
    return StoreRefused(f"{path} cannot be opened: {advice}")


def _refuse_network(directory: Path) -> None:
    kind = _filesystem_of(directory.resolve())
    if kind in NETWORK_FILESYSTEMS:
        raise StoreRefused(
            f"{directory} is on a network file system ({kind}), where SQLite cannot keep its promises: put the "
            "database on a local disk"
        )


def _filesystem_of(directory: Path) -> str:
    """As Linux names it; empty where nobody says."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        point = point.encode(errors="surrogateescape").decode("unicode_escape")  # a space is written \040
        if directory.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), name
    return kind
