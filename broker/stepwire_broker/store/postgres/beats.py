"""The broker's signs of life in its row, and what a start concludes from the signs of others.

Whether another broker is alive is decided by whether its row changes while this process looks at it: neither the clock
of the database nor that of another host matters. A wrong conclusion does no harm to the rows, because the fence stops
every group of a former owner.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from stepwire_protocol import host

from stepwire_broker.core.membership.cluster_rows import ObservedBroker
from stepwire_broker.errors import BrokerError
from stepwire_broker.process_state import is_alive
from stepwire_broker.store.errors import InUse

from .connecting import Pauses, PostgresConnection
from .pipeline import Pipeline, Statement, StatementCall

LEASE_MS: Final = 10_000
BEATS_A_LEASE: Final = 5
LOOK_EVERY_S: Final = 0.1
MISSED: Final = 1.5  # a living broker beats within this number of intervals


class Owner(NamedTuple):
    """The row of a broker that owns lanes, or that has this broker's id."""

    id: str
    epoch: int
    beat: int
    lease_ms: int
    host: str | None
    pid: int | None
    pid_started: int | None

    def is_gone(self) -> bool:
        """Whether its process has certainly ended. On another host, nothing is certain."""
        if self.pid is None or self.pid_started is None or not self.host or self.host != host.identity():
            return False
        process = host.process(self.pid)
        if process is None:
            return not _exists(self.pid)  # with hidepid, /proc hides processes of other users
        return process.started != self.pid_started or not is_alive(self.pid, process)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def wait_until_dead(
    connection: PostgresConnection, schema: str, *, sleep: Callable[[float], None] = time.sleep
) -> list[ObservedBroker]:
    """Return the owners of lanes, none of which is alive. Waits for as long as a living broker needs to beat. Raises
    InUse for a broker that is alive."""
    first = _owners(connection, schema)
    waiting = {owner.id: owner for owner in first if not owner.is_gone()}
    wait_s = max((owner.lease_ms for owner in waiting.values()), default=0) / BEATS_A_LEASE * MISSED / 1000
    until_s = time.monotonic() + wait_s
    while waiting and time.monotonic() < until_s:
        sleep(LOOK_EVERY_S)
        now = {owner.id: owner for owner in _owners(connection, schema)}
        for owner in list(waiting.values()):
            same = now.get(owner.id)
            if same is None or same.is_gone():
                del waiting[owner.id]  # it has released its lanes, or it has ended
            elif (same.epoch, same.beat) != (owner.epoch, owner.beat):
                raise InUse(
                    f"the schema {schema} is in use by the broker {owner.id} (process {owner.pid} on the host "
                    f"{owner.host}): stop that broker, or give this one its own database.schema"
                )
    return [ObservedBroker(owner.id, owner.epoch, owner.beat) for owner in first]


def _owners(connection: PostgresConnection, schema: str) -> list[Owner]:
    rows = connection.execute(
        f"SELECT id, epoch, beat, lease_ms, host, pid, pid_started FROM {schema}.brokers b "  # noqa: S608
        f"WHERE EXISTS (SELECT 1 FROM {schema}.lanes WHERE (owner, owner_epoch) = (b.id, b.epoch)) ORDER BY id".encode()
    ).fetchall()
    return [Owner(*row) for row in rows]


class Beats:
    """A thread that changes the broker's row. `replaced` is set when the row is no longer this process's."""

    def __init__(
        self, connect: Callable[[], Pipeline], schema: str, broker: str, epoch: int, lease_ms: int = LEASE_MS
    ) -> None:
        self._connect = connect
        statement = f"UPDATE {schema}.brokers SET beat = beat + 1 WHERE id = $1::text AND epoch = $2::bigint"  # noqa: S608
        self._call = StatementCall(Statement("beat", statement), (broker, epoch))
        self._broker = broker
        self._every_s = lease_ms / BEATS_A_LEASE / 1000
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepwire-beat", daemon=True)
        self.replaced: str | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pauses = Pauses()
        pipeline: Pipeline | None = None
        wait_s = 0.0
        while self.replaced is None and not self._end.wait(wait_s):
            try:
                if pipeline is None:
                    pipeline = self._connect()
                (reply,) = pipeline.run([self._call])
                if reply.changed == 0:
                    self.replaced = f"another process with broker.id {self._broker!r} has replaced this one"
                pauses.reset()
                wait_s = self._every_s
            except BrokerError:
                # A beat that fails is a missed beat. The lanes report what is wrong with the database.
                if pipeline is not None:
                    pipeline.close()
                    pipeline = None
                wait_s = pauses.next_s()
        if pipeline is not None:
            pipeline.close()
