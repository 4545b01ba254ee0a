"""Opening a database: it is safe, or it is refused with what to do."""

import contextlib
import os
import select
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.core.model.commit_group import AuditNew, Committed
from stepwire_broker.store import StoreRefused, open_store
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.sqlite import opening
from stepwire_broker.store.sqlite.migrate import HEAD, SCHEMA, revision, schema, upgrade
from stepwire_broker.store.sqlite.opening import path_of
from stepwire_broker.store.sqlite.queries import SqliteQueries
from stepwire_broker.store.sqlite.readers import SqliteReaders
from stepwire_broker.store.tables import metadata

from tests.foreign_files import give_away
from tests.store.running import PATIENCE_S, Running
from tests.store.stored_rows import NOW, dispatched, submission


def test_the_migrated_schema_is_the_declared_one(database: Path) -> None:
    declared = sqlite3.connect(":memory:")
    engine = create_engine("sqlite://", creator=lambda: declared)
    metadata.create_all(engine)
    with Running(database) as run:
        migrated = run.sql(_SCHEMA.format(" AND name <> 'alembic_version'"))
        assert revision(sqlite3.connect(database)) == HEAD
    assert migrated == declared.execute(_SCHEMA.format("")).fetchall()


_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL{} ORDER BY name"


def test_a_new_database_has_the_schema_that_all_migrations_end_at() -> None:
    """`python -m stepwire_broker.store.sqlite.migrations` writes the file."""
    assert SCHEMA.read_text() == schema()


def test_head_is_the_newest_migration() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from stepwire_broker.store.sqlite import migrate

    config = Config()
    config.set_main_option("script_location", str(migrate._SCRIPTS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


OLD_ROWS = """
INSERT INTO meta VALUES ('deployment', printf('%032x', 0)), ('created_ms', '1');
INSERT INTO brokers VALUES ('b1', 3, 0, 9000), ('b2', 4, 0, 70000);
INSERT INTO lanes VALUES (1, 'b1', 0, 3, 5), (2, 'b2', 0, 4, 7);
INSERT INTO sequences VALUES ('ids', 1048576 + 1000);
INSERT INTO workflows VALUES (1, 'default', 'order', '1', 'd', '{"name":"order"}', 1, 1);
INSERT INTO tasks VALUES
 (10, printf('%032x', 1), 1, 0, 'default', NULL, 'running', NULL, 0,
  2, NULL, 2, 5000, NULL, NULL, 'b1', 3, NULL, NULL, '{}'),
 (20, printf('%032x', 2), 1, 0, 'default', NULL, 'pending', NULL, 0,
  0, NULL, 2, 5000, NULL, NULL, 'b2', 0, NULL, NULL, '{}'),
 (30, printf('%032x', 3), 1, 0, 'default', NULL, 'running', NULL, 0,
  0, NULL, 2, 5000, NULL, NULL, 'b2', 0, NULL, 'a', '{}'),
 (40, printf('%032x', 4), 1, 0, 'default', NULL, 'failed', NULL, 0,
  0, NULL, 2, 5000, 6000, NULL, 'b2', 0, NULL, NULL, '{}');
INSERT INTO steps (id, task_id, position, name, handler_class, state)
 SELECT id + 1, id, 0, 's', 'h', 'waiting' FROM tasks;
UPDATE steps SET state = 'held', dispatched_ms = 5500 WHERE id = 31;
UPDATE tasks SET attention = 'held' WHERE id = 30;
UPDATE steps SET state = 'failed', finished_ms = 6000 WHERE id = 41;
INSERT INTO history VALUES (1, 5, 0, 10, 5000, '[]'), (2, 6, 0, 10, 6000, '[]');
"""


@pytest.mark.parametrize("schema_before", ["0001", "0002"])
def test_a_database_of_an_earlier_schema_is_upgraded_with_its_tasks(database: Path, schema_before: str) -> None:
    database.parent.mkdir(mode=0o700)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        upgrade(connection, None, schema_before)
        connection.executescript(OLD_ROWS)
    database.chmod(0o600)
    with Running(database, "b3") as run:
        assert revision(sqlite3.connect(database)) == HEAD
        assert (run.opened.epoch, run.taken.lane, run.taken.end, run.taken.lease_ms) == (5, 2, 7, 0)
        assert (run.opened.blocks, run.taken.ids) == ({0: 2, 1: 2}, (1048576 + 1000, 1048576 + 10_999))
        loaded = run.queries.load_page(9, {2: LeftBehind(2)}, ["a"], NOW, 0)
        assert [(t.id, t.lane, t.stored) for t in loaded.tasks] == [(10, 2, 0), (20, 2, 1), (30, 2, 1)]
        assert run.sql("SELECT rank_ms FROM tasks WHERE id = 10") == [(5000 - 2 * 2**40,)]
        assert [item.lane_id for item in run.queries.task_events(10)] == [1, 2]
        noticed = run.sql("SELECT id, task_id, lane, kind, at_ms, handler_class FROM attention ORDER BY id")
        assert noticed == [
            (30, 30, 2, "task_held", 5500, None),
            (31, 30, 2, "held", 5500, "h"),
            (41, 40, 2, "failed", 6000, "h"),
        ]
        assert run.sql("PRAGMA foreign_key_check") == []
        run.put(
            steps_dispatched=[dispatched(11)],
            audit=[AuditNew(NOW, "ci", "token", "cancel_task", "task 10", "", "{}", "done", None)],
        )
        assert isinstance(run.outcome(), Committed)
        assert [(chain.lane, chain.n) for chain in run.queries.audit_chains()] == [(2, 1)]
    with Running(database, "b4") as run:
        assert (run.taken.lane, run.taken.end, run.taken.lease_ms) == (2, 8, 10_000)  # the lease of b3, the last owner


@pytest.mark.parametrize("name", ["state.db", "state.db.lock"])
def test_a_link_in_the_place_of_a_file_is_refused_and_its_target_is_unchanged(database: Path, name: str) -> None:
    database.parent.mkdir(mode=0o700)
    target = database.parent / "precious"
    target.write_text("precious\n")
    target.chmod(0o644)
    (database.parent / name).symlink_to(target)
    with pytest.raises(StoreRefused, match=f"{name} is a symbolic link.*: remove the link"):
        Running(database)
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("precious\n", 0o644)
    if name == "state.db.lock":
        with pytest.raises(StoreRefused, match="is a symbolic link"):
            opening.holder(database)


@pytest.mark.parametrize("name", ["state.db", "state.db.lock"])
def test_a_file_of_another_user_is_refused(database: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(database):
        pass
    give_away(monkeypatch, database.parent / name)
    with pytest.raises(StoreRefused, match="belongs to the user"):
        opening.prepare(database)


def test_something_that_is_not_a_file_is_refused(database: Path) -> None:
    database.parent.mkdir(mode=0o700)
    os.mkfifo(f"{database}.lock")
    with pytest.raises(StoreRefused, match="is not a regular file"):
        Running(database)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o722])
def test_a_directory_in_which_others_can_write_is_refused(database: Path, mode: int) -> None:
    database.parent.mkdir()
    database.parent.chmod(mode)
    try:
        with pytest.raises(StoreRefused, match=f"mode is {mode:o}.*chmod go-w {database.parent}"):
            Running(database)
    finally:
        database.parent.chmod(0o700)
    assert list(database.parent.iterdir()) == []


def test_a_directory_of_another_user_is_refused(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database.parent.mkdir(mode=0o700)
    give_away(monkeypatch, database.parent)
    with pytest.raises(StoreRefused, match=r"belongs to the user .*, who could replace the database"):
        opening.prepare(database)


def test_a_directory_of_the_users_own_group_is_accepted(database: Path) -> None:
    database.parent.mkdir()
    database.parent.chmod(0o775)
    os.chown(database.parent, -1, os.getegid())
    with Running(database):
        pass


def test_a_database_of_a_newer_program_is_refused_and_left_as_it_is(database: Path) -> None:
    with Running(database):
        pass
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreRefused, match=r"schema '9999'.*newer Stepwire"):
        Running(database)
    assert revision(sqlite3.connect(database)) == "9999"


def test_a_database_of_another_program_is_refused(database: Path) -> None:
    database.parent.mkdir()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreRefused, match=r"'theirs' that is not Stepwire's"):
        Running(database)


def test_no_two_starts_of_any_brokers_have_the_same_epoch(database: Path) -> None:
    epochs = []
    for broker in ("b1", "b2", "b1", "b3"):
        with Running(database, broker) as run:
            epochs.append(run.opened.epoch)
    assert epochs == [1, 2, 3, 4]


# -- one broker -------------------------------------------------------------------------------------------------------


def test_a_second_broker_is_refused_with_the_process_that_holds_the_file(database: Path) -> None:
    with Running(database) as run:
        with pytest.raises(StoreRefused, match=rf"another broker.*process {os.getpid()}\b"):
            Running(database, "b2")
        run.workflow()
    with Running(database, "b2"):
        pass


_HOLDS_IT = """
import sys
from pathlib import Path
from tests.store.running import Running
run = Running(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
"""


def test_a_killed_broker_leaves_nothing_locked(database: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_IT, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready
    assert process.stdout.readline() == "open\n"
    with pytest.raises(StoreRefused, match=rf"process {process.pid}\b"):
        Running(database)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    with Running(database):
        pass


# -- safe -------------------------------------------------------------------------------------------------------------


def test_the_directory_and_the_files_are_readable_by_their_owner_only(database: Path) -> None:
    before = os.umask(0)
    try:
        with Running(database) as run:
            run.workflow()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.parent.iterdir()}
            assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
            assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm", "state.db.lock"), 0o600)
    finally:
        os.umask(before)


def test_every_commit_is_synced_and_the_connection_has_its_pragmas(database: Path) -> None:
    settings = DatabaseSettings(url=f"sqlite:///{database}")
    store = open_store(settings, "b1", lease_ms=1, wall_ms=NOW, entropy=1)
    execute = store._database.writers[LANE].execute
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "mmap_size": 0, "trusted_schema": 0}
    assert {name: execute(f"PRAGMA {name}").fetchone()[0] for name in wanted} == wanted
    store.close(1.0)


def test_a_read_at_once_never_waits_for_a_lock(database: Path) -> None:
    with Running(database):
        pass
    readers = SqliteReaders(database, 1)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as alone, contextlib.closing(readers):
        assert readers.read_at_once(SqliteQueries.open_counts) == {}
        assert readers.read_at_once(SqliteQueries.task, 7) is None
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            readers.read_at_once(lambda queries: queries.execute("SELECT * FROM missing"))
        readers.close()
        readers._at_once = None
        alone.execute("PRAGMA locking_mode=EXCLUSIVE")
        alone.execute("BEGIN EXCLUSIVE")
        assert readers.read_at_once(SqliteQueries.open_counts) is None
        alone.execute("ROLLBACK")


def test_readers_can_neither_write_nor_checkpoint(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        log = Path(f"{database}-wal")
        size = database.stat().st_size
        for text in ("DELETE FROM workflows", "UPDATE lanes SET seq = 9", "CREATE TABLE t (x)"):
            with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only"):
                run.sql(text)
        with contextlib.suppress(sqlite3.OperationalError):
            run.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        run.store._readers.close()  # the last reader to close must not checkpoint either
        assert log.stat().st_size > 0
        assert database.stat().st_size == size


def test_a_closed_store_leaves_one_file_with_everything_in_it(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
    assert sorted(p.name for p in database.parent.iterdir()) == ["state.db", "state.db.lock"]


def test_a_corrupt_database_is_refused_at_the_start(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(i, i) for i in range(10, 5000, 10)])
    with database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(20 * 4096))
    with pytest.raises(StoreRefused, match=r"corrupt.*restore a backup"):
        Running(database)


def test_a_file_that_is_not_a_database_is_refused(database: Path) -> None:
    database.parent.mkdir()
    database.write_text("this is my shopping list, and a long one at that: " * 100)
    with pytest.raises(StoreRefused, match="not a SQLite database"):
        Running(database)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreRefused, match="must be able to write in"):
        Running(tmp_path / "state.db")


def test_a_path_through_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="must be able to write in"):
        Running(tmp_path / "file" / "state.db")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///.stepwire/state.db", ".stepwire/state.db"),
        ("sqlite:////var/lib/stepwire/a b%20.db", "/var/lib/stepwire/a b%20.db"),
    ],
)
def test_three_slashes_are_relative_and_four_are_absolute(url: str, path: str) -> None:
    assert path_of(url) == Path(path)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("state.db", "needs a form like"),
        ("postgresql://localhost/x", "works on the file of a SQLite database"),
        ("sqlite://state.db", "three slashes"),
        ("sqlite://", "three slashes"),
        ("sqlite:///", "must name a file"),
        ("sqlite:///:memory:", "cannot be kept in memory"),
        ("sqlite:///state.db?mode=memory", "nothing after the name"),
        ("sqlite:///dir/", "must name a file"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_an_example(url: str, says: str) -> None:
    with pytest.raises(StoreRefused, match=says):
        path_of(url)


def test_a_relative_path_names_the_same_file_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Running(Path("odd name%20#.db")) as run:
        monkeypatch.chdir("/")
        run.workflow()
        assert len(run.sql("SELECT * FROM workflows")) == 1
