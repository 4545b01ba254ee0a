"""`stepwire db` and `stepwire audit` on PostgreSQL, on a copy of a database that a broker has used."""

import contextlib
import json
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from stepwire_broker.store.sqlite import opening

from tests.postgres.server import PostgresServer

from .a_place import Ended, Place
from .forged_rows import FORGED, FORGED_ON_SERVER

USAGE = 2
WRONG_STATE = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


class ServerPlace(NamedTuple):
    """A place whose database.url leads to a schema."""

    place: Place
    server: PostgresServer
    schema: str

    def stepwire(self, *words: str, **environ: str) -> Ended:
        own = {"DATABASE_URL": self.server.url(), "STEPWIRE_DATABASE__SCHEMA": self.schema}
        return self.place.stepwire(*words, **{"STEPWIRE_DATABASE__LANES": "3"} | own | environ)

    def sql(self, statement: str) -> int:
        """Run a statement in the schema, and return the number of its rows."""
        with self.server.connect() as connection:
            connection.execute(f"SET search_path TO {self.schema}".encode())
            return connection.execute(statement.encode()).rowcount

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self.server.connect() as connection:
            connection.execute(f"SET search_path TO {self.schema}".encode())
            return connection.execute(statement.encode()).fetchall()


@pytest.fixture(scope="module")
def file(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a broker that was stopped."""
    path = tmp_path_factory.mktemp("at-rest") / "state.db"
    shutil.copy(stored, path)
    path.parent.chmod(0o700)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'backup'")
    return path


@pytest.fixture
def nothing(empty: Place, server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[ServerPlace]:
    """A place whose schema does not exist."""
    yield ServerPlace(empty, server, "s")
    server.sql("DROP SCHEMA IF EXISTS s CASCADE")


@pytest.fixture(scope="module")
def template(server: PostgresServer, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The schema `made`: a copy of the file."""
    directory = tmp_path_factory.mktemp("copies")
    place = Place(directory, {"PATH": "/usr/bin:/bin", "HOME": str(directory)})
    own = Path(shutil.copy(file, directory))
    directory.chmod(0o700)
    return ServerPlace(place, server, "made").stepwire("db", "copy", str(own), "-o", "json")


@pytest.fixture
def copied(empty: Place, server: PostgresServer, template: Ended) -> ServerPlace:
    """The place of the copy."""
    assert template.code == 0, template
    return ServerPlace(empty, server, "made")


def test_a_copy_has_every_row_and_is_the_same_deployment(copied: ServerPlace, template: Ended, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as source:
        for table, key in (("tasks", "id"), ("steps", "id"), ("history", "lane_id, seq, position"), ("keys", "key")):
            columns = f"{key}, {'facts' if table == 'history' else 'namespace' if table != 'steps' else 'state'}"
            select = f"SELECT {columns} FROM {table} ORDER BY {key}"  # noqa: S608
            assert copied.rows(select) == source.execute(select).fetchall() != []
        (deployment,) = source.execute("SELECT value FROM meta WHERE name = 'deployment'").fetchone()
        ((lane, seq),) = source.execute("SELECT id, seq FROM lanes").fetchall()
        audit = source.execute("SELECT lane, n, hash FROM audit ORDER BY n").fetchall()
    assert template.json["deployment"] == deployment
    assert copied.rows("SELECT value FROM meta WHERE name = 'deployment'") == [(deployment,)]
    assert copied.rows("SELECT lane, seq FROM commits ORDER BY lane") == [(lane, seq), (2, 0), (3, 0)]
    assert copied.rows("SELECT lane, n, hash FROM audit ORDER BY n")[:-1] == audit
    assert copied.rows("SELECT action FROM audit ORDER BY n DESC LIMIT 1") == [("copy_database",)]
    assert template.json["checked"]["findings"] == []


def test_a_file_in_use_a_used_schema_too_few_lanes_and_a_backup_are_refused(
    nothing: ServerPlace, copied: ServerPlace, stored: Path, file: Path, tmp_path: Path
) -> None:
    lock = opening.lock(file)
    try:
        ended = nothing.stepwire("db", "copy", str(file))
    finally:
        lock.release()
    assert (ended.code, "is in use by another broker" in ended.err) == (WRONG_STATE, True), ended
    ended = copied.stepwire("db", "copy", str(file))
    assert (ended.code, "has rows in its table tasks" in ended.err) == (WRONG_STATE, True), ended
    assert "is a backup" in nothing.stepwire("db", "copy", str(stored)).err
    later = Path(shutil.copy(file, tmp_path / "lanes.db"))
    with contextlib.closing(sqlite3.connect(later, isolation_level=None)) as connection:
        connection.execute("INSERT INTO lanes (id, epoch, seq) VALUES (5, 1, 0)")
    assert "set database.lanes: 5 or more" in nothing.stepwire("db", "copy", str(later)).err
    assert nothing.rows("SELECT 1 FROM pg_namespace WHERE nspname = 's'") == []
    ended = nothing.place.stepwire("db", "copy", str(file))
    assert (ended.code, "database.url leads to SQLite" in ended.err) == (USAGE, True), ended


def test_a_file_with_faults_is_not_copied_and_a_broker_starts_on_it_as_before(nothing: ServerPlace, file: Path) -> None:
    (nothing.place.directory / ".stepwire").mkdir(mode=0o700)
    own = Path(shutil.copy(file, nothing.place.directory / ".stepwire/state.db"))
    with contextlib.closing(sqlite3.connect(own, isolation_level=None)) as connection:
        connection.execute("UPDATE steps SET attempt = 7 WHERE state = 'completed'")
    ended = nothing.stepwire("db", "copy", str(own))
    assert ended.code == 1
    assert "nothing was copied" in ended.err
    assert "attempt is 7, and 0 by its history" in ended.err
    assert nothing.rows("SELECT 1 FROM pg_namespace WHERE nspname = 's'") == []
    with contextlib.closing(sqlite3.connect(own)) as connection:
        assert connection.execute("SELECT 1 FROM meta WHERE name = 'copied'").fetchall() == []


def test_no_broker_starts_on_a_file_that_was_copied(nothing: ServerPlace, file: Path) -> None:
    (nothing.place.directory / ".stepwire").mkdir(mode=0o700)
    own = Path(shutil.copy(file, nothing.place.directory / ".stepwire/state.db"))
    assert nothing.stepwire("db", "copy", str(own), "--sample", "1").code == 0
    ended = nothing.place.stepwire("serve")
    assert ended.code != 0
    assert "was copied to postgresql://admin@127.0.0.1" in ended.err
    assert nothing.server.password not in ended.err


def test_status_describes_the_server_the_schema_and_its_lanes(copied: ServerPlace, file: Path) -> None:
    status = copied.stepwire("db", "status", "-o", "json").json
    own = copied.place.stepwire("db", "status", "-o", "json", STEPWIRE_DATABASE__URL=f"sqlite:///{file}").json
    for member in ("deployment", "tasks", "open_steps", "held_steps", "oldest_open_task", "oldest_open_since_ms"):
        assert status[member] == own[member] != []
    assert status["bytes"] > 0
    assert status["tables"]["tasks"]["bytes"] > 0
    assert [(lane["id"], lane["end"] > 0) for lane in status["lanes"]] == [(1, True), (2, False), (3, False)]
    assert status["connections"]["limit"] == 100
    text = copied.stepwire("db", "status").out
    assert re.search(r"^lane 1 +owner \S+, epoch \d+, \d+ commits$", text, re.MULTILINE), text
    assert re.search(r"^held steps +1$", text, re.MULTILINE)
    assert re.search(r"^oldest snapshot +none that is older than 5 minutes$", text, re.MULTILINE)


def test_status_counts_what_retention_has_not_removed_yet(copied: ServerPlace) -> None:
    copied.sql("UPDATE tasks SET finished_ms = finished_ms - 864000000 WHERE finished_ms IS NOT NULL")
    try:
        lane = copied.stepwire("db", "status", "-o", "json").json["lanes"][0]
    finally:
        copied.sql("UPDATE tasks SET finished_ms = finished_ms + 864000000 WHERE finished_ms IS NOT NULL")
    assert lane["expired_tasks"] == 1
    assert 0 < lane["prune_lag_ms"] <= 864_000_000


def test_status_names_the_holder_of_the_oldest_snapshot(copied: ServerPlace) -> None:
    """A prepared transaction, a slot or an old session: the one that began before most transactions."""
    with psycopg.connect(copied.server.socket_url(), application_name="a dump") as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        copied.sql("UPDATE meta SET value = value")
        oldest = copied.stepwire("db", "status", "-o", "json").json["oldest_snapshot"]
    assert re.fullmatch(r"process \d+ \(a dump, user admin, idle in transaction\)", oldest["holder"])
    assert oldest["transactions"] >= 1
    assert oldest["held_ms"] >= 0


def test_check_finds_nothing_in_a_copy(copied: ServerPlace) -> None:
    ended = copied.stepwire("db", "check")
    assert ended.code == 0, ended
    assert re.search(r"(\d+) tasks, \1 replayed from their history: no errors", ended.out)
    assert copied.stepwire("db", "check", "--sample", "1", "-o", "json").json["tasks_replayed"] == 1


@pytest.mark.parametrize(("statement", "pattern"), [*FORGED, *FORGED_ON_SERVER])
def test_check_names_each_error(copied: ServerPlace, statement: str, pattern: str) -> None:
    from stepwire_broker.store.checking import check
    from stepwire_broker.store.postgres.stored_state import PostgresState

    with copied.server.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL search_path TO {copied.schema}".encode())
        assert connection.execute(statement.encode()).rowcount > 0, statement
        state = PostgresState(connection, copied.schema, is_in_transaction=True)
        findings = check(state, None, lambda done, total: None).findings
    assert any(re.search(pattern, finding) for finding in findings), findings


def test_the_audit_is_exported_and_verified_on_the_server(copied: ServerPlace, file: Path, tmp_path: Path) -> None:
    ended = copied.stepwire("audit", "export")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    own = copied.place.stepwire("audit", "export", STEPWIRE_DATABASE__URL=f"sqlite:///{file}")
    assert lines[:-1] == [json.loads(line) for line in own.out.splitlines()]
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps({"heads": [{"lane": 1, "n": lines[-1]["n"], "hash": lines[-1]["hash"]}]}))
    ended = copied.stepwire("audit", "verify", "--head", str(heads))
    assert (ended.code, "1 stored head compared: no errors" in ended.out) == (0, True), ended
    heads.write_text(json.dumps({"heads": [{"lane": 1, "n": lines[-1]["n"], "hash": "0" * 64}]}))
    ended = copied.stepwire("audit", "verify", "--head", str(heads))
    assert (ended.code, "its hash is not that of the stored head" in ended.out) == (1, True), ended


def test_backup_and_restore_name_the_tools_of_the_server(nothing: ServerPlace) -> None:
    ended = nothing.stepwire("db", "backup", "x.db")
    assert (ended.code, "pg_dump" in ended.err) == (USAGE, True), ended
    ended = nothing.stepwire("db", "restore", "x.db")
    assert (ended.code, "pg_restore" in ended.err, "db accept-loss" in ended.err) == (USAGE, True, True), ended


@pytest.mark.parametrize("command", ["db status", "db check", "audit verify", "audit export"])
def test_a_schema_without_tables_is_reported_and_not_made(nothing: ServerPlace, command: str) -> None:
    ended = nothing.stepwire(*command.split())
    assert ended.code == 3, ended
    assert "has no tables yet" in ended.err
    assert nothing.rows("SELECT 1 FROM pg_namespace WHERE nspname = 's'") == []


# -- lost commits -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lost(nothing: ServerPlace, file: Path) -> ServerPlace:
    """A schema whose broker was killed with a task of an at_most_once step that no worker has got."""
    own = Path(shutil.copy(file, nothing.place.directory / "own.db"))
    assert nothing.stepwire("db", "copy", str(own)).code == 0
    environ = {"DATABASE_URL": nothing.server.url(), "STEPWIRE_DATABASE__SCHEMA": "s", "STEPWIRE_DATABASE__LANES": "3"}
    place = Place(nothing.place.directory, nothing.place.environ | environ)
    broker = place.serve()
    url = re.search(r"http://\S+?:\d+", broker.ready)
    assert url is not None, broker.ready
    submitted = place.stepwire("task", "submit", "shop::order", "--context", "{}", STEPWIRE_URL=url[0])
    broker.end(signal.SIGKILL)
    assert submitted.code == 0, submitted
    nothing.sql("UPDATE brokers SET lease_ms = 500")
    return nothing


def test_accepting_a_loss_makes_a_new_deployment_and_holds_what_must_not_start_twice(lost: ServerPlace) -> None:
    before = lost.rows("SELECT value FROM meta WHERE name = 'deployment'")
    epochs = lost.rows("SELECT max(epoch) FROM brokers")
    last_block = lost.rows("SELECT max(number) FROM blocks")[0][0]
    assert isinstance(last_block, int)
    ended = lost.stepwire("db", "accept-loss", "--yes", "-o", "json")
    assert ended.code == 0, ended
    assert ended.json["is_complete"] is True
    assert ended.json["held_steps"] == 1
    assert lost.rows("SELECT value FROM meta WHERE name = 'deployment'") == [(ended.json["deployment"],)] != before
    held = "SELECT reason, count(*) FROM steps WHERE state = 'held' GROUP BY reason ORDER BY reason"
    assert lost.rows(held) == [("outcome_unknown", 1), ("restored", 1)]
    blocks = lost.rows("SELECT lane, number FROM blocks ORDER BY number DESC LIMIT 3")
    assert blocks == [(lane, last_block + 1000 + lane) for lane in (3, 2, 1)]
    assert lost.rows("SELECT nextval('epochs')") > epochs
    assert lost.rows("SELECT count(*) FROM lanes WHERE owner IS NULL AND epoch > 1000000000") == [(3,)]
    assert lost.rows("SELECT action FROM audit ORDER BY at_ms DESC, n DESC LIMIT 1") == [("accept_loss",)]
    ended = lost.stepwire("db", "check")
    assert (ended.code, "no errors" in ended.out) == (0, True), ended


def test_a_loss_is_not_accepted_while_a_broker_is_alive(lost: ServerPlace) -> None:
    lost.sql("UPDATE brokers SET lease_ms = 60000")
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            lost.sql("UPDATE brokers SET beat = beat + 1")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        ended = lost.stepwire("db", "accept-loss", "--yes")
    finally:
        stopped.set()
        thread.join()
    assert (ended.code, "is alive: stop every broker" in ended.err) == (WRONG_STATE, True), ended
    assert lost.rows("SELECT count(*) FROM meta WHERE name = 'accepted_loss'") == [(0,)]


def test_no_broker_starts_after_an_interrupted_acceptance_until_it_is_repeated(lost: ServerPlace) -> None:
    lost.sql("UPDATE workflows SET document = '{}' WHERE name = 'slow'")
    ended = lost.stepwire("db", "accept-loss", "--yes")
    assert (ended.code, "cannot be read" in ended.err) == (1, True), ended
    ended = lost.stepwire("serve")
    assert "`stepwire db accept-loss` on the schema s was interrupted: run it again" in ended.err


def test_a_failover_that_lost_nothing_is_accepted_without_a_new_deployment(lost: ServerPlace) -> None:
    before = lost.rows("SELECT value FROM meta WHERE name = 'deployment'")
    lost.sql("UPDATE lanes SET timeline = '1/00000001'")
    assert "has another timeline than the lanes 1, 2, 3 of the schema s" in lost.stepwire("serve").err
    ended = lost.stepwire("db", "accept-loss", "--nothing-lost", "-o", "json")
    assert (ended.code, ended.json) == (0, {"lanes": [1, 2, 3]})
    assert lost.rows("SELECT value FROM meta WHERE name = 'deployment'") == before
    assert lost.rows("SELECT count(DISTINCT timeline) FROM lanes") == [(1,)]
