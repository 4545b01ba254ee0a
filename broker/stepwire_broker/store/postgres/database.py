"""An open PostgreSQL database of a broker: its lanes with a writer each, its readers, and its signs of life."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Final

from stepwire_protocol import host

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.store.errors import InUse, StoreRefused
from stepwire_broker.store.ports import IDS_AT_START
from stepwire_broker.store.rows import NO_TASKS

from .address import PostgresAddress, read_address
from .beats import LEASE_MS, Beats, wait_until_dead
from .connecting import PostgresConnection, connect, connect_first
from .failures import ConnectionLost, StatementFailed
from .listening import check_listening
from .orders import PostgresOrders
from .ownership import Ownership, TakenEnd
from .pipeline import Pipeline, StatementCall
from .pruning import PostgresPruning
from .queries import PostgresQueries
from .readers import PostgresReaders
from .refusals import refusals_of
from .schema import check_tables, create_tables, has_tables, read_schema_name
from .start_checks import ServerFacts, check_server
from .statements import ColdStatements, reserved_ids
from .timelines import lanes_in_doubt
from .writer import PostgresWriter

TAKE_S: Final = 15.0  # for lanes whose former owner's last transaction is still open in the server
TAKE_PAUSE_S: Final = 0.1


class PostgresDatabase:
    """The port `Database` of store/ports.py."""

    def __init__(
        self,
        opened: Opened,
        open_lane: Callable[[int, int], tuple[PostgresWriter, PostgresPruning]],
        readers: PostgresReaders[PostgresQueries],
        orders: PostgresOrders,
        beats: Beats,
        release: Callable[[], None],
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
        self._beats = beats
        self._release = release

    def open_lane(self, taken: TakenLane) -> tuple[PostgresWriter, PostgresPruning]:
        return self._open_lane(taken.lane, taken.epoch)

    def lost(self) -> str | None:
        return self._beats.replaced

    def release(self) -> None:
        self._beats.close()
        self._release()


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
    settings: DatabaseSettings, broker_id: str, *, lease_ms: int, wall_ms: int, entropy: int
) -> PostgresDatabase:
    """Check the server, make the tables of an empty schema, and take the lanes. Raises StoreRefused."""
    address = read_address(settings.url)
    schema = read_schema_name(settings.schema)
    with refusals_of(address):
        facts = _facts(address, schema, settings)
    check_listening(settings)
    is_prepared = not facts.is_pooled if settings.prepare is None else settings.prepare
    application = f"stepwire {broker_id}"

    def pipeline(name: str) -> Pipeline:
        return Pipeline(connect(address, f"{application} {name}"), is_prepared=is_prepared)

    with refusals_of(address), closing(connect_first(address, f"{application} start")) as connection:
        create_tables(connection, schema, settings.lanes)
        check_tables(connection, schema, settings.lanes)
        dead = wait_until_dead(connection, schema)
        if settings.lost_commits == "stop":
            _refuse_doubt(connection, schema)
        epoch, lease_ms_before = _begin_epoch(connection, schema, broker_id, lease_ms, wall_ms, entropy)
        ownership = Ownership(schema, broker_id, epoch, trusts_failover=settings.lost_commits == "stop_if_seen")
        with closing(pipeline("start")) as of_start:
            lanes = _take(ownership, of_start, settings.lanes, dead)
            ids = _reserve_ids(of_start, schema, lanes)
        opened = _read(connection, schema, epoch, lanes, ids, lease_ms_before)

    def open_lane(lane: int, lane_epoch: int) -> tuple[PostgresWriter, PostgresPruning]:
        writer = PostgresWriter(partial(pipeline, f"lane {lane}"), schema, lane, lane_epoch)
        return writer, PostgresPruning(writer, schema, lane)

    readers = PostgresReaders(address, settings.pool_size, PostgresQueries, schema=schema, is_prepared=is_prepared)
    beats = Beats(partial(pipeline, "beat"), schema, broker_id, epoch)
    beats.start()

    def release() -> None:
        """Give the lanes up, so that the next start need not wait. A lane that cannot be released is taken later."""
        try:
            with closing(pipeline("end")) as of_end:
                for lane in lanes:
                    ownership.release(of_end, lane.lane, lane.epoch)
        except (ConnectionLost, StatementFailed):
            pass

    orders = PostgresOrders(partial(pipeline, "orders"), schema)
    return PostgresDatabase(opened, open_lane, readers, orders, beats, release)


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
    return f"PostgreSQL {facts.version_text} at {address.shown}, schema {schema}"


def _facts(address: PostgresAddress, schema: str, settings: DatabaseSettings) -> ServerFacts:
    user = address.parameters.get("user", "the user of database.url")
    with closing(Pipeline(connect_first(address, "stepwire: start"), is_prepared=False)) as pipeline:
        return check_server(pipeline, schema, user, allow_unsafe=settings.allow_unsafe)


def _refuse_doubt(connection: PostgresConnection, schema: str) -> None:
    """No owner of these lanes is alive, so no process knows how far they were written."""
    lanes = lanes_in_doubt(connection, schema)
    if lanes:
        numbers = ", ".join(map(str, lanes))
        raise StoreRefused(
            f"the server has another timeline than the lanes {numbers} of the schema {schema}: it was promoted, "
            "restored or copied since they were written, and may lack commits that were acknowledged. Run `stepwire db "
            "accept-loss`; or, if no commit can be lost, because the standby was synchronous or no broker ran "
            "meanwhile, `stepwire db accept-loss --nothing-lost`"
        )


def _begin_epoch(
    connection: PostgresConnection, schema: str, broker_id: str, lease_ms: int, wall_ms: int, entropy: int
) -> tuple[int, int]:
    """Store this start of the broker. Returns its epoch, and the lease that workers may hold from earlier starts."""
    with connection.transaction():
        _use(connection, schema)
        (lease_ms_before,) = _one(
            connection,
            "SELECT coalesce(max(worker_lease_ms), 0) FROM brokers "
            "WHERE id = %(id)s OR id IN (SELECT owner FROM lanes)",
            {"id": broker_id},
        )
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('deployment', %s), ('created_ms', %s) "
            "ON CONFLICT (name) DO NOTHING",
            (f"{entropy:032x}", str(wall_ms)),
        )
        process = host.process(os.getpid())
        (epoch,) = _one(
            connection,
            "INSERT INTO brokers (id, epoch, beat, lease_ms, worker_lease_ms, host, pid, pid_started) "
            "VALUES (%(id)s, nextval('epochs'), 0, %(lease)s, %(worker_lease)s, %(host)s, %(pid)s, %(started)s) "
            "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, beat = 0, lease_ms = excluded.lease_ms, "
            "worker_lease_ms = greatest(brokers.worker_lease_ms, excluded.worker_lease_ms), host = excluded.host, "
            "pid = excluded.pid, pid_started = excluded.pid_started RETURNING epoch",
            {
                "id": broker_id,
                "lease": LEASE_MS,
                "worker_lease": lease_ms,
                "host": host.identity(),
                "pid": os.getpid(),
                "started": None if process is None else process.started,
            },
        )
    return int(epoch), int(lease_ms_before)


def _take(ownership: Ownership, pipeline: Pipeline, count: int, dead: Any) -> list[TakenEnd]:
    """Take all lanes. A lane whose row a former owner's transaction still holds is free when that transaction ends."""
    taken: list[TakenEnd] = []
    until_s = time.monotonic() + TAKE_S
    while True:
        taken += ownership.take(pipeline, count, dead)
        if len(taken) >= count:
            return sorted(taken)
        if time.monotonic() > until_s:
            raise InUse(
                f"{count - len(taken)} of {count} lanes belong to another broker, or a transaction of another "
                "connection holds them: stop that broker, or end that connection"
            )
        time.sleep(TAKE_PAUSE_S)


def _reserve_ids(pipeline: Pipeline, schema: str, lanes: list[TakenEnd]) -> dict[int, tuple[int, int]]:
    reserve = ColdStatements(schema).reserve_ids
    replies = pipeline.run([StatementCall(reserve, (IDS_AT_START, lane.lane)) for lane in lanes])
    return {lane.lane: reserved_ids(reply.rows, IDS_AT_START) for lane, reply in zip(lanes, replies, strict=True)}


def _read(
    connection: PostgresConnection,
    schema: str,
    epoch: int,
    lanes: list[TakenEnd],
    ids: dict[int, tuple[int, int]],
    lease_ms_before: int,
) -> Opened:
    with connection.transaction():
        _use(connection, schema)
        (deployment,) = _one(connection, "SELECT value FROM meta WHERE name = 'deployment'", {})
        queries = PostgresQueries(connection)
        counts = queries.open_counts()
        blocks = dict(queries.plain("SELECT number, lane FROM blocks"))

        def taken(lane: int, lane_epoch: int, end: int) -> TakenLane:
            open_tasks, open_steps = counts.get(lane, NO_TASKS)
            own = tuple(number for number, of in blocks.items() if of == lane)
            return TakenLane(lane, lane_epoch, end, ids[lane], open_tasks, open_steps, lease_ms_before, own)

        return Opened(
            deployment=deployment,
            epoch=epoch,
            blocks=blocks,
            lanes=tuple(taken(*lane) for lane in lanes),
            workflows=queries.workflows(),
            controls=queries.controls(),
            revision=queries.controls_revision(),
            is_shared=True,
        )


def _use(connection: PostgresConnection, schema: str) -> None:
    connection.execute("SELECT set_config('search_path', %s, true)", (schema,))


def _one(connection: PostgresConnection, statement: str, values: dict[str, Any]) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row
