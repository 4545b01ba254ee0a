"""The statements that change the owner of lanes: take, release, and the read of a taken lane's end.

A take locks the rows of the brokers that it believes to be dead. A beat of such a broker therefore comes before the
take, which then changes nothing, or after it, and then reads the new owners.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from stepwire_broker.core.membership.cluster_rows import ObservedBroker

from .pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from .timelines import TIMELINE


class TakenEnd(NamedTuple):
    lane: int
    epoch: int
    end: int  # the sequence of the last group of its former owner
    former: str | None = None  # the id of the former owner; None: the lane was free


class Ownership:
    """The lanes of one schema, as this broker may own them."""

    def __init__(self, schema: str, broker: str, epoch: int, *, trusts_failover: bool = False) -> None:
        self._broker = broker
        self._epoch = epoch
        self._take = Statement(
            "take", _TAKE.format(schema=schema, timeline=TIMELINE, trusts="true" if trusts_failover else "false")
        )
        self._ends = Statement("ends", _ENDS.format(schema=schema))
        self._release = Statement("release", _RELEASE.format(schema=schema))
        self._leave = Statement("leave_lanes", _LEAVE.format(schema=schema))

    def take(
        self, pipeline: Pipeline, most: int, dead: Sequence[ObservedBroker] = (), served: Sequence[int] = ()
    ) -> list[TakenEnd]:
        """Take at most this number of lanes: own ones but those `served`, free ones, and those of dead brokers. A lane
        whose row is locked, because its owner has a group open, is passed over. So is a lane that may lack commits
        since a failover: see timelines.py."""
        values = (msgspec.json.encode(list(dead)), self._broker, self._epoch, most, msgspec.json.encode(list(served)))
        _, _, taken, _ = pipeline.run([BEGIN, LIMITS, StatementCall(self._take, values), COMMIT])
        lanes = {
            int(lane or 0): TakenEnd(int(lane or 0), int(epoch or 0), 0, former.decode() if former else None)
            for lane, epoch, former in taken.rows
        }
        if not lanes:
            return []
        # In the statement of the take, the snapshot is older than the lock: it would miss the old owner's last group.
        (found,) = pipeline.run([StatementCall(self._ends, (msgspec.json.encode(list(lanes)),))])
        ends = {int(lane or 0): int(end or 0) for lane, end in found.rows}
        return [lanes[lane]._replace(end=ends.get(lane, 0)) for lane in sorted(lanes)]

    def release(self, pipeline: Pipeline, lane: int, epoch: int, to: str | None = None) -> bool:
        """Give a lane up, after its last group. `to`: only this broker may take it, unless it has ended. False: another
        broker has taken the lane before."""
        _, _, reply, _ = pipeline.run([BEGIN, LIMITS, StatementCall(self._release, (lane, epoch, to)), COMMIT])
        return reply.changed == 1

    def leave(self) -> StatementCall:
        """Give all lanes of this run up."""
        return StatementCall(self._leave, (self._broker, self._epoch))


# A beat and a take hold the rows of brokers for a moment. Without limits, a transaction whose client is gone would hold
# them for ever, and each further beat would leave a session on the server that waits for them.
LIMITS: Final = StatementCall(
    Statement(
        "limits",
        "SELECT set_config('lock_timeout', '1000', true),"
        " set_config('idle_in_transaction_session_timeout', '5000', true)",
    )
)

# A run whose row has a higher epoch was replaced, and never beats again.
_TAKE: Final = """\
WITH dead AS (SELECT d.id, d.epoch FROM {schema}.brokers b
  JOIN json_to_recordset($1::json) AS d (id text, epoch bigint, beat bigint)
  ON b.id = d.id AND (b.epoch > d.epoch OR (b.epoch = d.epoch AND b.beat = d.beat)) FOR NO KEY UPDATE OF b),
 here AS MATERIALIZED ({timeline}),
 free AS (SELECT l.id, l.owner FROM {schema}.lanes l WHERE (l.owner IS NULL
   OR (l.owner = $2::text AND (l.owner_epoch <> $3::bigint
     OR l.id NOT IN (SELECT value::int FROM json_array_elements_text($5::json))))
   OR (l.owner, l.owner_epoch) IN (SELECT id, epoch FROM dead))
   AND (l.timeline IS NULL OR {trusts} OR l.timeline = (SELECT * FROM here))
  ORDER BY l.owner IS DISTINCT FROM $2::text, l.id LIMIT $4::int FOR NO KEY UPDATE OF l SKIP LOCKED)
UPDATE {schema}.lanes l SET owner = $2::text, owner_epoch = $3::bigint, epoch = l.epoch + 1,
 timeline = (SELECT * FROM here) FROM free f
WHERE l.id = f.id RETURNING l.id, l.epoch, f.owner"""

_ENDS: Final = """\
SELECT l.id, (SELECT max(seq) FROM {schema}.commits WHERE lane = l.id) FROM {schema}.lanes l
WHERE l.id IN (SELECT value::int FROM json_array_elements_text($1::json))"""

_RELEASE: Final = """\
WITH next AS (SELECT id, epoch FROM {schema}.brokers WHERE id = $3::text AND NOT is_draining)
UPDATE {schema}.lanes SET owner = (SELECT id FROM next), owner_epoch = (SELECT epoch FROM next), epoch = epoch + 1
WHERE id = $1::int AND epoch = $2::bigint"""

_LEAVE: Final = """\
UPDATE {schema}.lanes SET owner = NULL, owner_epoch = NULL, epoch = epoch + 1
WHERE owner = $1::text AND owner_epoch = $2::bigint"""
