"""The fence of a group, on the real server: lost answers, late commits, other owners and lost commits."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from stepwire_broker.store.postgres.failures import ConnectionLost, StatementFailed
from stepwire_broker.store.postgres.fence import Fence, LaneEnd, Position, Verdict, raised, verdict
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.troubles import trouble_of

from tests.postgres.proxy import Proxy
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]


class Owner:
    """A writer of lane 0 that believes to have this epoch, and writes marks as its groups' rows."""

    def __init__(self, pipeline: Pipeline, schema: str, epoch: int) -> None:
        self.pipeline = pipeline
        self.fence = Fence(schema)
        self.epoch = epoch
        self.mark = Statement("mark", f"INSERT INTO {schema}.meta VALUES ($1::text, $2::text)")

    def write(self, seq: int, mark: str) -> None:
        calls = [
            BEGIN,
            self.fence.call(Position(0, self.epoch, seq)),
            StatementCall(self.mark, (mark, str(seq))),
            COMMIT,
        ]
        self.pipeline.run(calls)

    def refused(self, seq: int, mark: str) -> Verdict | None:
        with pytest.raises(StatementFailed) as failed:
            self.write(seq, mark)
        assert self.pipeline.roll_back()
        return self.fence.judge(self.pipeline, Position(0, self.epoch, seq), failed.value)


def take(server: PostgresServer, schema: str) -> int:
    """Take the lane. Returns its new epoch."""
    text = f"UPDATE {schema}.lanes SET owner = 'b', epoch = epoch + 1 WHERE id = 0 RETURNING epoch"
    return int(server.sql(text)[0][0])


def marks(server: PostgresServer, schema: str) -> list[str]:
    select = f"SELECT name FROM {schema}.meta WHERE name NOT IN ('schema', 'serves_from') ORDER BY name"
    return [row[0] for row in server.sql(select)]


def ends(server: PostgresServer, schema: str) -> tuple[int, int]:
    """The lane's lowest and highest stored sequence."""
    (row,) = server.sql(f"SELECT min(seq), max(seq) FROM {schema}.commits WHERE lane = 0")
    return int(row[0]), int(row[1])


def test_groups_with_the_lanes_epoch_are_written_one_after_the_other(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    owner = Owner(open_pipeline(), schema, take(server, schema))
    for seq in (1, 2, 3):
        owner.write(seq, f"group {seq}")
    assert marks(server, schema) == ["group 1", "group 2", "group 3"]
    assert ends(server, schema) == (0, 3)


def test_a_group_that_was_committed_before_is_noticed_and_not_written_twice(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    epoch = take(server, schema)
    with Proxy(server.port) as proxy:
        owner = Owner(open_pipeline(server.url(port=proxy.port)), schema, epoch)
        proxy.plan("lose_answer")
        with pytest.raises(ConnectionLost):
            owner.write(1, "first")
        again = Owner(open_pipeline(), schema, epoch)
        assert again.refused(1, "second") == "committed"
    assert marks(server, schema) == ["first"]


def test_a_group_that_did_not_reach_the_server_is_written_by_its_repetition(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    epoch = take(server, schema)
    with Proxy(server.port) as proxy:
        owner = Owner(open_pipeline(server.url(port=proxy.port)), schema, epoch)
        proxy.plan("lose_commit")
        with pytest.raises(ConnectionLost):
            owner.write(1, "first")
    Owner(open_pipeline(), schema, epoch).write(1, "second")
    assert marks(server, schema) == ["second"]


def test_a_repetition_waits_for_the_late_commit_of_its_own_group_and_then_notices_it(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    epoch = take(server, schema)
    found: list[Verdict | None] = []
    with Proxy(server.port) as proxy:
        owner = Owner(open_pipeline(server.url(port=proxy.port)), schema, epoch)
        proxy.plan("hold")
        with pytest.raises(ConnectionLost):
            owner.write(1, "first")
        again = Owner(open_pipeline(), schema, epoch)
        repetition = threading.Thread(target=lambda: found.append(again.refused(1, "second")))
        repetition.start()
        wait_for_a_lock(server)
        proxy.release()
        repetition.join(30)
    assert found == ["committed"]
    assert marks(server, schema) == ["first"]


def test_a_take_waits_for_the_open_group_and_the_end_that_is_read_after_it_includes_that_group(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    epoch = take(server, schema)
    ends_read: list[Any] = []
    with Proxy(server.port) as proxy:
        owner = Owner(open_pipeline(server.url(port=proxy.port)), schema, epoch)
        proxy.plan("hold")
        with pytest.raises(ConnectionLost):
            owner.write(1, "last of the old owner")

        def take_over() -> None:
            ends_read.extend((take(server, schema), ends(server, schema)))

        taker = threading.Thread(target=take_over)
        taker.start()
        wait_for_a_lock(server)
        proxy.release()
        taker.join(30)
    assert ends_read == [epoch + 1, (0, 1)]


def test_a_commit_on_the_way_while_the_lane_is_taken_writes_nothing(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    old = Owner(open_pipeline(), schema, take(server, schema))
    old.write(1, "old 1")
    new = Owner(open_pipeline(), schema, take(server, schema))
    new.write(2, "new 2")
    assert old.refused(2, "old 2") == "lane_lost"  # the new owner has committed this sequence
    assert old.refused(3, "old 3") == "lane_lost"
    assert marks(server, schema) == ["new 2", "old 1"]


def test_the_old_owner_loses_a_race_with_a_take_that_has_the_lanes_lock(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    epoch = take(server, schema)
    old = Owner(open_pipeline(), schema, epoch)
    found: list[Verdict | None] = []
    with server.connect() as taker:
        taker.execute("BEGIN")
        taker.execute(f"UPDATE {schema}.lanes SET epoch = epoch + 1 WHERE id = 0".encode())
        late = threading.Thread(target=lambda: found.append(old.refused(1, "late")))
        late.start()
        wait_for_a_lock(server)
        taker.execute("COMMIT")
        late.join(30)
    assert found == ["lane_lost"]
    assert marks(server, schema) == []


def test_the_wait_for_the_lanes_row_has_a_limit_after_which_the_group_is_repeated(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    pipeline = open_pipeline()
    fence = Fence(schema, lock_ms=50)
    with server.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(f"SELECT 1 FROM {schema}.lanes FOR NO KEY UPDATE".encode())
        with pytest.raises(StatementFailed) as failed:
            pipeline.run([BEGIN, fence.call(Position(0, 0, 1)), COMMIT])
    assert failed.value.sqlstate == "55P03"
    assert trouble_of(failed.value).kind == "passing"
    assert pipeline.roll_back()
    assert fence.judge(pipeline, Position(0, 0, 1), failed.value) is None
    pipeline.run([BEGIN, fence.call(Position(0, 0, 1)), COMMIT])


def test_lost_commits_are_noticed_by_the_next_group(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    owner = Owner(open_pipeline(), schema, take(server, schema))
    for seq in (1, 2, 3):
        owner.write(seq, str(seq))
    server.sql(f"DELETE FROM {schema}.commits WHERE seq > 1")
    assert owner.refused(4, "4") == "commits_lost"


def test_an_error_of_another_statement_is_not_judged_as_the_fences(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    owner = Owner(open_pipeline(), schema, take(server, schema))
    owner.write(1, "same")
    assert owner.refused(2, "same") is None


def test_the_last_1000_commits_of_a_lane_are_kept(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    server.sql(f"INSERT INTO {schema}.commits SELECT 0, n, 0 FROM generate_series(1, 1500) AS n")
    server.sql(f"DELETE FROM {schema}.commits WHERE lane = 0 AND seq <= 500")
    owner = Owner(open_pipeline(), schema, take(server, schema))
    owner.write(1501, "x")
    assert ends(server, schema) == (502, 1501)


def test_a_group_plans_its_statements_without_hash_joins_and_leaves_the_session_as_it_was(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    pipeline = open_pipeline()
    names = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "lock_timeout")
    show = StatementCall(Statement("show", "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)))
    fence = Fence(schema).call(Position(0, take(server, schema), 1))
    inside = pipeline.run([BEGIN, fence, show, COMMIT])[2].rows
    assert inside == [(b"off", b"off", b"off", b"5s")]
    assert pipeline.run([show])[0].rows == [(b"on", b"on", b"on", b"0")]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (LaneEnd(epoch=7, end=9, committed_by=7), "committed"),
        (LaneEnd(epoch=8, end=9, committed_by=7), "committed"),  # ours, and the lane was taken since
        (LaneEnd(epoch=8, end=9, committed_by=8), "lane_lost"),  # its next owner has gone on
        (LaneEnd(epoch=7, end=9, committed_by=6), "end_misread"),
        (LaneEnd(epoch=8, end=8, committed_by=None), "lane_lost"),
        (LaneEnd(epoch=7, end=5, committed_by=None), "commits_lost"),
        (LaneEnd(epoch=7, end=8, committed_by=None), "repeat"),
    ],
)
def test_the_verdict_follows_from_the_lanes_epoch_and_end(found: LaneEnd, expected: Verdict) -> None:
    position = Position(lane=0, epoch=7, seq=9)
    assert verdict(position, found) == expected
    error = raised(position, expected)
    assert (error is None) == (expected in ("committed", "repeat"))
    assert error is None or "lane 0" in str(error)


def wait_for_a_lock(server: PostgresServer) -> None:
    """Wait until a connection waits for a lock."""
    server.wait_for("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
