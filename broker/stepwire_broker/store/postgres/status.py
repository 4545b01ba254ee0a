"""The state of a schema and of its server for their operator, read with or without a running broker."""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.definitions.settings import DatabaseSettings, RetentionSettings
from stepwire_broker.store.contents import Contents, contents, value
from stepwire_broker.store.retention import kept_ms

from . import migrating
from .address import read_address
from .stored_state import PostgresState, open_state


class TableStatus(Struct, frozen=True):
    bytes: int  # with its indexes
    rows: int  # as the server estimates them
    dead_rows: int  # not removed by vacuum yet
    vacuumed_ms: int | None  # the last vacuum


class LaneStatus(Struct, frozen=True):
    id: int
    owner: str | None
    epoch: int
    end: int  # the sequence of its last commit
    expired_tasks: int  # ended, and past the retention time
    prune_lag_ms: int  # the time by which the oldest of them is overdue


class OldestSnapshot(Struct, frozen=True):
    """Vacuum removes no row that died after this snapshot was taken."""

    holder: str
    transactions: int  # that began since
    held_ms: int | None  # None: unknown, as for a replication slot


class ConnectionCounts(Struct, frozen=True):
    stepwire: int
    others: int
    limit: int  # of the server


class ServerStatus(Contents, frozen=True, kw_only=True):
    server: str
    address: str
    schema_name: str
    schema: str
    schema_known: str  # of this program
    bytes: int
    dead_rows: int
    tables: dict[str, TableStatus]
    connections: ConnectionCounts
    oldest_snapshot: OldestSnapshot | None
    is_partial: bool  # this user may not see the snapshots of other users' sessions
    lanes: list[LaneStatus]


def status(settings: DatabaseSettings, kept: RetentionSettings, now_ms: int) -> ServerStatus:
    """Read everything as of one moment. Open tasks and steps are counted row by row: one second for a million steps."""
    with open_state(settings, "status") as state, state.moment():
        tables = {name: TableStatus(*row) for name, *row in state.select(_TABLES)}
        ((version, limit, is_partial),) = state.select(_SERVER)
        ((own, others),) = state.select(_CONNECTIONS)
        snapshots = state.select(_SNAPSHOTS)
        return ServerStatus(
            server=f"PostgreSQL {version}",
            address=read_address(settings.url).shown,
            schema_name=state.schema,
            schema=value(state, migrating.SCHEMA) or "none",
            schema_known=migrating.known().schema,
            bytes=sum(table.bytes for table in tables.values()),
            dead_rows=sum(table.dead_rows for table in tables.values()),
            tables=tables,
            connections=ConnectionCounts(own, others, int(limit)),
            oldest_snapshot=OldestSnapshot(*snapshots[0]) if snapshots else None,
            is_partial=is_partial,
            lanes=_lanes(state, kept, now_ms),
            **contents(state, kept, now_ms),
        )


def _lanes(state: PostgresState, kept: RetentionSettings, now_ms: int) -> list[LaneStatus]:
    expired: dict[int, tuple[int, int]] = {}
    for task_state, ms in kept_ms(kept).items():
        before_ms = now_ms - ms
        for lane, count, oldest_ms in state.select(
            f"SELECT lane, count(*), min(finished_ms) FROM tasks "  # noqa: S608
            f"WHERE state = '{task_state}' AND finished_ms < {before_ms:d} GROUP BY lane"
        ):
            tasks, lag_ms = expired.get(lane, (0, 0))
            expired[lane] = tasks + count, max(lag_ms, before_ms - oldest_ms)
    lanes = []
    for number, owner, epoch, end in state.select(_LANES):
        tasks, lag_ms = expired.get(number, (0, 0))
        lanes.append(LaneStatus(number, owner, epoch, end, tasks, lag_ms))
    return lanes


_TABLES: Final = """
SELECT relname, pg_total_relation_size(relid), n_live_tup, n_dead_tup,
 (extract(epoch FROM greatest(last_vacuum, last_autovacuum)) * 1000)::bigint
FROM pg_stat_user_tables WHERE schemaname = current_schema() ORDER BY pg_total_relation_size(relid) DESC, relname
"""
_SERVER: Final = """
SELECT current_setting('server_version'), current_setting('max_connections'),
 NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
_CONNECTIONS: Final = """
SELECT count(*) FILTER (WHERE application_name LIKE 'stepwire%'),
 count(*) FILTER (WHERE application_name NOT LIKE 'stepwire%')
FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_LANES: Final = """
SELECT id, owner, epoch, coalesce((SELECT max(seq) FROM commits WHERE lane = lanes.id), 0) FROM lanes ORDER BY id
"""
# A transaction that has written holds back vacuum by its own number too, even without a snapshot.
_SNAPSHOTS: Final = """
SELECT holder, transactions, held_ms FROM (
 SELECT format('process %s (%s, user %s, %s)', pid, coalesce(nullif(application_name, ''), backend_type), usename,
   coalesce(state, 'running')) AS holder, greatest(age(backend_xmin), age(backend_xid)) AS transactions,
  (extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start)) * 1000)::bigint AS held_ms
 FROM pg_stat_activity
 WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
  AND backend_type NOT IN ('walsender', 'autovacuum worker')
 UNION ALL SELECT format('prepared transaction %s of %s', gid, owner), age(transaction),
  (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint FROM pg_prepared_xacts
 UNION ALL SELECT format('replication slot %s (%s)', slot_name, CASE WHEN active THEN 'in use' ELSE 'abandoned' END),
  age(xmin), NULL FROM pg_replication_slots WHERE xmin IS NOT NULL
 UNION ALL SELECT format('standby %s', coalesce(nullif(application_name, ''), client_addr::text)), age(backend_xmin),
  NULL FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
) AS snapshots ORDER BY transactions DESC, held_ms DESC NULLS FIRST LIMIT 1
"""
