"""Opening a SQLite database so that no acknowledged commit is lost: one broker, one connection that writes, every
commit synced. A database that cannot be opened like this is refused with an error that names the remedy.
"""

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stepwire_broker.file_owners import open_to_others, stranger
from stepwire_broker.store.errors import InUse, StoreRefused
from stepwire_broker.store.urls import SQLITE, scheme_of

VERSION_MIN: Final = (3, 37)  # STRICT tables
BUSY_TIMEOUT_MS: Final = 100  # the lane retries by itself; this saves a retry when a lock is short
READ_BUSY_TIMEOUT_MS: Final = 1_000
CACHE_KIB: Final = 32 * 1024
READ_CACHE_KIB: Final = 4 * 1024
STATEMENTS_MAX: Final = 512
AUTOCHECKPOINT_PAGES: Final = 16_384
LOG_BYTES_MAX: Final = 64 * 1024 * 1024  # a longer log file is cut back to this
LOG_STRIDE_BYTES: Final = 4 * 1024 * 1024  # the log file is lengthened by this, ahead of the writer
ROOM_FACTOR: Final = 20  # only while the disk has space for this number of strides
QUICK_CHECK_BYTES_MAX: Final = 128 * 1024 * 1024  # a third of a second; an operator checks larger databases

# Locks and shared memory of these file systems are too weak for the write-ahead log: they corrupt it in time.
NETWORK_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "afs"})

SYNCHRONOUS_FULL: Final = 2
LOCK_TRIES: Final = 10
LOCK_PAUSE_S: Final = 0.02


def path_of(url: str) -> Path:
    """Return the path in `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    if scheme_of(url) != SQLITE:
        raise StoreRefused("database.url leads to a server, and this command works on the file of a SQLite database")
    rest = url.partition("://")[2]
    if not rest.startswith("/"):
        raise StoreRefused(
            f"database.url is {url!r}: write three slashes before a relative path, sqlite:///state.db, and four before "
            "an absolute one, sqlite:////var/lib/stepwire/state.db"
        )
    name = rest[1:]
    if name in ("", ":memory:") or "?" in name or "\0" in name or name.endswith("/"):
        raise StoreRefused(
            f"database.url is {url!r}: it must name a file, with nothing after the name; state that must survive a "
            "restart cannot be kept in memory"
        )
    return Path(name)


class Lock:
    """The right to be the only broker of a file. The kernel releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _open_own(Path(f"{path}.lock"))
        try:
            self._take()
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise InUse(
                f"{path} is in use by another broker (process {holder or 'unknown'}): stop that broker, or give this "
                "one its own database.url"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        """Try several times: `holder` takes the lock for an instant, and must not keep a broker from starting."""
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
    """Return the process that has the database open, 0 if its id is unknown, None if no broker has it open."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_opened(Path(f"{path}.lock"), error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.pread(descriptor, 32, 0).strip()
        return int(process) if process.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def restoring(path: Path) -> Path:
    """Return the path of a restored database that will replace this one. It is used only while files are renamed."""
    return Path(f"{path}.restoring")


def prepare(path: Path) -> Lock:
    """Make the directory, the lock and the file, which only its owner can read."""
    taken = lock(path)
    try:
        if restoring(path).exists():
            raise StoreRefused(f"a restore of {path} was interrupted: run `stepwire db restore FILE --yes` again")
        descriptor = _open_own(path)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        sync_names(path.parent)
    except OSError as error:
        taken.release()
        raise StoreRefused(f"{path}: {error.strerror}; the broker must own the file and be able to write it") from error
    except StoreRefused:
        taken.release()
        raise
    return taken


def lock(path: Path) -> Lock:
    """Make the directory and take the lock: no other process writes the database while it is held."""
    if sqlite3.sqlite_version_info < VERSION_MIN:
        raise StoreRefused(
            f"SQLite {sqlite3.sqlite_version} is too old; the broker needs {_dotted(VERSION_MIN)} or newer"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_strangers(path.parent)
        _refuse_network(path.parent)
        return Lock(path)
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror}; the broker must be able to write in {path.parent}") from error


def faults_of_place(path: Path) -> Iterator[str]:
    """The reasons for which a start with this database would be refused: its directory, and links in place of its
    files. Nothing is created."""
    if path.parent.is_dir():
        try:
            _refuse_strangers(path.parent)
        except StoreRefused as error:
            yield str(error)
    for file in (path, Path(f"{path}.lock")):
        if file.is_symlink():
            yield str(_not_opened(file, OSError(errno.ELOOP, "")))


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory in which another user could replace the database, or put a link in its place."""
    status = directory.stat()
    owner = stranger(status)
    if owner is not None:
        raise StoreRefused(
            f"the directory {directory.absolute()} belongs to the user {owner}, who could replace the database: run "
            "the broker as that user, or name a directory of its own user in database.url"
        )
    if open_to_others(status):
        raise StoreRefused(
            f"other users can write in the directory {directory.absolute()} (its mode is "
            f"{stat.S_IMODE(status.st_mode):o}), and could replace the database: chmod go-w {directory.absolute()}, or "
            "name another directory in database.url"
        )


def _open_own(path: Path) -> int:
    """Open a file of this user for writing, and make it if it does not exist. A link is not followed, because it may
    lead to any other file. Raises StoreRefused and OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_opened(path, error) from None
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise StoreRefused(f"{path} is not a regular file: remove it, or name another place in database.url")
    raise StoreRefused(
        f"{path} belongs to the user with the id {status.st_uid}, and this process runs as {os.geteuid()}: run it as "
        "the owner of the file"
    )


def _not_opened(path: Path, error: OSError) -> StoreRefused:
    if error.errno == errno.ELOOP:
        return StoreRefused(
            f"{path} is a symbolic link, which could lead to a file of something else: remove the link, and name the "
            "real place in database.url"
        )
    return StoreRefused(f"{path}: {error.strerror}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def sync_names(directory: Path) -> None:
    """Sync a directory and its parent: until then, a new file or directory may lose its name in a power failure."""
    for one in (directory, directory.absolute().parent):
        descriptor = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the connection that writes and checkpoints. A second such connection must not exist: some versions of SQLite
    corrupt the log when two connections reset it at once."""
    connection = _connect(f"{path.absolute().as_uri()}?mode=rw", path)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreRefused(
                f"{path}: its file system has no write-ahead log (journal_mode is {mode!r}); use a local disk"
            )
        connection.execute("PRAGMA synchronous=FULL")
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        if synchronous != SYNCHRONOUS_FULL:
            raise StoreRefused(
                f"{path}: SQLite did not accept synchronous=FULL (it is {synchronous}); use another build of SQLite"
            )
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "foreign_keys=ON",
            "mmap_size=0",
            f"cache_size=-{CACHE_KIB}",
            f"wal_autocheckpoint={AUTOCHECKPOINT_PAGES}",
            f"journal_size_limit={LOG_BYTES_MAX}",
            "temp_store=MEMORY",
            "trusted_schema=OFF",
            # Zero deleted rows only in pages that are written anyway. Some builds zero every freed page. The removal of
            # a task with payloads of several pages then takes six times the writes and twice the time.
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
    """Lengthen the write-ahead log by a stride of zeros. Returns the new length; 0 on failure, so that the log grows by
    itself.

    A commit that lengthens the file also syncs the file system's metadata, and takes twice as long as a commit that
    overwrites. SQLite overwrites all bytes after the last valid frame, as after every checkpoint. Its recovery ends at
    the first invalid frame. Call this function only while no transaction is open."""
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
    """Open a connection that can neither write nor checkpoint: the file is open for reading only."""
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
        # Transactions are begun by hand, and the thread that opens a connection hands it to the thread that uses it.
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_MAX
        )
    except sqlite3.Error as error:
        raise refused(path, error) from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a corrupt database at the start, where the check takes no noticeable time."""
    if path.stat().st_size > QUICK_CHECK_BYTES_MAX:
        return
    findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        details = "; ".join(" ".join(finding.split()) for finding in findings)  # one finding may have several lines
        raise StoreRefused(f"{path} is corrupt: {details}. Keep a copy of it and restore a backup")


def refused(path: Path, error: sqlite3.Error) -> StoreRefused:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        advice = "the file is not a SQLite database; name another one in database.url"
    elif code == sqlite3.SQLITE_CORRUPT:
        advice = "the file is corrupt; keep a copy of it and restore a backup"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = "another program holds a lock on the file; close that program"
    else:
        advice = f"SQLite reports: {error}"
    return StoreRefused(f"{path} cannot be opened: {advice}")


def _refuse_network(directory: Path) -> None:
    kind = _filesystem_of(directory.resolve())
    if kind in NETWORK_FILESYSTEMS:
        raise StoreRefused(
            f"{directory} is on a network file system ({kind}), where SQLite can lose commits: put the "
            "database on a local disk"
        )


def _filesystem_of(directory: Path) -> str:
    """Return Linux's name for the file system's type, or an empty string if unknown."""
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
