"""A PostgreSQL server of the tests, from Debian's package: made, started, stopped and removed by the tests.

The server runs as an unprivileged user, listens on a free port of loopback and on a socket in its own directory, and
has its data in memory unless a test of durability wants a disk. A keeper process removes a server whose tests are gone.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import psycopg

ADVICE: Final = "as root, on Debian: apt-get update && apt-get install --no-install-recommends postgresql pgbouncer"
PROGRAMS: Final = Path("/usr/lib/postgresql")
USERS: Final = ("postgres", "nobody")  # the first one that exists runs the server when the tests run as root
MEMORY: Final = Path("/dev/shm")
ADMIN: Final = "admin"
PATIENCE_S: Final = 60.0  # on a busy machine
PORT_TRIES: Final = 5

# The store refuses a server that can lose commits, so these settings save memory and time, and no durability.
SETTINGS: Final = {
    "shared_buffers": "64MB",
    "max_connections": "100",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_min_messages": "warning",
    "jit": "off",
}


class MissingPostgres(Exception):
    """A program of PostgreSQL or of pgbouncer is not installed."""


def programs() -> Path:
    """The directory of the newest installed server's programs."""
    versions = [path for path in PROGRAMS.glob("*/bin") if (path / "postgres").exists()]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    on_path = shutil.which("postgres")
    if on_path is None:
        raise MissingPostgres(f"the tests of the PostgreSQL store need the server; {ADVICE}")
    return Path(on_path).resolve().parent


def identity() -> dict[str, Any]:
    """The arguments of Popen that select an unprivileged user. A server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in USERS:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise MissingPostgres(f"no unprivileged user can run the server: none of {', '.join(USERS)} exists; {ADVICE}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """A running server, until `close`. `on_disk`: the data are on the disk of the temporary directory."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, on_disk: bool = False, encoding: str = "UTF8"):
        self.programs = programs()
        self.identity = identity()
        parent = MEMORY if MEMORY.is_dir() and not on_disk else Path(tempfile.gettempdir())
        self.directory = Path(tempfile.mkdtemp(prefix="stepwire-pg-", dir=parent))
        self.directory.chmod(0o711)
        keeper = [sys.executable, "-I", "-S", Path(__file__).with_name("keeper.py"), self.directory]
        self._keeper = subprocess.Popen(keeper, stdin=subprocess.PIPE, start_new_session=True)
        self.data = self.directory / "data"
        self.sockets = self.directory / "sockets"
        self.log = self.directory / "server.log"
        self.password = secrets.token_urlsafe(24)
        self.port = 0
        self.is_on_disk = on_disk
        self.settings = SETTINGS | dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._encoding = encoding
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for path in (self.data, self.sockets):
            self.own(path)
        secret = self.directory / "password"
        secret.touch(0o600)
        secret.write_text(self.password)
        self._give(secret)
        # The file system is not synchronised here, because no test removes the power.
        command = ["initdb", "-D", self.data, "-U", ADMIN, "--pwfile", secret, "--auth", "scram-sha-256", "--no-locale"]
        self.run(*command, "-E", self._encoding, "--no-sync", "--no-instructions")

    def own(self, path: Path) -> Path:
        """Make a directory that belongs to the server's user."""
        path.mkdir(mode=0o700)
        return self._give(path)

    def _give(self, path: Path) -> Path:
        if self.identity:
            os.chown(path, self.identity["user"], self.identity["group"])
        return path

    def run(self, name: str, *arguments: str | Path) -> str:
        """Run a program of the server as the server's user. Returns its output."""
        done = subprocess.run(
            [self.programs / name if (self.programs / name).exists() else name, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            env=self.environment,
            **self.identity,
        )
        assert done.returncode == 0, f"{name} failed with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}{os.pathsep}{os.environ.get('PATH', '')}", "LC_ALL": "C", "TZ": "UTC"}

    # -- start and stop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, and return when it accepts connections. A port, once it is chosen, is kept."""
        for _ in range(PORT_TRIES if self.port == 0 else 1):
            port = self.port or free_port()
            if self._start(port):
                return
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-2_000:]}")

    def _start(self, port: int) -> bool:
        settings = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        places = ["-D", self.data, "-k", self.sockets, "-h", "127.0.0.1", "-p", str(port)]
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [self.programs / "postgres", *places, *settings],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                **self.identity,
            )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            if self._is_ready():
                self.port = port
                return True
            time.sleep(0.02)
        return False

    def _is_ready(self) -> bool:
        """Read the state that the server writes as the last line of its file, as pg_ctl does."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server. `immediate` is a crash: the next start recovers from the log."""
        self.run("pg_ctl", "stop", "-D", self.data, "-m", mode, "-t", str(int(PATIENCE_S)))
        assert self._process is not None
        self._process.wait(PATIENCE_S)

    def restart(self, mode: Literal["fast", "immediate"] = "fast", settings: Mapping[str, str] | None = None) -> None:
        self.stop(mode)
        self.settings |= settings or {}
        self.start()

    def begin_timeline(self) -> None:
        """Restart on a new timeline, as a promoted standby begins one: the server recovers from an archive that has
        nothing. Needs wal_level replica."""
        self.stop()
        signal = self.data / "recovery.signal"
        signal.touch(0o600)
        self._give(signal)
        self.settings |= {"restore_command": "false"}
        self.start()
        self.wait_for("SELECT (NOT pg_is_in_recovery())::int")

    def keep_copy(self) -> Path:
        """Stop the server, keep a copy of its data, and start it again."""
        self.stop()
        kept = self.own(self.directory / "kept")
        self.run("cp", "-a", f"{self.data}/.", kept)
        self.start()
        return kept

    def go_back_to(self, kept: Path) -> None:
        """Replace the data by an older copy."""
        self.stop("immediate")
        shutil.rmtree(self.data)
        kept.rename(self.data)
        self.start()

    def close(self) -> None:
        """End the server and remove its directory."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(PATIENCE_S)
        if self._process is not None:
            self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- use ----------------------------------------------------------------------------------------------------------

    def url(self, database: str = "postgres", user: str = ADMIN, *, port: int = 0) -> str:
        """The URL over loopback. `port`: of a proxy or a pooler."""
        return f"postgresql://{user}:{quote(self.password)}@127.0.0.1:{port or self.port}/{database}?sslmode=disable"

    def socket_url(self, database: str = "postgres", user: str = ADMIN) -> str:
        secret = quote(self.password)
        return f"postgresql://{user}:{secret}@/{database}?host={quote(str(self.sockets), safe='')}&port={self.port}"

    def connect(self, database: str = "postgres", user: str = ADMIN) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.socket_url(database, user), autocommit=True)

    def sql(self, text: str, *values: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the administrator, on a connection of its own."""
        with self.connect(database) as connection:
            cursor = connection.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def wait_for(self, text: str) -> None:
        """Repeat a statement, on one connection, until its only value is neither 0 nor NULL."""
        deadline = time.monotonic() + PATIENCE_S
        with self.connect() as connection:
            while not (row := connection.execute(text.encode()).fetchone()) or not row[0]:
                assert time.monotonic() < deadline, f"without a result for {PATIENCE_S:g} s: {text}"
                time.sleep(0.005)

    def terminate_backends(self, application: str = "%") -> int:
        """End the connections whose application has a name like this. Returns their number."""
        rows = self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name LIKE %s",
            application,
        )
        return len(rows)

    @contextlib.contextmanager
    def small_disk(self, size: str = "1m") -> Iterator[str]:
        """A tablespace on a file system of this size. Yields the tablespace's name. Needs the right to mount."""
        point = self.own(self.directory / f"disk{secrets.token_hex(4)}")
        options = f"size={size},mode=0700,uid={self.identity.get('user', 0)},gid={self.identity.get('group', 0)}"
        mount = ["mount", "-t", "tmpfs", "-o", options, "stepwire-test", str(point)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode != 0:
            raise PermissionError(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        name = point.name
        try:
            self.sql(f"CREATE TABLESPACE {name} LOCATION '{point}'")
            yield name
            self.sql(f"DROP TABLESPACE {name}")
        finally:
            subprocess.run(["umount", "--lazy", str(point)], check=True)
