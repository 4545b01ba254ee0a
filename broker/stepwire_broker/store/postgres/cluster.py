"""The statements by which a broker on PostgreSQL beats, takes lanes and gives them up.

A beat is one trip on a connection of its own. Takes and releases are rare: each opens a connection, in another thread,
so that the rows which a take reads never delay a beat.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from stepwire_protocol import host

from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.membership.cluster_rows import Beaten, BrokerRow, LaneOwner, Presence, TakeLanes
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.store.clocks import read_clocks
from stepwire_broker.store.ports import IDS_AT_START
from stepwire_broker.store.rows import NO_TASKS, counts_by_lane

from .connecting import PostgresConnection
from .failures import ConnectionLost, StatementFailed
from .fence import LOCK_NOT_AVAILABLE
from .namesake import BrokerProcess
from .notifying import Notifying, PostgresListener
from .ownership import LIMITS, Ownership, TakenEnd
from .pipeline import BEGIN, COMMIT, ROLLBACK, Pipeline, Statement, StatementCall
from .statements import ColdStatements, reserved_ids
from .timelines import IN_DOUBT

BEAT_S: Final = 2.0  # for the answer to a beat
BLOCKER_S: Final = 2.0  # for a transaction that holds a lane to appear as the blocker of another one, and to end
BLOCKER_MS: Final = int(BLOCKER_S * 1000)
LOOK_S: Final = 0.05


class _StoredBroker(BrokerRow, frozen=True, kw_only=True):
    host: str | None = None
    pid: int | None = None
    pid_started: int | None = None


class _Read(msgspec.Struct, frozen=True):
    brokers: tuple[_StoredBroker, ...]
    lanes: tuple[LaneOwner, ...]
    orders: tuple[int, ...]
    controls_revision: int
    blocks: tuple[tuple[int, int], ...]
    clock_ms: int


_decode: Final = msgspec.json.Decoder(_Read).decode
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class FormerRun(NamedTuple):
    """Earlier starts under the id of this broker."""

    lease_ms: int = 0  # the longest lease that workers may hold from them
    unproven_ms: int = 0  # the rest of the last one's own lease, if it was replaced without a proof of its end


class PostgresCluster:
    """The port `Cluster` of store/ports.py. `connect` opens a connection under this name, for answers within a time.
    `listen` opens one that receives notifications; None: there is none."""

    def __init__(
        self,
        connect: Callable[[str, float], Pipeline],
        schema: str,
        broker: str,
        epoch: int,
        lease_ms: int,
        former: FormerRun | None = None,
        *,
        trusts_failover: bool = False,
        listen: Callable[[str], PostgresConnection] | None = None,
    ) -> None:
        self.lease_ms = lease_ms
        self._connect = connect
        self._broker, self._epoch = broker, epoch
        self._former = former or FormerRun()
        self._ownership = Ownership(schema, broker, epoch, trusts_failover=trusts_failover)
        self._cold = ColdStatements(schema)
        self._beat = Statement("beat", _BEAT.format(schema=schema))
        self._read = Statement(
            "read_cluster", _READ.format(schema=schema, in_doubt="false" if trusts_failover else IN_DOUBT)
        )
        self._leave = Statement("leave", _LEAVE.format(schema=schema))
        self._open_work = Statement("open_work", _OPEN_WORK.format(schema=schema))
        self._leases = Statement("worker_leases", _LEASES.format(schema=schema))
        self._blocks_of = Statement("blocks_of", _BLOCKS.format(schema=schema))
        self._lock_lane = Statement("wait_for_lane", _LOCK_ROW.format(table=f"{schema}.lanes", type="int"))
        self._lock_broker = Statement("wait_for_broker", _LOCK_ROW.format(table=f"{schema}.brokers", type="text"))
        self._block = -1  # the highest number of a block that was reported
        self._pipeline: Pipeline | None = None
        self._notifying = Notifying(schema, broker)
        self._listener = None
        if listen is not None:
            self._listener = PostgresListener(partial(listen, "listen"), self._notifying.read)

    def beat(self, presence: Presence) -> Beaten:
        sent = read_clocks()
        try:
            if self._pipeline is None:
                self._pipeline = self._connect("beat", BEAT_S)
            calls = [
                BEGIN,
                LIMITS,
                StatementCall(self._beat, self._values(presence)),
                StatementCall(self._read, (self._broker, self._block)),
                COMMIT,
            ]
            _, _, _, reply, _ = self._pipeline.run(calls)
        except (ConnectionLost, StatementFailed) as error:
            self.close()
            self._free_rows(error, [self._broker])
            raise
        received = read_clocks()
        ((text,),) = reply.rows
        read = _decode(text or b"")
        self._block = max((self._block, *(number for number, _ in read.blocks)))
        return Beaten(
            sent_mono=sent.mono,
            received_mono=received.mono,
            brokers=tuple(map(_checked, read.brokers)),
            lanes=read.lanes,
            offset_ms=read.clock_ms - (sent.wall + received.wall) // 2,
            orders=read.orders,
            controls_revision=read.controls_revision,
            blocks=read.blocks,
        )

    def _values(self, presence: Presence) -> tuple[Any, ...]:
        return (
            self._broker,
            self._epoch,
            presence.listeners,
            presence.http,
            "true" if presence.is_draining else "false",
            presence.config_digest,
            _encode(dict(presence.open_steps)),
            presence.workers,
            presence.controls_revision,
            _encode(presence.backlog),
        )

    def take(self, takes: TakeLanes) -> list[TakenLane]:
        with closing(self._connect("take", TAKE_S)) as pipeline:
            try:
                taken = self._ownership.take(pipeline, takes.most, takes.dead, takes.served)
            except StatementFailed as error:
                self._free_rows(error, [broker.id for broker in takes.dead])
                raise
            held = [lane for lane in takes.stuck if lane not in [each.lane for each in taken]]
            if held and len(taken) < takes.most:
                for lane in held:
                    self._end_blockers(pipeline, StatementCall(self._lock_lane, (lane, BLOCKER_MS)))
                served = (*takes.served, *(each.lane for each in taken))
                taken += self._ownership.take(pipeline, takes.most - len(taken), takes.dead, served)
            return self._opened(pipeline, taken) if taken else []

    def _opened(self, pipeline: Pipeline, taken: list[TakenEnd]) -> list[TakenLane]:
        """Read what this broker must know of its new lanes, and reserve ids in them."""
        lanes = _encode(sorted(each.lane for each in taken))
        reserve = [StatementCall(self._cold.reserve_ids, (IDS_AT_START, each.lane)) for each in taken]
        reads = [StatementCall(each, (lanes,)) for each in (self._open_work, self._blocks_of)]
        leases = StatementCall(self._leases)
        trip = [BEGIN, LIMITS, *reserve, *reads, leases, COMMIT]
        _, _, *reserved, work, blocks, worker_leases, _ = pipeline.run(trip)
        counts = counts_by_lane((_int(a), (b or b"").decode(), _int(c), _int(d)) for a, b, c, d in work.rows)
        leases_ms = {(id or b"").decode(): _int(ms) for id, ms in worker_leases.rows}
        leases_ms[self._broker] = self._former.lease_ms

        def opened(each: TakenEnd, ids: tuple[int, int]) -> TakenLane:
            open_tasks, open_steps = counts.get(each.lane, NO_TASKS)
            return TakenLane(
                each.lane,
                each.epoch,
                each.end,
                ids,
                open_tasks,
                open_steps,
                _lease_ms(each, leases_ms),
                tuple(_int(number) for number, lane in blocks.rows if _int(lane) == each.lane),
                self._former.unproven_ms if each.former == self._broker else 0,
            )

        ids = [reserved_ids(reply.rows, IDS_AT_START) for reply in reserved]
        return [opened(*pair) for pair in zip(taken, ids, strict=True)]

    def release(self, lane: int, epoch: int, to: str | None = None) -> bool:
        with closing(self._connect("release", BEAT_S)) as pipeline:
            return self._ownership.release(pipeline, lane, epoch, to)

    def leave(self) -> None:
        notify = self._notifying.in_transaction(Notification(lanes=True))
        with closing(self._connect("end", BEAT_S)) as pipeline:
            leave = [self._ownership.leave(), StatementCall(self._leave, self._run), notify]
            pipeline.run([BEGIN, LIMITS, *leave, COMMIT])

    def notify(self, notification: Notification) -> None:
        if self._pipeline is None:
            return  # the database is away; a beat connects again
        try:
            self._pipeline.run(self._notifying.trip(notification))
        except (ConnectionLost, StatementFailed):
            self.close()
            raise

    def receive(self) -> Notification | None:
        return None if self._listener is None else self._listener.receive()

    def stop_receiving(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    @property
    def _run(self) -> tuple[str, int]:
        return self._broker, self._epoch

    def _free_rows(self, error: ConnectionLost | StatementFailed, brokers: Iterable[str]) -> None:
        """End the connections that hold the rows of these brokers, if a beat or a take waited for one in vain. They are
        of a client that is gone: its beat, or its take, would have ended long ago."""
        if not isinstance(error, StatementFailed) or error.sqlstate != LOCK_NOT_AVAILABLE:
            return
        with closing(self._connect("end", BEAT_S)) as pipeline:
            for broker in brokers:
                self._end_blockers(pipeline, StatementCall(self._lock_broker, (broker, BLOCKER_MS)))

    def _end_blockers(self, pipeline: Pipeline, call: StatementCall) -> None:
        """End the connections whose transactions hold the row that this call locks. Of a lane, their owner is dead, and
        the fence refuses what they would write. Another connection waits for the row, so that the server names them."""
        waiter = self._connect("wait", BLOCKER_S)
        waiting = threading.Thread(target=_ignoring, args=(waiter, [BEGIN, call, ROLLBACK]), daemon=True)
        waiting.start()
        try:
            while waiting.is_alive():
                pipeline.run([StatementCall(_END_BLOCKERS, (waiter.backend_pid,))])
                waiting.join(LOOK_S)
        except StatementFailed:
            pass  # without the right to end another user's connection, its own time limit ends the transaction
        waiting.join()
        waiter.close()


def _ignoring(pipeline: Pipeline, calls: Iterable[StatementCall]) -> None:
    try:
        pipeline.run(list(calls))
    except (ConnectionLost, StatementFailed):
        pass


def _checked(row: _StoredBroker) -> BrokerRow:
    """Ask the operating system about a process of this host."""
    values = {name: getattr(row, name) for name in BrokerRow.__struct_fields__}
    values["is_gone"] = BrokerProcess(row.host, row.pid, row.pid_started).is_gone()
    return BrokerRow(**values)


def _lease_ms(taken: TakenEnd, leases_ms: Mapping[str, int]) -> int:
    """Return the longest lease that workers may hold from a former owner. A released lane does not name that owner."""
    if taken.epoch == 1:
        return 0
    return leases_ms.get(taken.former, 0) if taken.former else max(leases_ms.values(), default=0)


def _int(value: bytes | None) -> int:
    return int(value or 0)


def own_process() -> BrokerProcess:
    """Return how this process is named in its broker's row."""
    process = host.process(os.getpid())
    return BrokerProcess(host.identity(), os.getpid(), None if process is None else process.started)


TAKE_S: Final = 30.0  # to count the open tasks of a lane takes seconds for a million

_BEAT: Final = """\
UPDATE {schema}.brokers SET beat = beat + 1, listeners = $3::text, http = $4::text, is_draining = $5::boolean,
 config_digest = $6::text, open_steps = $7::text, workers = $8::int, controls_revision = $9::bigint,
 backlog = $10::text
WHERE id = $1::text AND epoch = $2::bigint"""

# A statement of its own: its snapshot is taken after the beat has waited for a take that locks the row.
_READ: Final = """\
SELECT json_build_object(
 'brokers', (SELECT coalesce(json_agg(b ORDER BY b.id), '[]') FROM (SELECT id, epoch, beat, lease_ms, worker_lease_ms,
   coalesce(listeners, '') AS listeners, http, coalesce(version, '') AS version, is_draining, config_digest,
   coalesce(open_steps, '{{}}')::json AS open_steps, coalesce(workers, 0) AS workers, controls_revision,
   coalesce(backlog, '[]')::json AS backlog, host, pid, pid_started FROM {schema}.brokers) AS b),
 'lanes', (SELECT coalesce(json_agg(json_build_array(id, owner, owner_epoch, epoch, {in_doubt}) ORDER BY id), '[]')
   FROM {schema}.lanes),
 'orders', (SELECT coalesce(json_agg(DISTINCT o.lane), '[]') FROM {schema}.orders AS o JOIN {schema}.lanes AS l
   ON l.id = o.lane WHERE o.answer IS NULL AND l.owner = $1::text),
 'controls_revision', (SELECT coalesce(max(revision), 0) FROM {schema}.controls),
 'blocks', (SELECT coalesce(json_agg(json_build_array(number, lane)), '[]') FROM {schema}.blocks
   WHERE number > $2::bigint),
 'clock_ms', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"""

_LEAVE: Final = "UPDATE {schema}.brokers SET is_draining = true WHERE id = $1::text AND epoch = $2::bigint"

# Open tasks are found in the three indexes of open tasks.
_OPEN_WORK: Final = """\
WITH mine AS (SELECT value::int AS lane FROM json_array_elements_text($1::json)),
 open AS (SELECT id, lane, namespace FROM {schema}.tasks
   WHERE lane IN (SELECT lane FROM mine) AND finished_ms IS NULL AND NOT stored
  UNION ALL SELECT id, lane, namespace FROM {schema}.tasks
   WHERE lane IN (SELECT lane FROM mine) AND finished_ms IS NULL AND stored AND wants IS NOT NULL
  UNION ALL SELECT id, lane, namespace FROM {schema}.tasks
   WHERE lane IN (SELECT lane FROM mine) AND finished_ms IS NULL AND stored AND wake_ms IS NOT NULL AND wants IS NULL)
SELECT lane, namespace, count(*), coalesce(sum((SELECT count(*) FROM {schema}.steps
 WHERE task_id = open.id AND finished_ms IS NULL)), 0)::bigint FROM open GROUP BY lane, namespace"""

_BLOCKS: Final = """\
SELECT number, lane FROM {schema}.blocks
WHERE lane IN (SELECT value::int FROM json_array_elements_text($1::json)) ORDER BY number"""

_LEASES: Final = "SELECT id, worker_lease_ms FROM {schema}.brokers"

_LOCK_ROW: Final = """\
WITH settings AS MATERIALIZED (SELECT set_config('lock_timeout', ($2::int)::text, true))
SELECT 1 FROM settings CROSS JOIN {table} AS held WHERE id = $1::{type} FOR NO KEY UPDATE OF held"""

_END_BLOCKERS: Final = Statement(
    "end_blockers", "SELECT pg_terminate_backend(pid) FROM unnest(pg_blocking_pids($1::int)) AS pid"
)
