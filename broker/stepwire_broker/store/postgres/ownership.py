"""The statements that change the owner of lanes: take, release, and the read of a taken lane's end.

A take locks the rows of the brokers that it believes to be dead. A beat of such a broker therefore comes before the
take, which then changes nothing, or after it, and then reads the new owners.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from .pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from .timelines import TIMELINE


class ObservedBroker(NamedTuple):
    """A broker as its row was when it was last seen to change."""

    id: str
    epoch: int
    beat: int


class TakenEnd(NamedTuple):
    lane: int
    epoch: int
    end: int  # the sequence of the last group of its former owner


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

    def take(self, pipeline: Pipeline, most: int, dead: Sequence[ObservedBroker] = ()) -> list[TakenEnd]:
        """Take at most this number of lanes: free ones, own ones of a former run, and those of dead brokers. A lane
        whose row is locked, because its owner has a group open, is passed over. So is a lane that may lack
        commits since a failover: see timelines.py."""
        observed = msgspec.json.encode([broker._asdict() for broker in dead])
        values = (observed, self._broker, self._epoch, most)
        _, taken, _ = pipeline.run([BEGIN, StatementCall(self._take, values), COMMIT])
        epochs = {int(lane or 0): int(epoch or 0) for lane, epoch in taken.rows}
        if not epochs:
            return []
        # In the statement of the take, the snapshot is older than the lock: it would miss the old owner's last group.
        (found,) = pipeline.run([StatementCall(self._ends, (msgspec.json.encode(list(epochs)),))])
        ends = {int(lane or 0): int(end or 0) for lane, end in found.rows}
        return [TakenEnd(lane, epoch, ends.get(lane, 0)) for lane, epoch in sorted(epochs.items())]

    def release(self, pipeline: Pipeline, lane: int, epoch: int) -> bool:
        """Give a lane up, after its last group. False: another broker has taken it before."""
        (reply,) = pipeline.run([StatementCall(self._release, (lane, epoch))])
        return reply.changed == 1


_TAKE: Final = """\
WITH dead AS (SELECT b.id, b.epoch FROM {schema}.brokers b
  JOIN json_to_recordset($1::json) AS d (id text, epoch bigint, beat bigint) USING (id, epoch, beat)
  FOR NO KEY UPDATE OF b),
 here AS MATERIALIZED ({timeline}),
 free AS (SELECT l.id FROM {schema}.lanes l WHERE (l.owner IS NULL
   OR (l.owner = $2::text AND l.owner_epoch <> $3::bigint) OR (l.owner, l.owner_epoch) IN (SELECT id, epoch FROM dead))
   AND (l.timeline IS NULL OR {trusts} OR l.timeline = (SELECT * FROM here))
  ORDER BY l.id LIMIT $4::int FOR NO KEY UPDATE OF l SKIP LOCKED)
UPDATE {schema}.lanes l SET owner = $2::text, owner_epoch = $3::bigint, epoch = l.epoch + 1,
 timeline = (SELECT * FROM here) FROM free f
WHERE l.id = f.id RETURNING l.id, l.epoch"""

_ENDS: Final = """\
SELECT l.id, (SELECT max(seq) FROM {schema}.commits WHERE lane = l.id) FROM {schema}.lanes l
WHERE l.id IN (SELECT value::int FROM json_array_elements_text($1::json))"""

_RELEASE: Final = """\
UPDATE {schema}.lanes SET owner = NULL, owner_epoch = NULL, epoch = epoch + 1
WHERE id = $1::int AND epoch = $2::bigint"""
