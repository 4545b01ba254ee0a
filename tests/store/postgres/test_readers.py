"""Readers of a real server: parallel, bounded, read-only, and back after a loss."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.connecting import PostgresConnection
from stepwire_broker.store.postgres.failures import ConnectionLost, StatementFailed
from stepwire_broker.store.postgres.readers import PostgresReaders, ReadersBusy

from tests.postgres.pooler import Pooler
from tests.postgres.proxy import Proxy
from tests.postgres.server import PostgresServer

Readers = PostgresReaders[PostgresConnection]
PATIENCE_S = 60


@pytest.fixture
def open_readers(server: PostgresServer) -> Iterator[Callable[..., Readers]]:
    opened: list[Readers] = []

    def make(url: str | None = None, count: int = 2, **changes: Any) -> Readers:
        address = read_address(url or server.socket_url())
        changes = {"wait_s": PATIENCE_S, "is_prepared": url is None} | changes
        opened.append(PostgresReaders(address, count, lambda connection: connection, schema="public", **changes))
        return opened[-1]

    yield make
    for readers in opened:
        readers.close()


def value(connection: PostgresConnection, text: str, *values: object) -> Any:
    row = connection.execute(text.encode(), values or None).fetchone()
    return None if row is None else row[0]


def test_a_query_gets_its_arguments_and_its_result_is_returned(open_readers: Callable[..., Readers]) -> None:
    assert open_readers().read(value, "SELECT %s::int + 1", 41).result(PATIENCE_S) == 42


def test_readers_work_at_the_same_time(open_readers: Callable[..., Readers]) -> None:
    readers = open_readers(count=2)
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def meet(connection: PostgresConnection) -> Any:
        meeting.wait()
        return value(connection, "SELECT pg_backend_pid()")

    pids = {future.result(PATIENCE_S) for future in [readers.read(meet), readers.read(meet)]}
    assert len(pids) == 2


def test_a_long_read_delays_no_other_read(open_readers: Callable[..., Readers]) -> None:
    readers = open_readers(count=1)
    go_on = threading.Event()
    long_read = readers.scan(lambda connection: go_on.wait(PATIENCE_S))
    assert readers.read(value, "SELECT 1").result(PATIENCE_S) == 1
    go_on.set()
    assert long_read.result(PATIENCE_S)


def test_a_reader_whose_answer_never_comes_reads_again_after_the_next_query_is_asked(
    server: PostgresServer, open_readers: Callable[..., Readers]
) -> None:
    with Proxy(server.port) as proxy:
        readers = open_readers(server.url(port=proxy.port), count=1, read_ms=1_000, answer_s=0.0)
        proxy.plan("mute")
        unanswered = readers.read(value, "SELECT 1")
        asked = []
        while not unanswered.done():
            asked.append(readers.read(value, "SELECT 2"))
            time.sleep(0.1)
            assert len(asked) < 10 * PATIENCE_S
        with pytest.raises(ConnectionLost):
            unanswered.result()
        assert proxy.commits_cut == 1
        assert asked[-1].result(PATIENCE_S) == 2


def test_a_query_that_waits_too_long_for_a_reader_is_refused(open_readers: Callable[..., Readers]) -> None:
    patient, hurried = open_readers(count=1), open_readers(count=1, wait_s=-1)  # every wait is longer than this one
    assert patient.read(value, "SELECT 1").result(PATIENCE_S) == 1
    with pytest.raises(ReadersBusy, match="no connection for reading became free"):
        hurried.read(value, "SELECT 1").result(PATIENCE_S)


def test_a_query_that_runs_too_long_is_ended_and_the_reader_goes_on(open_readers: Callable[..., Readers]) -> None:
    readers = open_readers(count=1, read_ms=50)
    with pytest.raises(StatementFailed) as failed:
        readers.read(value, "SELECT pg_sleep(60)").result(PATIENCE_S)
    assert failed.value.sqlstate == "57014"
    assert readers.read(value, "SELECT 1").result(PATIENCE_S) == 1


def test_a_reader_cannot_write(open_readers: Callable[..., Readers], schema: str) -> None:
    with pytest.raises(StatementFailed) as failed:
        open_readers().read(value, f"DELETE FROM {schema}.lanes RETURNING 1").result(PATIENCE_S)
    assert failed.value.sqlstate == "25006"


def test_an_error_of_a_query_itself_is_its_callers_and_leaves_no_transaction_open(
    server: PostgresServer, open_readers: Callable[..., Readers]
) -> None:
    readers = open_readers(count=1)

    def wrong(connection: PostgresConnection) -> None:
        value(connection, "SELECT 1")
        raise KeyError("wrong")

    with pytest.raises(KeyError):
        readers.read(wrong).result(PATIENCE_S)
    open_transactions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwire-reader' AND xact_start IS NOT NULL"
    )
    assert server.sql(open_transactions) == [(0,)]


def test_a_reader_whose_connection_was_ended_reports_the_loss_and_connects_again(
    server: PostgresServer, open_readers: Callable[..., Readers]
) -> None:
    readers = open_readers(count=1)
    readers.read(value, "SELECT 1").result(PATIENCE_S)
    assert server.terminate_backends("stepwire-reader") == 1
    with pytest.raises(ConnectionLost):
        readers.read(value, "SELECT 1").result(PATIENCE_S)
    assert readers.read(value, "SELECT 1").result(PATIENCE_S) == 1


def test_readers_pass_a_pooler_in_transaction_mode(
    server: PostgresServer, open_readers: Callable[..., Readers]
) -> None:
    with Pooler(server, connections=1) as pooler:
        readers = open_readers(pooler.url(), count=3)
        futures = [readers.read(value, "SELECT %s::int", number) for number in range(60)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(60))
        readers.close()


def test_no_read_runs_in_the_callers_own_thread(open_readers: Callable[..., Readers]) -> None:
    assert open_readers().read_at_once(value, "SELECT 1") is None
