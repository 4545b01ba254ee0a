"""The rule for a start under the id of a broker that was there before: only one process may have an id.

Whether the other process is alive is decided by whether its row changes while this process looks at it, or by the
operating system, if both are on one host. Neither the clock of the database nor that of another host matters.
"""

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from stepwire_protocol import host

from stepwire_broker.core.membership.members import BEATS_A_LEASE
from stepwire_broker.process_state import is_alive
from stepwire_broker.store.errors import InUse

from .connecting import PostgresConnection

LEASE_MS: Final = 10_000  # of the setting broker.lease_ms by default
LOOK_EVERY_S: Final = 0.1
MISSED: Final = 1.5  # a living broker beats within this number of intervals


class BrokerProcess(NamedTuple):
    """The process of a broker, as its row names it."""

    host: str | None
    pid: int | None
    pid_started: int | None

    def is_gone(self) -> bool:
        """Whether the process has certainly ended. On another host, nothing is certain."""
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


class Namesake(NamedTuple):
    """The row of an earlier start under this id."""

    epoch: int
    beat: int
    lease_ms: int
    is_draining: bool
    process: BrokerProcess


def wait_until_silent(
    connection: PostgresConnection, schema: str, broker: str, *, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Return once this start may replace the earlier one under its id. Waits for as long as a living broker needs to
    beat, unless the earlier process has certainly ended. Returns the rest of its lease, during which it may still be
    alive; 0 with a proof. Raises InUse for a process that is alive."""
    first = _row(connection, schema, broker)
    if first is None or first.is_draining or first.process.is_gone():
        return 0
    waited_s = first.lease_ms / BEATS_A_LEASE * MISSED / 1000
    until_s = time.monotonic() + waited_s
    while time.monotonic() < until_s:
        sleep(LOOK_EVERY_S)
        row = _row(connection, schema, broker)
        if row is None or row.is_draining or row.process.is_gone():
            return 0
        if (row.epoch, row.beat) != (first.epoch, first.beat):
            raise InUse(
                f"the schema {schema} is in use by the broker {broker} (process {row.process.pid} on the host "
                f"{row.process.host}): stop that broker, or give this one its own broker.id or database.schema"
            )
    return max(0, first.lease_ms - int(waited_s * 1000))


def _row(connection: PostgresConnection, schema: str, broker: str) -> Namesake | None:
    row = connection.execute(
        f"SELECT epoch, beat, lease_ms, is_draining, host, pid, pid_started FROM {schema}.brokers "  # noqa: S608
        "WHERE id = %s".encode(),
        (broker,),
    ).fetchone()
    if row is None:
        return None
    epoch, beat, lease_ms, is_draining, *process = row
    return Namesake(epoch, beat, lease_ms, is_draining, BrokerProcess(*process))
