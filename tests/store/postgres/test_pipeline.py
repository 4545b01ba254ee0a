"""Several statements in one trip, directly and through a pooler."""

from collections.abc import Callable, Iterator

import pytest
from stepwire_broker.store.postgres.failures import ConnectionLost, StatementFailed
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall

from tests.postgres.pooler import Pooler
from tests.postgres.proxy import Proxy
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]

ONE = Statement("one", "SELECT $1::int + 1")
LENGTH = Statement("length", "SELECT length($1::text), $1::text")
PID = Statement("pid", "SELECT pg_backend_pid()")


def seqs(server: PostgresServer, schema: str) -> list[int]:
    return [row[0] for row in server.sql(f"SELECT seq FROM {schema}.commits WHERE lane = 0 ORDER BY seq")]


def insert(schema: str) -> Statement:
    return Statement("insert", f"INSERT INTO {schema}.commits VALUES (0, $1::bigint, 1)")


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    with Pooler(server, connections=2) as running:
        yield running


@pytest.mark.parametrize("is_prepared", [True, False])
def test_the_statements_of_a_trip_are_answered_in_order(open_pipeline: Open, is_prepared: bool) -> None:
    pipeline = open_pipeline(is_prepared=is_prepared)
    for start in (1, 10):
        replies = pipeline.run([BEGIN, StatementCall(ONE, (start,)), StatementCall(ONE, (start + 1,)), COMMIT])
        assert [reply.rows for reply in replies[1:3]] == [[(b"%d" % (start + 1),)], [(b"%d" % (start + 2),)]]
    assert pipeline.is_idle


def test_a_prepared_statement_is_planned_once_for_a_connection(open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    count = Statement("count", "SELECT count(*) FROM pg_prepared_statements WHERE name = 'one'")
    for _ in range(3):
        pipeline.run([StatementCall(ONE, (1,))])
    assert pipeline.run([StatementCall(count)])[0].rows == [(b"1",)]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_no_statement_after_a_failed_one_runs_and_the_commit_neither(
    server: PostgresServer, schema: str, open_pipeline: Open, is_prepared: bool
) -> None:
    pipeline = open_pipeline(is_prepared=is_prepared)
    new = insert(schema)
    with pytest.raises(StatementFailed) as failed:
        pipeline.run([BEGIN, StatementCall(new, (1,)), StatementCall(new, (1,)), StatementCall(new, (2,)), COMMIT])
    assert (failed.value.position, failed.value.sqlstate, failed.value.constraint) == (2, "23505", "commits_pkey")
    assert pipeline.roll_back()
    assert seqs(server, schema) == [0]
    pipeline.run([BEGIN, StatementCall(new, (1,)), COMMIT])
    assert seqs(server, schema) == [0, 1]


def test_a_statement_that_cannot_be_prepared_fails_under_its_own_name_and_can_be_corrected(open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    with pytest.raises(StatementFailed) as failed:
        pipeline.run([StatementCall(ONE, (1,)), StatementCall(Statement("bad", "SELECT nothing"), ())])
    assert (failed.value.position, failed.value.name, failed.value.sqlstate) == (1, "bad", "42703")
    assert pipeline.run([StatementCall(ONE, (1,))])[0].rows == [(b"2",)]


def test_a_trip_larger_than_every_buffer_is_sent_while_its_answers_are_read(open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    large = "x" * 5_000_000
    replies = pipeline.run([StatementCall(LENGTH, (large,))] * 4)
    assert [reply.rows[0][0] for reply in replies] == [b"5000000"] * 4


def test_a_text_with_the_character_u0000_is_refused_rather_than_cut(open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    with pytest.raises(UnicodeError, match=r"U\+0000"):
        pipeline.run([StatementCall(LENGTH, ("a\0b",))])


def test_null_and_the_empty_text_are_different(open_pipeline: Open) -> None:
    replies = open_pipeline().run([StatementCall(LENGTH, (None,)), StatementCall(LENGTH, ("",))])
    assert [reply.rows for reply in replies] == [[(None, None)], [(b"0", b"")]]


def test_a_commit_whose_answer_is_lost_is_committed_and_reported_as_unknown(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    with Proxy(server.port) as proxy:
        pipeline = open_pipeline(server.url(port=proxy.port))
        proxy.plan("lose_answer")
        with pytest.raises(ConnectionLost):
            pipeline.run([BEGIN, StatementCall(insert(schema), (1,)), COMMIT])
        assert proxy.commits_cut == 1
    assert seqs(server, schema) == [0, 1]
    assert not pipeline.roll_back()


def test_a_commit_that_does_not_reach_the_server_is_reported_alike_and_is_not_committed(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    with Proxy(server.port) as proxy:
        pipeline = open_pipeline(server.url(port=proxy.port))
        proxy.plan("lose_commit")
        with pytest.raises(ConnectionLost):
            pipeline.run([BEGIN, StatementCall(insert(schema), (1,)), COMMIT])
        assert proxy.commits_cut == 1
    assert seqs(server, schema) == [0]


def test_a_server_that_does_not_answer_is_given_up_after_the_limit(
    server: PostgresServer, schema: str, open_pipeline: Open
) -> None:
    with Proxy(server.port) as proxy:
        pipeline = open_pipeline(server.url(port=proxy.port), answer_s=0.5)
        proxy.plan("mute")
        with pytest.raises(ConnectionLost, match=r"no answer for 0\.5 s"):
            pipeline.run([BEGIN, StatementCall(insert(schema), (1,)), COMMIT])
    assert seqs(server, schema) == [0, 1]


def test_unprepared_trips_pass_a_pooler_in_transaction_mode_whichever_connection_serves_them(
    server: PostgresServer, schema: str, pooler: Pooler, open_pipeline: Open
) -> None:
    pipelines = [open_pipeline(pooler.url(), is_prepared=False) for _ in range(4)]
    numbers = set()
    for seq in range(1, 41):
        _, _, reply, _ = pipelines[seq % 4].run(
            [BEGIN, StatementCall(insert(schema), (seq,)), StatementCall(PID), COMMIT]
        )
        numbers |= {reply.rows[0][0]}
    assert seqs(server, schema) == list(range(41))
    assert len(numbers) <= 2  # of the server's own connections


def test_two_trips_of_one_transaction_pass_a_pooler_on_the_same_connection(
    server: PostgresServer, schema: str, pooler: Pooler, open_pipeline: Open
) -> None:
    one, other = (open_pipeline(pooler.url(), is_prepared=False) for _ in range(2))
    begun = one.run([BEGIN, StatementCall(PID)])[1].rows
    other.run([BEGIN, StatementCall(PID), COMMIT])
    assert one.run([StatementCall(PID), COMMIT])[0].rows == begun
