"""`stepwire db`: the output and the exit code of each command."""

import contextlib
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from stepwire_broker.store.checking import check
from stepwire_broker.store.sqlite.backup import open_stored
from stepwire_broker.store.sqlite.stored_state import SqliteState

from .a_place import Place
from .forged_rows import FORGED, FORGED_AGAINST_CHECKS

STATE = ".stepwire/state.db"


@pytest.fixture
def still(empty: Place, stored: Path) -> Place:
    """A place with that database and no running broker."""
    (empty.directory / STATE).parent.mkdir(mode=0o700)
    shutil.copy(stored, empty.directory / STATE)
    return empty


def test_status_describes_the_database_of_a_running_broker(shop: Place, stored: Path) -> None:
    status = shop.stepwire("db", "status", "-o", "json").json
    assert status["path"] == str(shop.directory / STATE)
    assert status["process"] > 0
    assert status["schema"] == status["schema_known"]
    assert status["tasks"]["completed"] >= 1
    assert status["held_steps"] >= 1
    assert status["oldest_open_task"] > 0
    assert status["last_prune"] is None
    text = shop.stepwire("db", "status")
    assert f"process {status['process']}" in text.out
    assert re.search(r"^held steps +[1-9]", text.out, re.MULTILINE)
    assert re.search(r"^steps of open tasks +.*held [1-9]", text.out, re.MULTILINE)
    assert re.search(r"^write-ahead log +\d", text.out, re.MULTILINE)
    assert re.search(r"^set aside +0 inputs that the broker accepted and the database refused$", text.out, re.MULTILINE)
    assert "stepwire step list --state held" in text.err


def test_status_of_a_database_without_a_broker(still: Place) -> None:
    status = still.stepwire("db", "status", "-o", "json").json
    assert (status["process"], status["bytes"] > 0) == (None, True)
    assert "no process" in still.stepwire("db", "status").out


@pytest.mark.parametrize("command", ["status", "check", "prune", "upgrade", "backup b.db"])
def test_a_missing_database_is_reported_and_not_created(empty: Place, command: str) -> None:
    ended = empty.stepwire("db", *command.split())
    assert ended.code == 3, ended
    assert "there is no database" in ended.err
    assert "stepwire serve" in ended.err
    assert list(empty.directory.rglob("*.db")) == []


def test_a_backup_never_replaces_a_file(still: Place) -> None:
    (still.directory / "b.db").write_text("precious")
    ended = still.stepwire("db", "backup", "b.db")
    assert ended.code == 4
    assert "b.db already exists" in ended.err
    assert (still.directory / "b.db").read_text() == "precious"


def test_check_replays_every_history_beside_a_running_broker(shop: Place, stored: Path) -> None:
    ended = shop.stepwire("db", "check")
    assert ended.code == 0, ended
    assert re.search(r"(\d+) tasks, \1 replayed from their history: no errors", ended.out)
    assert shop.stepwire("db", "check", "--sample", "1", "-o", "json").json["tasks_replayed"] == 1


def by_sql(*statements: str) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints=ON")
            for statement in statements:
                assert connection.execute(statement).rowcount > 0, statement

    return forge


@pytest.mark.parametrize(("statement", "pattern"), [*FORGED, *FORGED_AGAINST_CHECKS])
def test_check_names_each_error(tmp_path: Path, stored: Path, statement: str, pattern: str) -> None:
    forged = Path(shutil.copy(stored, tmp_path))
    by_sql(statement)(forged)
    with contextlib.closing(open_stored(forged)) as connection:
        findings = check(SqliteState(connection), None, lambda done, total: None).findings
    assert any(re.search(pattern, finding) for finding in findings), findings


def test_a_fault_of_many_rows_does_not_hide_another_fault(tmp_path: Path, stored: Path) -> None:
    forged = Path(shutil.copy(stored, tmp_path))
    by_sql(
        "INSERT INTO keys (namespace, key, digest, task_id) "
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 150) "
        "SELECT 'shop', 'theirs-' || n, digest, 1000000 + n FROM numbers, (SELECT digest FROM keys LIMIT 1)",
        "DELETE FROM attention WHERE kind = 'held'",
    )(forged)
    with contextlib.closing(open_stored(forged)) as connection:
        findings = check(SqliteState(connection), None, lambda done, total: None).findings
    assert sum("belongs to task" in finding for finding in findings) == 20
    assert "more rows have the same fault as the last 20" in findings
    assert any("is held, and the table of attention does not have it" in finding for finding in findings), findings


def test_check_prints_an_error_and_exits_1(still: Place) -> None:
    one = "(SELECT max(id) FROM steps WHERE name = 'charge' AND state = 'completed')"
    by_sql(f"UPDATE steps SET attempt = 7 WHERE id = {one}")(still.directory / STATE)  # noqa: S608
    ended = still.stepwire("db", "check")
    assert ended.code == 1
    assert re.fullmatch(r"task \d+, step charge: attempt is 7, and 0 by its history\n", ended.out), ended
    assert "replayed from their history" in ended.err


def test_check_reports_torn_pages(still: Place) -> None:
    path = still.directory / STATE
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history_of_task'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    ended = still.stepwire("db", "check", "-o", "json")
    assert ended.code == 1, ended
    assert ended.json["findings"]


def test_prune_uses_the_running_broker_or_prunes_itself(shop: Place, still: Place, stored: Path) -> None:
    requested = shop.stepwire("db", "prune", "-o", "json")
    assert (requested.code, requested.json) == (0, {"tasks": 0}), requested
    assert shop.stepwire("db", "prune", "--compact").code == 4
    soon = {"STEPWIRE_RETENTION__COMPLETED_MS": "1"}
    count = still.stepwire("db", "prune", "--dry-run", "-o", "json", **soon).json["tasks"]
    assert count > 0
    assert still.stepwire("db", "status", "-o", "json").json["last_prune"] is None
    done = still.stepwire("db", "prune", "--compact", "-o", "json", **soon).json
    assert (done["tasks"], done["keys"]) == (count, count)
    assert done["steps"] >= count
    status = still.stepwire("db", "status", "-o", "json", **soon).json
    assert (status["last_prune"]["tasks"], status["free_bytes"], status["expired_tasks"]) == (count, 0, 0)
    assert "completed" not in status["tasks"]
    assert still.stepwire("db", "check").code == 0


def test_upgrade_prints_what_serve_will_do(still: Place) -> None:
    assert "the one that this program expects" in still.stepwire("db", "upgrade").out
    by_sql("UPDATE alembic_version SET version_num = '0000'")(still.directory / STATE)
    upgrade = still.stepwire("db", "upgrade")
    assert (upgrade.code, "`stepwire serve` upgrades it to" in upgrade.out) == (0, True)


def test_a_restore_needs_a_stopped_broker_and_a_yes(shop: Place, still: Place, stored: Path) -> None:
    running = shop.stepwire("db", "restore", str(stored), "--yes")
    assert running.code == 4
    assert "stop the broker first" in running.err
    before = (still.directory / STATE).read_bytes()
    unconfirmed = still.stepwire("db", "restore", str(stored))
    assert unconfirmed.code == 2
    assert "--yes" in unconfirmed.err
    assert (still.directory / STATE).read_bytes() == before
    (still.directory / "text").write_text("no database at all")
    assert still.stepwire("db", "restore", "text", "--yes").code == 1
    assert still.stepwire("db", "restore", "none", "--yes").code == 3
    assert (still.directory / STATE).read_bytes() == before


def test_a_restore_prints_the_next_steps_and_the_database_serves(empty: Place, stored: Path) -> None:
    restored = empty.stepwire("db", "restore", str(stored))  # no database exists, so no confirmation is needed
    assert restored.code == 0, restored
    assert "stepwire serve" in restored.err
    assert "if they are submitted again, they run again" in restored.err
    broker = empty.serve()
    try:
        status = empty.stepwire("db", "status", "-o", "json").json
        assert status["restored"]["deployment"] == status["deployment"]
        assert status["brokers"]["b1"] > 1_700_000_000
        assert status["last_backup_ms"] == status["restored"]["made_ms"]
    finally:
        assert broker.end(signal.SIGTERM).code == 0


def test_an_unsupported_database_is_refused(empty: Place) -> None:
    ended = empty.stepwire("db", "status", STEPWIRE_DATABASE__URL="mysql://localhost/stepwire")
    assert ended.code == 2
    assert "it needs a form like sqlite:///" in ended.err
