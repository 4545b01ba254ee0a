"""The timeline of the server, by which a broker notices that another server answers, or an older copy of this one.

A promotion of a standby begins a new timeline, and a restore has another system identifier or a new timeline. Each lane
has the timeline on which its commits are known to be complete: its owner writes it with the first group that the fence
accepts there. A lane with another timeline may lack commits that were acknowledged.
"""

from collections.abc import Callable
from typing import Final

import structlog

from .connecting import PostgresConnection
from .failures import ConnectionLost, StatementFailed
from .pipeline import Pipeline, Statement, StatementCall

log = structlog.get_logger("stepwire.store")

# Selects text: the identifier that initdb gave the server's data, and the number of the timeline.
TIMELINE: Final = """\
SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
FROM pg_control_system()"""

# Selects true for a lane that may lack commits.
IN_DOUBT: Final = f"coalesce(lanes.timeline <> ({TIMELINE}), false)"

_TIMELINE: Final = StatementCall(Statement("timeline", TIMELINE))


class LaneTimeline:
    """The timeline of the server to which a lane's writer is connected."""

    def __init__(self, connect: Callable[[], Pipeline], schema: str, lane: int, epoch: int) -> None:
        self._connect = connect
        self._lane = lane
        self._epoch = epoch
        self._note = Statement(
            "note_timeline",
            f"UPDATE {schema}.lanes SET timeline = $3::text WHERE id = $1::int AND epoch = $2::bigint "  # noqa: S608
            "AND timeline IS DISTINCT FROM $3::text",
        )
        self._now = ""
        self._noted = ""

    def connect(self) -> Pipeline:
        """Open a connection, and look which server answers. Raises ConnectionLost."""
        pipeline = self._connect()
        timeline = _read(pipeline)
        if self._now not in ("", timeline):
            log.warning("database_timeline_changed", lane=self._lane, before=self._now, now=timeline)
        self._now = timeline
        return pipeline

    def notes(self) -> list[StatementCall]:
        """The statement after the fence of the first group on another timeline: the lane is complete there."""
        return [] if self._now == self._noted else [StatementCall(self._note, (self._lane, self._epoch, self._now))]

    def committed(self) -> None:
        self._noted = self._now


def _read(pipeline: Pipeline) -> str:
    """Read the timeline. Raises ConnectionLost if the server is not the primary."""
    try:
        (reply,) = pipeline.run([_TIMELINE])
    except StatementFailed as error:
        pipeline.close()
        raise ConnectionLost(f"the server's timeline cannot be read: {error}") from error
    return (reply.rows[0][0] or b"").decode()


def lanes_in_doubt(connection: PostgresConnection, schema: str) -> list[int]:
    """Return the lanes that may lack commits."""
    rows = connection.execute(
        f"SELECT id FROM {schema}.lanes WHERE {IN_DOUBT} ORDER BY id".encode()  # noqa: S608
    ).fetchall()
    return [int(lane) for (lane,) in rows]
