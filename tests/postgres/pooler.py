"""Debian's pgbouncer in front of a server of the tests, with a pool mode per pooler."""

import shutil
import subprocess
import time
from types import TracebackType
from typing import Final, Literal

import psycopg

from .server import ADMIN, ADVICE, PATIENCE_S, MissingPostgres, PostgresServer, free_port

PROGRAM: Final = "/usr/sbin/pgbouncer"


class Pooler:
    """A running pgbouncer, until `close`. The server's keeper ends a pooler whose tests are gone."""

    def __init__(
        self,
        server: PostgresServer,
        mode: Literal["transaction", "statement", "session"] = "transaction",
        *,
        connections: int = 20,
    ) -> None:
        program = shutil.which("pgbouncer") or shutil.which(PROGRAM)
        if program is None:
            raise MissingPostgres(f"the tests of the PostgreSQL store need pgbouncer; {ADVICE}")
        self.server = server
        self.port = free_port()
        directory = server.own(server.directory / f"pooler-{self.port}")
        users = directory / "users.txt"
        users.write_text(f'"{ADMIN}" "{server.password}"\n')
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={server.sockets} port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\npool_mode = {mode}\n"
            f"default_pool_size = {connections}\nmax_client_conn = 200\nserver_login_retry = 1\n"
            f"pidfile = {directory / 'pgbouncer.pid'}\nlogfile = {directory / 'pgbouncer.log'}\n"
        )
        self._log = directory / "pgbouncer.log"
        self._process = subprocess.Popen(
            [program, "-q", settings],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **server.identity,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url(), autocommit=True, prepare_threshold=None).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)

    def url(self, database: str = "postgres") -> str:
        return self.server.url(database, port=self.port)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def __enter__(self) -> "Pooler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
