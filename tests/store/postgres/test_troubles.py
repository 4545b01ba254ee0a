"""Every class of errors, provoked on the real server, and its meaning for a lane."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from stepwire_broker.core.model.commit_group import StallCode
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.connecting import connect
from stepwire_broker.store.postgres.failures import CommitUnconfirmed, ConnectionLost, StatementFailed
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.troubles import trouble_of

from tests.postgres.proxy import Proxy
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]


def call(text: str) -> StatementCall:
    return StatementCall(Statement("step", text))


def error_of(work: Callable[[], object]) -> Exception:
    with pytest.raises((StatementFailed, ConnectionLost)) as raised:
        work()
    return raised.value


def assert_passing(error: Exception, code: StallCode, sqlstate: str | None = None) -> None:
    trouble = trouble_of(error)
    assert (trouble.kind, trouble.code) == ("passing", code), trouble
    if sqlstate is not None:
        assert isinstance(error, StatementFailed)
        assert error.sqlstate == sqlstate


@pytest.fixture
def table(server: PostgresServer, schema: str) -> str:
    name = f"{schema}.numbers"
    server.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, n int CHECK (n < 100), text text)")
    server.sql(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    return name


# -- data: the piece at fault is found and parked ---------------------------------------------------------------------

REFUSED_DATA = {
    "a number out of range": ("INSERT INTO {table} VALUES (3, 3000000000)", "22003"),
    "a second row with the same key": ("INSERT INTO {table} VALUES (1, 1)", "23505"),
    "a row that a check refuses": ("INSERT INTO {table} VALUES (3, 100)", "23514"),
    "a missing value": ("INSERT INTO {table} VALUES (NULL, 1)", "23502"),
    "a row that is missing": ("SELECT ('rows are missing: ' || count(*))::int FROM {table} WHERE id = 9", "22P02"),
    "the character U+0000": (r"""SELECT * FROM json_to_recordset('[{{"a":"\u0000"}}]') AS v(a text)""", "22P05"),
    "half of a surrogate pair": (r"""SELECT * FROM json_to_recordset('[{{"a":"\ud800"}}]') AS v(a text)""", "22P02"),
    "a text that is no JSON": ("SELECT * FROM json_to_recordset('[{{') AS v(a text)", "22P02"),
    "a number that no bigint holds": (
        """SELECT * FROM json_to_recordset('[{{"a":1e999}}]') AS v(a bigint)""",
        "22P02",
    ),
    "an integer of 5,000 digits": (
        """SELECT * FROM json_to_recordset(('[{{"a":' || repeat('9', 5000) || '}}]')::json) AS v(a bigint)""",
        "22003",
    ),
    "JSON that is too deep": ("SELECT repeat('[', 1000000)::json", "54001"),
    "a key too large for its index": (
        "INSERT INTO {schema}.keys SELECT string_agg(md5(n::text), ''), '', '', 1 FROM generate_series(1, 2000) n",
        "54000",
    ),
}


@pytest.mark.parametrize("what", REFUSED_DATA)
def test_refused_data_are_at_fault_themselves(schema: str, table: str, open_pipeline: Open, what: str) -> None:
    text, sqlstate = REFUSED_DATA[what]
    pipeline = open_pipeline()
    error = error_of(lambda: pipeline.run([BEGIN, call(text.format(table=table, schema=schema)), COMMIT]))
    assert isinstance(error, StatementFailed)
    assert error.sqlstate == sqlstate
    assert trouble_of(error).kind == "data"
    assert pipeline.roll_back()


def test_bytes_that_are_not_utf_8_are_at_fault_themselves(open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    invalid = StatementCall(Statement("text", "SELECT $1::text"), (b"\xff",))
    error = error_of(lambda: pipeline.run([invalid]))
    assert isinstance(error, StatementFailed)
    assert error.sqlstate == "22021"
    assert trouble_of(error).kind == "data"


def test_a_value_that_has_no_form_in_utf_8_is_at_fault_itself(open_pipeline: Open) -> None:
    for value in ("a\0b", "\ud800"):
        with pytest.raises(UnicodeError) as raised:
            open_pipeline().run([StatementCall(Statement("text", "SELECT $1::text"), (value,))])
        assert trouble_of(raised.value).kind == "data"


# -- temporary: the same group is repeated ----------------------------------------------------------------------------


def test_a_deadlock_is_temporary(server: PostgresServer, table: str, open_pipeline: Open) -> None:
    one, other = open_pipeline(), open_pipeline()
    server.sql("ALTER SYSTEM SET deadlock_timeout = '50ms'")
    server.sql("SELECT pg_reload_conf()")
    update = f"UPDATE {table} SET n = n WHERE id = "
    one.run([BEGIN, call(update + "1")])
    other.run([BEGIN, call("SELECT 1")])
    other.run([StatementCall(Statement("second", update + "2"))])
    errors: list[Exception] = []

    def run(pipeline: Pipeline, row: int) -> None:
        try:
            pipeline.run([StatementCall(Statement(f"third{row}", update + str(row))), COMMIT])
        except StatementFailed as error:
            errors.append(error)
            pipeline.roll_back()

    threads = [threading.Thread(target=run, args=arguments) for arguments in ((one, 2), (other, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    server.sql("ALTER SYSTEM RESET deadlock_timeout")
    (error,) = errors
    assert_passing(error, "database_locked", "40P01")


def test_a_lock_that_is_held_too_long_is_temporary(server: PostgresServer, table: str, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    with server.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(f"LOCK TABLE {table}".encode())
        limit = call("SELECT set_config('lock_timeout', '50ms', true)")
        read = StatementCall(Statement("read", f"SELECT * FROM {table}"))
        error = error_of(lambda: pipeline.run([BEGIN, limit, read, COMMIT]))
    assert_passing(error, "database_locked", "55P03")


def test_a_failed_serialisation_is_temporary(table: str, open_pipeline: Open) -> None:
    one, other = open_pipeline(), open_pipeline()
    one.run([call("BEGIN ISOLATION LEVEL REPEATABLE READ")])
    one.run([StatementCall(Statement("read", f"SELECT * FROM {table}"))])
    other.run([call(f"UPDATE {table} SET n = 5 WHERE id = 1")])
    update = StatementCall(Statement("update", f"UPDATE {table} SET n = 6 WHERE id = 1"))
    assert_passing(error_of(lambda: one.run([update])), "database_locked", "40001")


def test_a_cancelled_statement_is_temporary(table: str, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    limit = call("SELECT set_config('statement_timeout', '20ms', true)")
    sleep = StatementCall(Statement("sleep", "SELECT pg_sleep(60)"))
    error = error_of(lambda: pipeline.run([BEGIN, limit, sleep, COMMIT]))
    assert_passing(error, "database_locked", "57014")


def test_a_transaction_that_was_idle_too_long_is_temporary(server: PostgresServer, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    limit = "SELECT set_config('idle_in_transaction_session_timeout', '20ms', true), pg_backend_pid()"
    _, reply = pipeline.run([BEGIN, call(limit)])
    assert reply.rows
    server.wait_for(f"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {int(reply.rows[0][1] or 0)}")
    trouble = trouble_of(error_of(lambda: pipeline.run([COMMIT])))
    assert trouble.kind == "passing"


def test_a_terminated_connection_is_temporary(server: PostgresServer, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    assert server.terminate_backends("stepwire test") == 1
    assert trouble_of(error_of(lambda: pipeline.run([call("SELECT 1")]))).kind == "passing"
    assert not pipeline.roll_back() or pipeline.is_idle
    open_pipeline().run([call("SELECT 1")])


def test_a_connection_that_is_terminated_in_the_middle_of_a_statement_is_temporary(
    server: PostgresServer, open_pipeline: Open
) -> None:
    pipeline = open_pipeline()
    errors: list[Exception] = []
    sleep = StatementCall(Statement("sleep", "SELECT pg_sleep(60)"))
    thread = threading.Thread(target=lambda: errors.append(error_of(lambda: pipeline.run([BEGIN, sleep, COMMIT]))))
    thread.start()
    server.wait_for("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    server.terminate_backends("stepwire test")
    thread.join(30)
    assert_passing(errors[0], "database_unavailable")


def test_a_crash_and_a_refused_connection_are_temporary_and_acknowledged_commits_remain(
    server: PostgresServer, table: str, open_pipeline: Open
) -> None:
    pipeline = open_pipeline()
    pipeline.run([BEGIN, call(f"INSERT INTO {table} VALUES (3, 3)"), COMMIT])
    server.stop("immediate")
    try:
        assert_passing(error_of(lambda: pipeline.run([call("SELECT 1")])), "database_unavailable")
        address = read_address(server.url())
        assert_passing(error_of(lambda: connect(address, "stepwire test")), "database_unavailable")
    finally:
        server.start()
    assert server.sql(f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_full_disk_is_temporary(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    with small_disk(server) as disk:
        server.sql(f"CREATE TABLE {schema}.large (text text) TABLESPACE {disk}")
        pipeline = open_pipeline()
        text = f"INSERT INTO {schema}.large SELECT repeat(md5(n::text), 30) FROM generate_series(1, 5000) AS n"
        error = error_of(lambda: pipeline.run([BEGIN, call(text), COMMIT]))
        assert pipeline.roll_back()
        server.sql(f"DROP TABLE {schema}.large")
    assert_passing(error, "disk_full", "53100")


def test_a_database_that_cannot_be_written_is_temporary(
    server: PostgresServer, table: str, open_pipeline: Open
) -> None:
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on")
    try:
        pipeline = open_pipeline()
        error = error_of(lambda: pipeline.run([BEGIN, call(f"DELETE FROM {table}"), COMMIT]))
    finally:
        with server.connect() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
    assert_passing(error, "database_read_only", "25006")


def test_a_server_without_a_free_connection_is_temporary(server: PostgresServer) -> None:
    server.sql(f"CREATE ROLE crowd LOGIN CONNECTION LIMIT 1 PASSWORD '{server.password}'")
    address = read_address(server.url(user="crowd"))
    with connect(address, "stepwire test"):
        error = error_of(lambda: connect(address, "stepwire test"))
    assert "too many connections" in str(error)
    assert_passing(error, "database_unavailable")
    server.sql("DROP ROLE crowd")


def test_a_lost_answer_to_a_commit_is_temporary(server: PostgresServer, table: str, open_pipeline: Open) -> None:
    with Proxy(server.port) as proxy:
        pipeline = open_pipeline(server.url(port=proxy.port))
        proxy.plan("lose_answer")
        error = error_of(lambda: pipeline.run([BEGIN, call(f"INSERT INTO {table} VALUES (3, 3)"), COMMIT]))
    assert_passing(error, "database_unavailable")
    assert server.sql(f"SELECT count(*) FROM {table}") == [(3,)]


# -- the database is broken: nothing further is written ---------------------------------------------------------------


def test_a_missing_table_stops_the_lane_because_no_data_are_at_fault(schema: str, open_pipeline: Open) -> None:
    error = error_of(lambda: open_pipeline().run([call(f"SELECT * FROM {schema}.missing")]))
    assert trouble_of(error).kind == "broken"


def test_a_damaged_page_stops_the_lane(open_pipeline: Open) -> None:
    with PostgresServer() as own:
        own.sql("CREATE TABLE damaged AS SELECT n FROM generate_series(1, 100) AS n")
        own.sql("CHECKPOINT")
        (file,) = own.sql("SELECT pg_relation_filepath('damaged')")[0]
        own.stop()
        (own.data / file).write_bytes(b"\x55" * 8192)
        own.start()
        error = error_of(lambda: open_pipeline(own.url()).run([call("SELECT * FROM damaged")]))
        assert isinstance(error, StatementFailed)
        assert error.sqlstate == "XX001"
        assert trouble_of(error).kind == "broken"


def test_a_failed_read_of_the_disk_stops_the_lane(open_pipeline: Open) -> None:
    """Reading the first byte of /proc/self/mem fails like a broken disk does: EIO."""
    error = error_of(lambda: open_pipeline().run([call("SELECT pg_read_binary_file('/proc/self/mem', 0, 1)")]))
    assert isinstance(error, StatementFailed)
    assert error.sqlstate == "58030"
    assert trouble_of(error).kind == "broken"


def test_an_error_of_this_program_stops_the_lane() -> None:
    assert trouble_of(AssertionError("a bug")).kind == "broken"


# -- a synchronous standby --------------------------------------------------------------------------------------------


def test_a_commit_whose_wait_for_a_standby_was_cancelled_is_not_confirmed() -> None:
    with PostgresServer({"synchronous_standby_names": "nearby", "wal_level": "replica", "max_wal_senders": "2"}) as own:
        with own.connect() as quiet:
            quiet.execute("SET synchronous_commit = local")
            quiet.execute("CREATE TABLE t (n int)")
        pipeline = Pipeline(connect(read_address(own.url()), "stepwire test"), is_prepared=True)
        errors: list[Exception] = []

        def write() -> None:
            try:
                pipeline.run([BEGIN, call("INSERT INTO t VALUES (1)"), COMMIT])
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with own.connect() as operator:
            operator.execute("SET synchronous_commit = local")
            while not (row := operator.execute(waiting.encode()).fetchone()):
                time.sleep(0.01)
            operator.execute("SELECT pg_cancel_backend(%s)", row)
        thread.join(30)
        pipeline.close()
        assert own.sql("SELECT count(*) FROM t") == [(1,)]
    (error,) = errors
    assert isinstance(error, CommitUnconfirmed)
    assert_passing(error, "database_unavailable")


@contextlib.contextmanager
def small_disk(server: PostgresServer) -> Iterator[str]:
    try:
        disk = server.small_disk()
        name = disk.__enter__()
    except PermissionError as error:
        pytest.skip(str(error))
    try:
        yield name
    finally:
        disk.__exit__(None, None, None)
