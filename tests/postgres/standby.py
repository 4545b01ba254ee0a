"""A streaming standby of a server of the tests, that can lag behind and can take over.

    with PostgresServer(PRIMARY) as primary, StandbyServer(primary) as standby:
        …                                           # brokers use standby.failover_url()
        standby.lag()                               # what is committed from now on is lost by a failover
        standby.take_over()

A synchronous standby has every commit that was acknowledged, so nothing is lost.
"""

import time
from typing import Final

from .server import PATIENCE_S, PostgresServer

PRIMARY: Final = {"wal_level": "replica", "max_wal_senders": "4"}  # settings that a server with a standby needs
APPLICATION: Final = "standby"


class StandbyServer(PostgresServer):
    """A running standby, until `take_over` makes a primary of it. Its data are where those of the primary are."""

    def __init__(self, primary: PostgresServer, *, is_synchronous: bool = False) -> None:
        self.primary = primary
        on_disk = primary.is_on_disk
        super().__init__(primary.settings, on_disk=on_disk)
        if is_synchronous:
            self._be_waited_for()

    def _make(self) -> None:
        self.password = self.primary.password
        for path in (self.data, self.sockets):
            self.own(path)
        source = f"{self.primary.socket_url()}&application_name={APPLICATION}"
        self.run("pg_basebackup", "-d", source, "-D", self.data, "-R", "-c", "fast", "--no-sync")

    def start(self) -> None:
        super().start()
        if self.is_standby:
            self.primary.wait_for(_STREAMS)

    @property
    def is_standby(self) -> bool:
        ((is_standby,),) = self.sql("SELECT pg_is_in_recovery()")
        return bool(is_standby)

    def _be_waited_for(self) -> None:
        """Let the primary acknowledge no commit that the standby does not have.

        A connection that shows the setting began after the checkpointer had the signal to read it. Backends wait once
        the checkpointer has read it, which it does before the second of two checkpoints."""
        self.primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{APPLICATION}'")
        self.primary.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE_S
        while self.primary.sql("SHOW synchronous_standby_names") != [(APPLICATION,)]:
            assert time.monotonic() < deadline, "the primary did not read its settings"
        for _ in range(2):
            self.primary.sql("CHECKPOINT")
        self.primary.wait_for("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    def catch_up(self) -> None:
        """Wait until the standby has everything that the primary has committed."""
        ((place,),) = self.primary.sql("SELECT pg_current_wal_flush_lsn()")
        self.wait_for(f"SELECT (pg_last_wal_receive_lsn() >= '{place}')::int")

    def lag(self) -> None:
        """Stop the stream: the standby gets nothing more. Not for a synchronous standby, for which commits wait."""
        self.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.sql("SELECT pg_reload_conf()")
        self.primary.wait_for("SELECT (NOT EXISTS (SELECT 1 FROM pg_stat_replication))::int")

    def take_over(self) -> None:
        """Let the primary crash, for ever, and promote the standby: a new timeline begins."""
        self.primary.stop("immediate")
        self.promote()

    def promote(self) -> None:
        assert self.sql("SELECT pg_promote(true, %s)", int(PATIENCE_S)) == [(True,)], "the standby was not promoted"

    def failover_url(self, database: str = "postgres") -> str:
        """The URL of whichever of the two can be written."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.port}"
        one = self.url(database)
        return one.replace(f"127.0.0.1:{self.port}", hosts) + "&target_session_attrs=read-write"


_STREAMS: Final = (
    f"SELECT count(*) FROM pg_stat_replication WHERE application_name = '{APPLICATION}' AND state = 'streaming'"
)
