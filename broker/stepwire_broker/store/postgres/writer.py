"""A lane's writer on PostgreSQL: one connection, on which a group is one trip.

The calls of a group only collect statements, and COMMIT sends them all. A call whose answer decides what the group
writes, such as the claim of keys, sends what was collected so far: such a group takes two trips or more. The refusal of
the fence can therefore come with any of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK, block_of
from stepwire_broker.core.model.commit_group import (
    AuditNew,
    CommitGroup,
    ControlChanged,
    Key,
    OrderAnswer,
    Parked,
    WorkflowNew,
)
from stepwire_broker.store.audit_chain import START, AuditHead, linked, storable
from stepwire_broker.store.controls import CATALOGUE_CHANGED
from stepwire_broker.store.keys import KeyOwner, Name
from stepwire_broker.store.lane import CommitsLost, NotAdvanced, Rows, StoredDigest

from .failures import CommitUnconfirmed, NotYet, StatementFailed
from .fence import LOCK_NOT_AVAILABLE, Fence, Position, raised
from .group_rows import GroupRows
from .pipeline import BEGIN, COMMIT, Pipeline, Row, Statement, StatementCall, StatementReply, Value
from .row_lists import rows_of
from .statements import AUDIT, ORDERS, PARKED, ColdStatements, reserved_ids
from .timelines import LaneTimeline
from .trips import Trips
from .troubles import trouble_of

SAVEPOINT: Final = StatementCall(Statement("savepoint", "SAVEPOINT piece"))
RELEASE: Final = StatementCall(Statement("release", "RELEASE SAVEPOINT piece"))
UNDO: Final = StatementCall(Statement("undo", "ROLLBACK TO SAVEPOINT piece"))

_encode: Final = msgspec.json.Encoder().encode


class PostgresWriter:
    """The port `LaneWriter` of store/lane.py. `connect` opens a connection and raises ConnectionLost."""

    def __init__(self, connect: Callable[[], Pipeline], schema: str, lane: int, epoch: int) -> None:
        self._lane = lane
        self._epoch = epoch
        self._fence = Fence(schema)
        self._cold = ColdStatements(schema)
        self._timeline = LaneTimeline(connect, schema, lane, epoch)
        self.trips = Trips(self._timeline.connect)
        self.rows = GroupRows(self.trips, schema, lane)
        self._place = Position(lane, epoch, 0)
        self.hold = self._fence.hold(lane, epoch)  # for a transaction without a sequence, in one trip
        self.replies: list[StatementReply] = []  # of the last trip that was committed
        self._is_unconfirmed = False  # the last COMMIT was not confirmed by the synchronous standby

    # -- the transaction ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.trips.calls = []
        if self._is_unconfirmed:
            # Commit an empty transaction that writes to the log. Its confirmation includes every commit before it. The
            # outcome of the last group is not reported until then, because the standby may not have the group.
            self.trips.run([BEGIN, self._fence.lock(self._lane, self._epoch), COMMIT])
            self._is_unconfirmed = False
        self.trips.calls.append(BEGIN)

    def commit(self) -> None:
        try:
            self.replies = self._send(COMMIT)
        except CommitUnconfirmed:
            self._is_unconfirmed = True
            raise
        self.rows.committed()
        self._timeline.committed()

    def abandon(self) -> None:
        self.trips.roll_back()

    def advance(self, seq: int) -> None:
        self._place = Position(self._lane, self._epoch, seq)
        self.rows.begin(seq)
        self.trips.connected()  # a new connection may be one to another server
        self.trips.calls.append(self._fence.call(self._place))
        self.trips.calls += self._timeline.notes()

    def position(self) -> int | None:
        self.abandon()
        verdict = self._fence.read(self.trips.connected(), self._place)
        if verdict == "lane_lost":
            return None
        error = raised(self._place, verdict)
        if error is not None:
            raise CommitsLost(str(error)) if verdict == "commits_lost" else error
        if verdict == "repeat":
            raise NotYet("the group before this one was committed a moment ago")
        return self._place.seq

    def lock(self) -> None:
        """Lock the lane for a transaction without a sequence. Raises NotYet if the lane belongs to another epoch: the
        next group reports that."""
        (*_, reply) = self._send(self._fence.lock(self._lane, self._epoch))
        if not reply.rows:
            raise NotYet("the lane belongs to another broker")

    def savepoint(self) -> None:
        self._send()
        self.trips.calls.append(SAVEPOINT)

    def release(self) -> None:
        self._send(RELEASE)

    def undo(self) -> None:
        was_sent = SAVEPOINT not in self.trips.calls
        self.trips.calls = []
        self.rows.undone()
        if was_sent:
            self._send(UNDO, RELEASE)

    def _send(self, *more: StatementCall) -> list[StatementReply]:
        """Send what was collected. The refusal of the fence comes with the first trip."""
        try:
            return self.trips.send(*more)
        except StatementFailed as error:
            if self._fence.has_refused(error):
                raise NotAdvanced(str(error)) from error
            if error.sqlstate == LOCK_NOT_AVAILABLE:
                self.trips.end_namesakes()
            raise

    def _ask(self, statement: Statement, *values: Value) -> list[Row]:
        return self._send(StatementCall(statement, values))[-1].rows

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, rows: Rows) -> None:
        self.rows.write(rows)

    def set_control(self, control: ControlChanged) -> None:
        """The row of a removal is written before the DELETE, so that the highest revision always rises."""
        self.trips.later(self._cold.lock_controls)
        if control.value is not None:
            self.trips.later(self._cold.set_control, *control)
            return
        self.trips.later(self._cold.set_control, "removed", control.kind, None, 0)
        self.trips.later(self._cold.remove_control, control.kind, control.name)

    def park(self, parked: Sequence[Parked]) -> None:
        """Store refused input. Names are made storable and bodies are bytes, so that the input is not refused again."""
        rows = [
            (row.at_ms, row.task_id, row.step_id, storable(row.code), storable(row.source), row.body.hex())
            for row in parked
        ]
        self.trips.later(self._cold.park, rows_of(PARKED, rows))

    def add_audit(self, new: Sequence[AuditNew]) -> None:
        ends = self._ask(self._cold.audit_end, self._lane)
        n, last = (_int(ends[0][0]), _text(ends[0][1])) if ends else (0, START)
        rows = linked(AuditHead(self._lane, n, last), new)
        self.trips.later(self._cold.add_audit, rows_of(AUDIT, rows))
        self.trips.later(self._cold.move_audit_end, self._lane, rows[-1].n, rows[-1].hash, START)

    def answer_orders(self, answers: Sequence[OrderAnswer]) -> None:
        rows = [(each.id, each.answer) for each in answers]
        self.trips.later(self._cold.answer_orders, rows_of(ORDERS, rows), len(rows), self._lane)

    def claim_keys(self, claims: Sequence[Key]) -> int:
        return self._send(StatementCall(self._cold.claim_keys, (_keys(claims),)))[-1].changed

    def key_owners(self, claims: Sequence[Key]) -> dict[Name, KeyOwner]:
        rows = self._ask(self._cold.key_owners, _keys(claims))
        return {(_text(a), _text(b)): KeyOwner(bytes.fromhex(_text(c)), _int(d)) for a, b, c, d in rows}

    def release_keys(self, claims: Sequence[Key]) -> None:
        self.trips.later(self._cold.release_keys, _keys(claims))

    def add_workflow(self, new: WorkflowNew) -> bool:
        values = (new.namespace, new.name, new.version, new.digest, new.document.decode(), new.created_ms)
        self.set_control(CATALOGUE_CHANGED)
        return self._send(StatementCall(self._cold.add_workflow, values))[-1].changed == 1

    def find_workflow(self, namespace: str, name: str, version: str) -> StoredDigest:
        ((workflow_id, digest),) = self._ask(self._cold.find_workflow, namespace, name, version)
        return StoredDigest(_int(workflow_id), _text(digest))

    def activate(self, workflow_id: int) -> None:
        self.set_control(CATALOGUE_CHANGED)
        self.trips.later(self._cold.deactivate, workflow_id)
        self.trips.later(self._cold.activate, workflow_id)

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]:
        return {_int(a): _int(b) for a, b in self._ask(self._cold.tasks_of_steps, _json(step_ids))}

    def reserve_ids(self, count: int) -> tuple[int, int]:
        return reserved_ids(self._ask(self._cold.reserve_ids, count, self._lane), count)

    def return_ids(self, first: int, last: int) -> None:
        number = block_of(first)
        before = number * IDS_PER_BLOCK
        self.trips.later(self._cold.return_ids, number, first - 1 - before, last - before)

    # -- trouble ------------------------------------------------------------------------------------------------------

    trouble = staticmethod(trouble_of)

    def rest(self, group: CommitGroup) -> None:
        """The server does its housekeeping by itself."""

    def close(self) -> None:
        self.trips.drop()


def _json(values: Any) -> bytes:
    return _encode(sorted(values))


def _keys(claims: Sequence[Key]) -> bytes:
    return _encode(
        [
            {"n": n, "namespace": key.namespace, "key": key.key, "digest": key.digest.hex(), "task_id": key.task_id}
            for n, key in enumerate(claims)
        ]
    )


def _text(value: bytes | None) -> str:
    assert value is not None
    return value.decode()


def _int(value: bytes | None) -> int:
    assert value is not None
    return int(value)
