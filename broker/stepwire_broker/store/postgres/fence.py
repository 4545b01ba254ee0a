"""The fence: the first statement of every group. It raises an error unless the lane is still this broker's.

An error, rather than a count that the broker looks at, also stops a COMMIT that is already on the way. The lane's row
is locked, not changed, and each commit appends a row: updating one row would leave a dead version per commit, which a
long transaction keeps from being removed.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

from .failures import FenceRaised, StatementFailed
from .pipeline import Pipeline, Statement, StatementCall

COMMITS_KEPT: Final = 1_000  # of each lane
LOCK_MS: Final = 5_000
IDLE_MS: Final = 10_000  # a suspended broker holds its locks for at most this time

UNIQUE: Final = "23505"
DIVISION_BY_ZERO: Final = "22012"
LOCK_NOT_AVAILABLE: Final = "55P03"

Verdict: TypeAlias = Literal["committed", "repeat", "lane_lost", "commits_lost", "end_misread"]


class Position(NamedTuple):
    """A group's place: the lane's number and epoch as this broker took it, and the group's sequence."""

    lane: int
    epoch: int
    seq: int


class LaneEnd(NamedTuple):
    """The row and the commits of a lane, as the database holds them."""

    epoch: int
    end: int  # the highest committed sequence
    committed_by: int | None  # the epoch that committed the sequence in question


class Fence:
    """The fence of one schema."""

    def __init__(self, schema: str, *, lock_ms: int = LOCK_MS) -> None:
        settings = _SETTINGS.format(lock_ms=lock_ms, idle_ms=IDLE_MS)
        self.statement = Statement("fence", _FENCE.format(schema=schema, kept=COMMITS_KEPT, settings=settings))
        self._lock = Statement("lock_lane", _LOCK.format(schema=schema, settings=settings))
        self._hold = Statement("hold_lane", _HOLD.format(schema=schema, settings=settings))
        self._end = Statement("lane_end", _END.format(schema=schema))

    def call(self, position: Position) -> StatementCall:
        return StatementCall(self.statement, position)

    def lock(self, lane: int, epoch: int) -> StatementCall:
        """Lock the lane for a transaction without a sequence. No row: the lane belongs to another epoch."""
        return StatementCall(self._lock, (lane, epoch))

    def hold(self, lane: int, epoch: int) -> StatementCall:
        """Lock the lane as `lock` does, and raise an error if it belongs to another epoch, so that a COMMIT in the same
        trip cannot commit."""
        return StatementCall(self._hold, (lane, epoch))

    def judge(self, pipeline: Pipeline, position: Position, failure: StatementFailed) -> Verdict | None:
        """Read why the fence refused. None: another statement failed. The caller has rolled back."""
        return self.read(pipeline, position) if self.has_refused(failure) else None

    def has_refused(self, failure: StatementFailed) -> bool:
        return failure.name == self.statement.name and failure.sqlstate in (UNIQUE, DIVISION_BY_ZERO)

    def read(self, pipeline: Pipeline, position: Position) -> Verdict:
        """Read why the fence refused. The caller has rolled back."""
        (reply,) = pipeline.run([StatementCall(self._end, (position.lane, position.seq))])
        if not reply.rows:
            return "commits_lost"  # the lane itself is gone
        return verdict(position, LaneEnd(*(None if value is None else int(value) for value in reply.rows[0])))  # type: ignore[arg-type]


def verdict(position: Position, found: LaneEnd) -> Verdict:
    """Decide from the lane's row and end. `committed`: an earlier attempt was committed and its answer lost."""
    if found.committed_by == position.epoch:
        return "committed"  # the group is ours
    if found.committed_by is not None:
        # A later owner goes on where this one ended. If it was an earlier one, the end that we were given was wrong.
        return "lane_lost" if found.committed_by > position.epoch else "end_misread"
    if found.epoch != position.epoch:
        return "lane_lost"
    return "commits_lost" if found.end < position.seq - 1 else "repeat"


def raised(position: Position, found: Verdict) -> FenceRaised | None:
    """The error of a final verdict."""
    lane, epoch, seq = position
    if found == "lane_lost":
        return FenceRaised(found, f"lane {lane} has another owner: epoch {epoch} is over")
    if found == "commits_lost":
        return FenceRaised(found, f"lane {lane} ends before {seq - 1}, which was committed: commits were lost")
    if found == "end_misread":
        return FenceRaised(found, f"sequence {seq} of lane {lane} was committed by an earlier owner")
    return None


# The settings come first, so that the wait for the lane's row has its limit too.
_SETTINGS: Final = """\
settings AS MATERIALIZED (SELECT set_config('lock_timeout', '{lock_ms}', true),
  set_config('idle_in_transaction_session_timeout', '{idle_ms}', true), set_config('enable_hashjoin', 'off', true),
  set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true))"""

_FENCE: Final = """\
WITH {settings},
 mine AS (SELECT 1 FROM settings CROSS JOIN {schema}.lanes WHERE id = $1::int AND epoch = $2::bigint
  FOR NO KEY UPDATE OF lanes),
 moved AS (INSERT INTO {schema}.commits (lane, seq, epoch) SELECT $1::int, $3::bigint, $2::bigint FROM mine
  WHERE EXISTS (SELECT 1 FROM {schema}.commits WHERE lane = $1::int AND seq = $3::bigint - 1) RETURNING 1),
 swept AS (DELETE FROM {schema}.commits WHERE lane = $1::int AND seq = $3::bigint - {kept})
SELECT 1 / count(*) FROM moved"""

# The row's lock is written to the log, so a standby confirms a transaction that does nothing else.
_LOCK: Final = """\
WITH {settings}
SELECT 1 FROM settings CROSS JOIN {schema}.lanes WHERE id = $1::int AND epoch = $2::bigint
 FOR NO KEY UPDATE OF lanes"""

_HOLD: Final = """\
WITH {settings},
 mine AS (SELECT 1 FROM settings CROSS JOIN {schema}.lanes WHERE id = $1::int AND epoch = $2::bigint
  FOR NO KEY UPDATE OF lanes)
SELECT 1 / count(*) FROM mine"""

_END: Final = """\
SELECT l.epoch, (SELECT coalesce(max(seq), 0) FROM {schema}.commits WHERE lane = l.id),
 (SELECT epoch FROM {schema}.commits WHERE lane = l.id AND seq = $2::bigint)
FROM {schema}.lanes l WHERE l.id = $1::int"""
