"""A backup is the database as of one moment, whatever the broker does meanwhile. A restored database starts no step by
itself that must not start twice."""

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.commit_group import ControlChanged
from stepwire_broker.store import StoreRefused
from stepwire_broker.store.checking import Checked, check
from stepwire_broker.store.errors import InUse, NotThere, WouldReplace
from stepwire_broker.store.sqlite import opening
from stepwire_broker.store.sqlite.backup import backup, open_stored
from stepwire_broker.store.sqlite.restore import RestoredBackup, restore
from stepwire_broker.store.sqlite.status import Status, status
from stepwire_broker.store.sqlite.stored_state import SqliteState

from tests.store.running import Running
from tests.store.stored_rows import NOW, fact, submission
from tests.system.harness import Site, eventually, workflow

BROKER = "b1"
DOCUMENT = b"""{"name": "order", "namespace": "default", "version": "1", "steps": [
 {"name": "step_0", "handler_class": "shop::Handler"}, {"name": "step_1", "handler_class": "shop::Handler"}]}"""


def nothing(*_: object) -> None:
    pass


def make(path: Path, file: Path) -> None:
    backup(path, file, wall_ms=time.time_ns() // 1_000_000, progress=nothing)


def put_back(file: Path, path: Path, wall_ms: int | None = None, **more: Any) -> RestoredBackup:
    now = wall_ms or time.time_ns() // 1_000_000
    entropy = int.from_bytes(os.urandom(16), "big")
    return restore(
        file, path, BROKER, **{"may_replace": True, "progress": nothing, **more}, wall_ms=now, entropy=entropy
    )


def checked(path: Path) -> Checked:
    with contextlib.closing(open_stored(path)) as connection:
        return check(SqliteState(connection), None, nothing)


def looked_at(path: Path) -> Status:
    with contextlib.closing(open_stored(path)) as connection:
        return status(connection, path, RetentionSettings(), time.time_ns() // 1_000_000)


# -- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_is_one_moment_of_a_database_that_is_being_written(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwire_broker.store.sqlite.backup.PAGES_A_STEP", 16)
    with Running(database) as run:
        run.workflow(document=DOCUMENT)
        for i in range(3):
            run.write(submissions=[submission(i, *range(100_000 * i + 10, 100_000 * i + 3_010, 10))])
        before = run.seq

        def write_between(what: str, done: int, total: int) -> None:
            if what == "copied" and run.seq < before + 50:
                run.write(history=[fact(7)])

        backup(database, tmp_path / "b.db", wall_ms=NOW, progress=write_between)
        assert run.seq > before + 5, "next to nothing was written while it was copied"
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as copy:
        assert copy.execute("SELECT seq FROM lanes").fetchone() == (before,)
        assert copy.execute("SELECT count(*) FROM history WHERE task_id = 7").fetchone() == (0,)
        assert copy.execute("SELECT count(*) FROM tasks").fetchone() == (3 * 300,)


def test_a_backup_is_one_file_that_only_its_owner_can_read(database: Path, tmp_path: Path) -> None:
    with Running(database) as run:
        run.workflow(document=DOCUMENT)
        run.write(submissions=[submission(1, 10)])
        make(database, tmp_path / "b.db")
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == 0o600
    with contextlib.closing(sqlite3.connect(f"{(tmp_path / 'b.db').as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert copy.execute("SELECT id FROM tasks").fetchall() == [(10,)]
    assert sorted(p.name for p in tmp_path.iterdir() if "b.db" in p.name) == ["b.db"]


def test_a_backup_replaces_no_file_and_leaves_nothing_when_it_fails(database: Path, tmp_path: Path) -> None:
    with Running(database):
        pass
    (tmp_path / "b.db").write_text("precious")
    with pytest.raises(WouldReplace, match="never replaces"):
        make(database, tmp_path / "b.db")
    assert (tmp_path / "b.db").read_text() == "precious"
    with pytest.raises(StoreRefused, match="cannot be written"):
        make(database, tmp_path / "nowhere" / "b.db")
    taken = tmp_path / "c.db"

    def somebody_was_faster(what: str, done: int, total: int) -> None:
        taken.touch()

    with pytest.raises(WouldReplace):
        backup(database, taken, wall_ms=NOW, progress=somebody_was_faster)
    assert taken.read_bytes() == b""
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_file_that_is_not_a_stepwire_database_is_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(NotThere):
        make(tmp_path / "none.db", tmp_path / "b.db")
    (tmp_path / "text.db").write_text("no database at all" * 1_000)
    with pytest.raises(StoreRefused, match="not a SQLite database"):
        make(tmp_path / "text.db", tmp_path / "b.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreRefused, match="not a Stepwire database"):
        make(tmp_path / "other.db", tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


# -- restore ----------------------------------------------------------------------------------------------------------


def test_a_restored_database_gives_out_no_id_or_epoch_again(database: Path, tmp_path: Path) -> None:
    with Running(database) as run:
        make(database, tmp_path / "b.db")
    for _ in range(3):  # starts after the backup
        with Running(database) as run:
            last = run.opened
    wall_ms = 1_000 * (last.epoch - 1)  # a clock near 1970 must not repeat an epoch
    restored = put_back(tmp_path / "b.db", database, wall_ms)
    assert restored.deployment != last.deployment
    with Running(database) as run:
        assert run.opened.epoch > restored.epoch > last.epoch
        assert run.taken.ids[0] > last.lanes[0].ids[1]
        assert run.opened.deployment == restored.deployment
        assert run.taken.lease_ms == 10_000
        seen = {run.opened.epoch, last.epoch, restored.epoch}
        numbers = run.taken.ids[1]
    database.unlink()  # restore the same backup again, after the first restored database is lost
    again = put_back(tmp_path / "b.db", database)
    assert again.epoch > max(seen)
    assert again.deployment not in (restored.deployment, last.deployment)
    with Running(database) as run:
        assert run.opened.epoch > again.epoch
        assert run.taken.ids[0] > numbers


def test_rules_and_offered_handlers_are_part_of_a_backup(database: Path, tmp_path: Path) -> None:
    offer = '{"worker":"shop:1","at_ms":1}'
    changes = [ControlChanged("rule", "a::**", '{"match":"a::**"}', 1), ControlChanged("offered", "h", offer, 0)]
    with Running(database) as run:
        run.workflow(document=DOCUMENT)
        run.write(controls=changes)
    make(database, tmp_path / "b.db")
    put_back(tmp_path / "b.db", database)
    assert (looked_at(database).rules, looked_at(database).offered_handlers) == (1, 1)
    assert checked(database).findings == []
    with Running(database) as run:
        assert [(row.kind, row.name, row.value) for row in run.opened.controls] == [
            ("offered", "h", offer),
            ("rule", "a::**", '{"match":"a::**"}'),
        ]


def test_the_replaced_database_is_kept_also_when_it_is_damaged(database: Path, tmp_path: Path) -> None:
    with Running(database) as run:
        run.workflow(document=DOCUMENT)
        make(database, tmp_path / "b.db")
        run.write(submissions=[submission(1, 10)])
    (kept,) = put_back(tmp_path / "b.db", database).replaced
    with contextlib.closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT id FROM tasks").fetchall() == [(10,)]
    os.truncate(database, 5_000)
    restored = put_back(tmp_path / "b.db", database, wall_ms=4_000_000_000_000)
    assert Path(restored.replaced[0]).stat().st_size == 5_000
    assert checked(database).findings == []
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


def test_a_database_is_replaced_only_without_a_broker_and_with_permission(database: Path, tmp_path: Path) -> None:
    with Running(database) as run:
        make(database, tmp_path / "b.db")
        with pytest.raises(InUse):
            put_back(tmp_path / "b.db", database)
        run.workflow(document=DOCUMENT)
    with pytest.raises(WouldReplace):
        put_back(tmp_path / "b.db", database, may_replace=False)
    with pytest.raises(StoreRefused, match="is the database itself"):
        put_back(database, database)
    with Running(database) as run:
        assert len(run.opened.workflows) == 1


def test_a_copy_made_by_other_means_is_restored_with_its_log(database: Path, tmp_path: Path) -> None:
    with Running(database) as run:
        run.workflow(document=DOCUMENT)
        run.write(submissions=[submission(1, 10)])
        for suffix in ("", "-wal"):
            (tmp_path / f"copy{suffix}").write_bytes(Path(f"{database}{suffix}").read_bytes())
    assert (tmp_path / "copy-wal").stat().st_size > 0
    restored = put_back(tmp_path / "copy", tmp_path / "elsewhere" / "state.db")
    assert (restored.made_ms, restored.open_tasks) == (None, 1)


def test_no_broker_starts_where_a_restore_was_interrupted(database: Path, tmp_path: Path) -> None:
    with Running(database):
        make(database, tmp_path / "b.db")
    os.rename(database, opening.restoring(database))  # killed between two renames
    with pytest.raises(StoreRefused, match="was interrupted: run `stepwire db restore"):
        Running(database)
    assert not database.exists()
    put_back(tmp_path / "b.db", database)
    with Running(database):
        pass


def test_a_backup_of_a_newer_program_is_not_restored(database: Path, tmp_path: Path) -> None:
    with Running(database):
        make(database, tmp_path / "b.db")
    before = database.read_bytes()
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreRefused, match="newer Stepwire"):
        put_back(tmp_path / "b.db", database)
    assert database.read_bytes() == before


# -- with processes ---------------------------------------------------------------------------------------------------

ONCE = {"name": "pay", "delivery_mode": "at_most_once"}
LATER = {
    "retry_reported_failures": True,
    "retry_limit": 3,
    "backoff": {"kind": "constant", "base_ms": 120_000, "jitter": "none"},
}
WORKFLOWS = [
    workflow("done", ONCE),
    workflow("unsure", {**ONCE, "handler_config": {"outcome_unknown": True}}),
    workflow("later", {**ONCE, **LATER, "handler_config": {"failures": 1}}),
    workflow("running", {**ONCE, "handler_config": {"gate": "now"}}, {"name": "ship", "depends_on": ["pay"]}),
    workflow(
        "waiting",
        {"name": "a", "handler_config": {"gate": "now"}},
        {**ONCE, "depends_on": ["a"]},
        {"name": "ship", "depends_on": ["pay"]},
    ),
    workflow("blocked", {"name": "a", "handler_config": {"gate": "late"}}, {**ONCE, "depends_on": ["a"]}),
    workflow("ready", ONCE, {"name": "other"}),
]
HELD_ALREADY = {"unsure"}
OVER = {"done"}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def submit(site: Site, name: str) -> int:
    answer = site.ask("POST", "/v1/tasks", {"workflow": name, "context": {}, "idempotency_key": name})
    assert answer.status == 201, answer
    return int(answer.body["task_id"])


def step_states(site: Site, task_id: int) -> dict[str, str]:
    return {step["name"]: step["state"] for step in site.task(task_id)["steps"]}


def starts(site: Site) -> Counter[tuple[int, str]]:
    """The number of starts of each at_most_once step, by its handlers' own ledger."""
    return Counter((run["task_id"], run["step"]) for run in site.runs("started") if run["mode"] == "at_most_once")


def test_at_most_once_steps_of_a_restored_database_start_only_when_an_operator_resolves_them(site: Site) -> None:
    broker = site.start_broker()
    for document in WORKFLOWS:
        site.apply(document)
    site.start_worker("one", slots=3, prefetch=0)
    ids = {name: submit(site, name) for name in ("done", "unsure", "later")}
    for name, state in (("done", "completed"), ("unsure", "held"), ("later", "retry_wait")):
        eventually(lambda n=name, s=state: step_states(site, ids[n])["pay"] == s, f"{name} {state}")
    ids |= {name: submit(site, name) for name in ("running", "waiting", "blocked")}
    eventually(lambda: len(site.runs("started")) == 6, "three more to run")
    ids["ready"] = submit(site, "ready")
    was = {name: step_states(site, task_id)["pay"] for name, task_id in ids.items()}
    assert was == {
        "done": "completed",
        "unsure": "held",
        "later": "retry_wait",
        "running": "dispatched",
        "waiting": "waiting",
        "blocked": "waiting",
        "ready": "ready",
    }
    made = site.stepwire("db", "backup", "b.db")
    assert made.returncode == 0, made.stderr

    # After the backup was made, the tasks run to their ends.
    site.open_gate("now")
    for name in ("running", "waiting", "ready"):
        eventually(lambda n=name: site.task(ids[n])["state"] == "completed" or None, f"{name} to end")
    broker.kill9()
    started = starts(site)
    assert set(started.values()) == {1}
    assert {task_id for task_id, _ in started} == {ids[n] for n in ids if n != "blocked"}

    restored = site.stepwire("db", "restore", "b.db", "--yes", "-o", "json")
    assert restored.returncode == 0, restored.stderr
    at_rest = checked(site.database)
    assert (at_rest.findings, at_rest.tasks_replayed) == ([], len(ids))

    # The old worker still runs, next to a new one.
    site.start_broker()
    site.start_worker("two", slots=10)
    for name in set(ids) - OVER - {"blocked"}:
        eventually(lambda n=name: site.task(ids[n])["attention"] == "held", f"{name} to hang on its held step", 30)
    eventually(lambda: step_states(site, ids["blocked"])["a"] == "dispatched", "blocked's first step", 30)
    with contextlib.closing(opening.open_reader(site.database)) as reader:
        rows = reader.execute("SELECT task_id, state, reason FROM steps WHERE name = 'pay'").fetchall()
    names = {task_id: name for name, task_id in ids.items()}
    assert {names[task_id]: (state, reason) for task_id, state, reason in rows} == {
        name: ("completed", None)
        if name in OVER
        else ("held", "outcome_unknown" if name in HELD_ALREADY else "restored")
        for name in ids
    }
    assert step_states(site, ids["waiting"]) == {"a": "completed", "pay": "held", "ship": "waiting"}
    assert starts(site) == started

    def resolve(name: str, *words: str) -> None:
        command = site.stepwire("step", "resolve", f"{ids[name]}/pay", *words, "--reason", "asked the bank")
        assert command.returncode == 0, command.stderr

    # The operator resolves each held step. A step that waits for another one continues to wait.
    resolve("blocked", "--retry")
    assert step_states(site, ids["blocked"]) == {"a": "dispatched", "pay": "waiting"}
    resolve("running", "--completed", '{"charged": true}')
    resolve("waiting", "--retry")
    resolve("later", "--retry")
    resolve("unsure", "--failed", "it was never charged")
    resolve("ready", "--failed", "it was never charged")
    site.open_gate("late")
    ends = {n: "failed" if n in ("unsure", "ready") else "completed" for n in ids if n != "later"}
    for name, state in ends.items():
        eventually(lambda n=name, s=state: site.task(ids[n])["state"] == s, f"{name} to be {state}", 30)
    again = [ids[name] for name in ("waiting", "blocked", "later")]
    eventually(lambda: sum((starts(site) - started).values()) == 3, "those that were to run again")
    assert sorted((starts(site) - started).elements()) == sorted((task_id, "pay") for task_id in again)
    assert checked(site.database).findings == []


def test_tasks_that_no_broker_had_loaded_yet_are_held_too() -> None:
    with Site(settings={"limits.max_active_tasks": 1}) as site:
        broker = site.start_broker()
        site.apply(workflow("ready", ONCE))
        tasks = [{"workflow": "ready", "context": {}}] * 3
        ids = site.ask("POST", "/v1/tasks/batch", {"tasks": tasks}).body["task_ids"]
        assert sorted(site.task(i)["state"] for i in ids) == ["pending", "pending", "running"]
        make(site.database, site.directory / "b.db")
        broker.kill9()
        restored = put_back(site.directory / "b.db", site.database)
        assert (restored.held_tasks, restored.held_steps) == (3, 3)
        site.start_broker()
        site.start_worker("one")
        for task_id in ids:
            assert site.stepwire("step", "resolve", f"{task_id}/pay", "--retry", "--reason", "new").returncode == 0
        for task_id in ids:
            eventually(lambda i=task_id: site.task(i)["state"] == "completed", "the task to end", 20)
        assert checked(site.database).findings == []


def test_a_broker_under_load_is_backed_up_and_pruned_and_loses_nothing() -> None:
    with Site(settings={"retention.completed_ms": 300}) as site:
        broker = site.start_broker()
        site.apply(
            workflow(
                "chain",
                {"name": "a", "handler_class": "system.quick"},
                {"name": "b", "handler_class": "system.quick", "depends_on": ["a"]},
            )
        )
        site.start_worker("one", slots=50, is_synced=False)
        accepted: list[int] = []
        enough = threading.Event()

        def submit_for_ever() -> None:
            tasks = [{"workflow": "chain", "context": {}, "idempotency_key": None}] * 50
            while not enough.is_set():
                answer = site._ask("POST", "/v1/tasks/batch", {"tasks": tasks}, 10.0)
                if answer.status == 201:
                    accepted.extend(answer.body["task_ids"])
                else:
                    assert answer.status == 429, answer
                    time.sleep(0.02)

        client = threading.Thread(target=submit_for_ever)
        client.start()
        try:
            for i in range(3):
                known = len(accepted)
                eventually(lambda k=known: len(accepted) > k + 200, "some more tasks", 20)
                make(site.database, site.directory / f"b{i}.db")
                assert site.ask("POST", "/v1/database/prune").status == 202
            eventually(lambda: (looked_at(site.database).last_prune or {"tasks": 0})["tasks"] > 0, "a run to end", 20)
        finally:
            enough.set()
            client.join()
        left = eventually(
            lambda: sum(looked_at(site.database).tasks.values()) == 0 or None, "all to be over and gone", 30
        )
        assert left
        # Every acknowledged task has run, though its rows are gone; no late result does harm.
        finished = {run["task_id"] for run in site.runs("finished") if run["step"] == "b"}
        assert set(accepted) <= finished
        for i in range(3):
            outcome = checked(site.directory / f"b{i}.db")
            assert outcome.findings == []
            assert outcome.tasks_replayed > 0
        state = looked_at(site.database)
        assert state.log_bytes < 2 * opening.LOG_BYTES_MAX
        broker.ask_to_end()
        assert broker.wait() == 0
