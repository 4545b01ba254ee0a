"""The acceptance of lost commits: what a restore of a backup does, for a server that lacks its latest commits.

The database becomes a new deployment. Its epochs and ids continue above all that the lost commits can have used, and
every at_most_once step that has not ended is held, because it may have run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.core.model.events import Now
from stepwire_broker.store.audit_chain import command_row
from stepwire_broker.store.errors import InUse, NotThere
from stepwire_broker.store.holding import BLOCKS_UNKNOWN, HeldSteps, Progress, StoredTasks
from stepwire_broker.store.ports import IDS_AT_START
from stepwire_broker.store.rows import NO_TASKS

from .address import PostgresAddress, read_address
from .connecting import PostgresConnection, connect, connect_first
from .ownership import Ownership
from .pipeline import Pipeline, StatementCall
from .queries import PostgresQueries
from .refusals import refusals_of
from .schema import ACCEPTED_LOSS, check_tables, has_tables, read_schema_name
from .statements import ColdStatements, reserved_ids
from .stored_state import PostgresState
from .timelines import TIMELINE, lanes_in_doubt
from .writer import PostgresWriter

LOOK_EVERY_S: Final = 0.1
LOCK_MS: Final = 15_000  # for transactions of former owners that the server has not ended yet
APPLICATION: Final = "stepwire: accept-loss"


class AcceptedLoss(Struct, frozen=True):
    accepted_ms: int
    deployment_before: str
    deployment: str
    lanes_in_doubt: list[int]  # on another timeline than the server's
    is_complete: bool  # False: only the numbers were changed, and no step was held yet
    held_tasks: int = 0
    held_steps: int = 0


def trust_failover(settings: DatabaseSettings) -> list[int]:
    """Note that the lanes lack no commit, as the operator states. Returns the lanes that were in doubt."""
    with _connected(settings) as (connection, schema, _):
        lanes = lanes_in_doubt(connection, schema)
        connection.execute(f"UPDATE {schema}.lanes SET timeline = ({TIMELINE}) WHERE timeline IS NOT NULL".encode())  # noqa: S608
        return lanes


def accept_loss(
    settings: DatabaseSettings,
    broker_id: str,
    *,
    wall_ms: int,
    entropy: int,
    progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> AcceptedLoss:
    """Make the schema a new deployment, while no broker is alive. After an interruption no broker starts until the
    command is repeated."""
    with _connected(settings) as (connection, schema, address):
        _refuse_alive(connection, schema, progress, sleep)
        loss = _continue_numbers(connection, schema, wall_ms, entropy)
        held = _hold(connection, schema, address, broker_id, loss, progress)
        loss = msgspec.structs.replace(loss, is_complete=True, held_tasks=held.tasks, held_steps=held.steps)
        with connection.transaction():
            _note(connection, schema, loss)
    return loss


@contextmanager
def _connected(settings: DatabaseSettings) -> Iterator[tuple[PostgresConnection, str, PostgresAddress]]:
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    with refusals_of(address, "a statement"), closing(connect_first(address, APPLICATION)) as connection:
        if not has_tables(connection, schema):
            raise NotThere(f"the schema {schema} of {address.shown} has no tables yet")
        check_tables(connection, schema, settings.lanes, may_be_interrupted=True)
        yield connection, schema, address


def _refuse_alive(
    connection: PostgresConnection, schema: str, progress: Progress, sleep: Callable[[float], None]
) -> None:
    """Look at every broker's row for a whole lease: a living broker changes it."""
    select = f"SELECT id, epoch, beat, lease_ms FROM {schema}.brokers ORDER BY id".encode()  # noqa: S608
    first = connection.execute(select).fetchall()
    wait_s = max((lease_ms for *_, lease_ms in first), default=0) / 1000
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < wait_s:
        progress("seconds without a living broker", int(waited_s), int(wait_s))
        sleep(LOOK_EVERY_S)
        changed = set(connection.execute(select).fetchall()) - set(first)
        if changed:
            broker = min(changed)[0]
            raise InUse(f"the broker {broker} is alive: stop every broker of the schema {schema} first")


def _continue_numbers(connection: PostgresConnection, schema: str, wall_ms: int, entropy: int) -> AcceptedLoss:
    """Make a new deployment in one transaction, and let no broker start until the steps are held.

    Epochs continue above the seconds since 1970, because a broker starts less than once a second. Each lane gets a new
    block of ids, because ids of its last block may have been used."""
    doubted = lanes_in_doubt(connection, schema)
    with connection.transaction():
        _use(connection, schema)
        connection.execute(f"SELECT set_config('lock_timeout', '{LOCK_MS}', true)".encode())
        (before,) = _one(connection, "SELECT value FROM meta WHERE name = 'deployment'")
        (epoch,) = _one(
            connection,
            "SELECT setval('epochs', greatest(last_value, %(seconds)s, (SELECT max(epoch) FROM brokers))) FROM epochs",
            {"seconds": wall_ms // 1000},
        )
        connection.execute(
            "UPDATE lanes SET owner = NULL, owner_epoch = NULL, epoch = greatest(epoch + 1, %s), "  # noqa: S608
            f"timeline = ({TIMELINE})".encode(),
            (epoch,),
        )
        connection.execute(
            "INSERT INTO blocks (number, lane, reserved) SELECT %s + (SELECT coalesce(max(number), 0) FROM blocks) "
            "+ row_number() OVER (ORDER BY id), id, 0 FROM lanes",
            (BLOCKS_UNKNOWN,),
        )
        connection.execute("SELECT setval('blocks_number_seq', max(number)) FROM blocks")
        loss = AcceptedLoss(wall_ms, before, f"{entropy:032x}", doubted, is_complete=False)
        connection.execute("UPDATE meta SET value = %s WHERE name = 'deployment'", (loss.deployment,))
        _note(connection, schema, loss)
    return loss


def _hold(
    connection: PostgresConnection,
    schema: str,
    address: PostgresAddress,
    broker_id: str,
    loss: AcceptedLoss,
    progress: Progress,
) -> HeldSteps:
    """Own all lanes for the time of the changes, so that the fence guards them as it guards a broker's."""
    (epoch,) = _one(connection, f"SELECT nextval('{schema}.epochs')")

    def pipeline(name: str) -> Pipeline:
        return Pipeline(connect(address, f"{APPLICATION} {name}"), is_prepared=False)

    (count,) = _one(connection, f"SELECT count(*) FROM {schema}.lanes")  # noqa: S608
    ownership = Ownership(schema, broker_id, epoch)
    with closing(pipeline("lanes")) as owning:
        taken = ownership.take(owning, count)
        if len(taken) < count:
            raise InUse("a broker took lanes meanwhile: stop every broker, and run the command again")
        reserve = ColdStatements(schema).reserve_ids
        replies = owning.run([StatementCall(reserve, (IDS_AT_START, lane.lane)) for lane in taken])
        ids = [reserved_ids(reply.rows, IDS_AT_START) for reply in replies]
        writers = {
            lane.lane: PostgresWriter(partial(pipeline, f"lane {lane.lane}"), schema, lane.lane, lane.epoch)
            for lane in taken
        }
        opened = _opened(connection, schema, epoch, [(*lane[:3], own) for lane, own in zip(taken, ids, strict=True)])
        tasks = StoredTasks(broker_id, opened, writers, PostgresState(connection, schema), Now(0, loss.accepted_ms))
        try:
            detail: dict[str, object] = {"deployment_before": loss.deployment_before, "lanes": loss.lanes_in_doubt}
            tasks.state.write_audit(
                command_row("accept_loss", f"deployment {loss.deployment}", detail, loss.accepted_ms)
            )
            tasks.write()
            return tasks.hold(opened.open_tasks, progress)
        finally:
            for lane in taken:
                writers[lane.lane].close()
                ownership.release(owning, lane.lane, lane.epoch)


def _opened(
    connection: PostgresConnection, schema: str, epoch: int, lanes: list[tuple[int, int, int, tuple[int, int]]]
) -> Opened:
    with connection.transaction():
        _use(connection, schema)
        queries = PostgresQueries(connection)
        counts = queries.open_counts()
        (deployment,) = _one(connection, "SELECT value FROM meta WHERE name = 'deployment'")
        taken = [
            TakenLane(lane, lane_epoch, end, ids, *counts.get(lane, NO_TASKS), lease_ms=0)
            for lane, lane_epoch, end, ids in lanes
        ]
        blocks = dict(queries.plain("SELECT number, lane FROM blocks"))
        return Opened(deployment, epoch, blocks, tuple(taken), queries.workflows(), queries.controls())


def _note(connection: PostgresConnection, schema: str, loss: AcceptedLoss) -> None:
    connection.execute(
        f"INSERT INTO {schema}.meta (name, value) VALUES (%s, %s) "  # noqa: S608
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value".encode(),
        (ACCEPTED_LOSS, msgspec.json.encode(loss).decode()),
    )


def _use(connection: PostgresConnection, schema: str) -> None:
    connection.execute("SELECT set_config('search_path', %s, true)", (schema,))


def _one(connection: PostgresConnection, statement: str, values: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row
