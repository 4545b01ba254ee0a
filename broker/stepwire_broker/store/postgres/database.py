"""An open PostgreSQL database of a broker: its lanes with a writer each, its readers, and its place among brokers."""

import importlib.metadata
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.core.membership.cluster_rows import Presence
from stepwire_broker.core.membership.members import Members, OwnLanes
from stepwire_broker.store.clocks import read_clocks
from stepwire_broker.store.errors import StoreRefused

from .address import PostgresAddress, read_address
from .cluster import FormerRun, PostgresCluster, own_process
from .connecting import PostgresConnection, connect, connect_first
from .failures import ConnectionLost, StatementFailed
from .listening import check_listening, read_listen_address
from .namesake import wait_until_silent
from .orders import PostgresOrders
from .pipeline import ANSWER_S, Pipeline
from .pruning import PostgresPruning
from .queries import PostgresQueries
from .readers import PostgresReaders
from .refusals import refusals_of
from .schema import check_tables, create_tables, has_tables, read_schema_name
from .start_checks import ServerFacts, check_server
from .timelines import lanes_in_doubt
from .writer import PostgresWriter

TAKE_S: Final = 5.0  # for lanes whose former owner's last transaction is still open in the server
TAKE_PAUSE_S: Final = 0.1
VERSION: Final = importlib.metadata.version("stepwire")


class PostgresDatabase:
    """The port `Database` of store/ports.py."""

    def __init__(
        self,
        opened: Opened,
        open_lane: Callable[[int, int], tuple[PostgresWriter, PostgresPruning]],
        readers: PostgresReaders[PostgresQueries],
        orders: PostgresOrders,
        cluster: PostgresCluster,
    ) -> None:
        self.opened = opened
        self.file = None
        opened_lanes = {taken.lane: open_lane(taken.lane, taken.epoch) for taken in opened.lanes}
        self.writers = {lane: writer for lane, (writer, _) in opened_lanes.items()}
        self.pruning = {lane: pruning for lane, (_, pruning) in opened_lanes.items()}
        self._open_lane = open_lane
        self.readers = readers
        self.orders = orders
        self.cleaning = PostgresCleaning()
        self.cluster = cluster

    def open_lane(self, taken: TakenLane) -> tuple[PostgresWriter, PostgresPruning]:
        return self._open_lane(taken.lane, taken.epoch)

    def lost(self) -> str | None:
        return None  # the beats report a row that is no longer this process's

    def release(self) -> None:
        """Give the lanes up, so that other brokers need not wait. What cannot be released is taken a lease later."""
        self.cluster.close()
        try:
            self.cluster.leave()
        except (ConnectionLost, StatementFailed):
            pass


class PostgresCleaning:
    """The port `Cleaning` of store/ports.py. There is no file of this broker's: the server keeps and reuses it."""

    def checkpoint(self) -> bool:
        return True

    def compact(self) -> None:
        """Vacuum runs by itself."""

    def unverified(self) -> int:
        return 0

    def are_verified(self, count: int) -> None:
        """Nothing was searched."""


def open_database(
    settings: DatabaseSettings, broker_id: str, *, lease_ms: int, broker_lease_ms: int, wall_ms: int, entropy: int
) -> PostgresDatabase:
    """Check the server, make the tables of an empty schema, begin a new epoch, and take the lanes that this broker may
    take at once. Raises StoreRefused."""
    address = read_address(settings.url)
    schema = read_schema_name(settings.schema)
    with refusals_of(address):
        facts = _facts(address, schema, settings)
    check_listening(settings)
    is_prepared = not facts.is_pooled if settings.prepare is None else settings.prepare
    application = f"stepwire {broker_id}"

    def pipeline(name: str, answer_s: float = ANSWER_S) -> Pipeline:
        return Pipeline(connect(address, f"{application} {name}"), is_prepared=is_prepared, answer_s=answer_s)

    with refusals_of(address), closing(connect_first(address, f"{application} start")) as connection:
        create_tables(connection, schema, settings.lanes)
        check_tables(connection, schema, settings.lanes)
        unproven_ms = wait_until_silent(connection, schema, broker_id)
        if settings.lost_commits == "stop":
            _refuse_doubt(connection, schema, broker_id)
        begun_mono = read_clocks().mono
        epoch, lease_ms_before = _begin_epoch(
            connection, schema, broker_id, lease_ms, broker_lease_ms, wall_ms, entropy
        )
        cluster = PostgresCluster(
            pipeline,
            schema,
            broker_id,
            epoch,
            broker_lease_ms,
            FormerRun(lease_ms_before, unproven_ms),
            trusts_failover=settings.lost_commits == "stop_if_seen",
            listen=_listen_by(settings, address, application, is_pooled=facts.is_pooled),
        )
        members = Members(broker_id, epoch, VERSION, broker_lease_ms, begun_mono)
        lanes = _take(cluster, members)
        opened = _read(connection, schema, epoch, lanes, members)

    def open_lane(lane: int, lane_epoch: int) -> tuple[PostgresWriter, PostgresPruning]:
        writer = PostgresWriter(partial(pipeline, f"lane {lane}"), schema, lane, lane_epoch)
        return writer, PostgresPruning(writer, schema, lane)

    readers = PostgresReaders(address, settings.pool_size, PostgresQueries, schema=schema, is_prepared=is_prepared)
    orders = PostgresOrders(partial(pipeline, "orders"), schema)
    return PostgresDatabase(opened, open_lane, readers, orders, cluster)


def _listen_by(
    settings: DatabaseSettings, address: PostgresAddress, application: str, *, is_pooled: bool
) -> Callable[[str], PostgresConnection] | None:
    """Return how to connect for notifications. None: only through a pooler, which does not pass them on."""
    listen_address = read_listen_address(settings)
    if listen_address is None and is_pooled:
        return None
    return lambda name: connect(listen_address or address, f"{application} {name}")


def check_server_of(settings: DatabaseSettings) -> ServerFacts:
    """Check the server and the schema, and not the tables. Raises StoreRefused."""
    address = read_address(settings.url)
    with refusals_of(address):
        return _facts(address, read_schema_name(settings.schema), settings)


def check(settings: DatabaseSettings) -> str:
    """Check what a start checks, and change nothing. Returns a description. Raises StoreRefused."""
    address = read_address(settings.url)
    schema = read_schema_name(settings.schema)
    with refusals_of(address):
        facts = _facts(address, schema, settings)
        with closing(connect_first(address, "stepwire: check")) as connection:
            if facts.schema_exists and has_tables(connection, schema):
                check_tables(connection, schema, settings.lanes)
    check_listening(settings)
    by_looks = _listen_by(settings, address, "", is_pooled=facts.is_pooled) is None
    pooled = ", through a pooler; without database.listen_url, brokers get no notifications" if by_looks else ""
    return f"PostgreSQL {facts.version_text} at {address.shown}, schema {schema}{pooled}"


def _facts(address: PostgresAddress, schema: str, settings: DatabaseSettings) -> ServerFacts:
    user = address.parameters.get("user", "the user of database.url")
    with closing(Pipeline(connect_first(address, "stepwire: start"), is_prepared=False)) as pipeline:
        return check_server(pipeline, schema, user, allow_unsafe=settings.allow_unsafe)


def _refuse_doubt(connection: PostgresConnection, schema: str, broker_id: str) -> None:
    """Refuse if no process knows how far the lanes were written. A lane of another broker may have a living owner; if
    it has none, the lane stays without an owner, and `/readyz` names it."""
    lanes = lanes_in_doubt(connection, schema)
    (others,) = _one(
        connection,
        f"SELECT count(*) FROM {schema}.lanes "  # noqa: S608
        "WHERE NOT (id = ANY (%(doubted)s::int[])) OR (owner IS NOT NULL AND owner <> %(broker)s)",
        {"doubted": lanes, "broker": broker_id},
    )
    if lanes and not others:
        numbers = ", ".join(map(str, lanes))
        raise StoreRefused(
            f"the server has another timeline than the lanes {numbers} of the schema {schema}: it was promoted, "
            "restored or copied since they were written, and may lack commits that were acknowledged. Run `stepwire db "
            "accept-loss`; or, if no commit can be lost, because the standby was synchronous or no broker ran "
            "meanwhile, `stepwire db accept-loss --nothing-lost`"
        )


def _begin_epoch(
    connection: PostgresConnection,
    schema: str,
    broker_id: str,
    lease_ms: int,
    broker_lease_ms: int,
    wall_ms: int,
    entropy: int,
) -> tuple[int, int]:
    """Store this start of the broker. Returns its epoch, and the lease that workers may hold from earlier starts."""
    with connection.transaction():
        _use(connection, schema)
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('deployment', %s), ('created_ms', %s) "
            "ON CONFLICT (name) DO NOTHING",
            (f"{entropy:032x}", str(wall_ms)),
        )
        (lease_ms_before,) = _one(
            connection,
            "SELECT coalesce(max(worker_lease_ms), 0) FROM brokers WHERE id = %(id)s",
            {"id": broker_id},
        )
        (epoch,) = _one(
            connection,
            "INSERT INTO brokers (id, epoch, beat, lease_ms, worker_lease_ms, host, pid, pid_started, version) "
            "VALUES (%(id)s, nextval('epochs'), 0, %(lease)s, %(worker_lease)s, %(host)s, %(pid)s, %(pid_started)s, "
            "%(version)s) ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, beat = 0, "
            "lease_ms = excluded.lease_ms, "
            "worker_lease_ms = greatest(brokers.worker_lease_ms, excluded.worker_lease_ms), host = excluded.host, "
            "pid = excluded.pid, pid_started = excluded.pid_started, version = excluded.version, is_draining = false "
            "RETURNING epoch",
            {"id": broker_id, "lease": broker_lease_ms, "worker_lease": lease_ms, "version": VERSION}
            | own_process()._asdict(),
        )
    return int(epoch), int(lease_ms_before)


def _take(cluster: PostgresCluster, members: Members) -> list[TakenLane]:
    """Beat once, and take the lanes that follow from the beat. A lane whose row a former owner's transaction still
    holds is tried again for a moment; later beats take the rest."""
    takes = members.beaten(cluster.beat(Presence()), OwnLanes({})).takes
    taken: list[TakenLane] = []
    until_s = time.monotonic() + TAKE_S
    while takes is not None:
        taken += cluster.take(takes)
        left = takes.most - len(taken)
        if left <= 0 or time.monotonic() > until_s:
            break
        takes = replace(takes, most=left, served=tuple(lane.lane for lane in taken))
        time.sleep(TAKE_PAUSE_S)
    members.taken()
    return taken


def _read(connection: PostgresConnection, schema: str, epoch: int, lanes: list[TakenLane], members: Members) -> Opened:
    with connection.transaction():
        _use(connection, schema)
        (deployment,) = _one(connection, "SELECT value FROM meta WHERE name = 'deployment'", {})
        queries = PostgresQueries(connection)
        return Opened(
            deployment=deployment,
            epoch=epoch,
            blocks=dict(queries.plain("SELECT number, lane FROM blocks")),
            lanes=tuple(lanes),
            workflows=queries.workflows(),
            controls=queries.controls(),
            revision=queries.controls_revision(),
            is_shared=True,
            members=members,
        )


def _use(connection: PostgresConnection, schema: str) -> None:
    connection.execute("SELECT set_config('search_path', %s, true)", (schema,))


def _one(connection: PostgresConnection, statement: str, values: dict[str, Any]) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row
