"""The program of the version before runs next to the next one, on tables that the next one has upgraded."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stepwire import Client
from stepwire_broker.store.postgres import migrating

from tests.postgres import next_program as following
from tests.postgres.server import PostgresServer
from tests.system.harness import eventually

from .a_place import STEPWIRE, Ended, Place, Serving, place, stop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def at(place: Place, server: PostgresServer, schema: str) -> Place:
    own = {"DATABASE_URL": server.url(), "STEPWIRE_DATABASE__SCHEMA": schema, "STEPWIRE_DATABASE__LANES": "2"}
    return Place(place.directory, place.environ | own)


def next_program(place: Place, *words: str, **environ: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "tests.postgres.next_program", *words],
        cwd=place.directory,
        env=place.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_a_broker_of_the_version_before_goes_on_and_starts_on_upgraded_tables(
    empty: Place, server: PostgresServer
) -> None:
    place, own = at(empty, server, "s"), migrating.known().schema
    broker = place.serve()
    ended = next_program(place, "serve")
    assert f"have version {own}, and this program works on 0099: run `stepwire db upgrade`" in ended.err
    assert f"has version {own}: `stepwire db upgrade` makes" in next_program(place, "db", "upgrade", "--dry-run").out
    ended = next_program(place, "db", "upgrade")
    assert f"was upgraded from version {own} to 0099" in ended.out, ended
    url = broker.ready.partition("http://")[2].split()[0].rstrip(".,;")
    (place.directory / "w.yaml").write_text("name: w\nsteps: [{name: a, handler_class: x.a}]\n")
    for words in (("workflow", "apply", "w.yaml"), ("task", "submit", "w")):
        ended = place.stepwire(*words, STEPWIRE_URL=f"http://{url}")
        assert ended.code == 0, ended
    assert broker.end(signal.SIGTERM).code == 0
    again = place.serve()
    assert again.end(signal.SIGTERM).code == 0
    assert f"has version 0099, and this program, {own}, runs on it" in place.stepwire("db", "upgrade").out
    assert server.sql("SELECT count(*) FROM s.tasks") == [(1,)]
    assert server.sql("SELECT count(*) FROM s.zones") == [(0,)]


BEATS = 10  # two leases
NEXT = [sys.executable, "-m", "tests.postgres.next_program"]


class Rolling:
    """Brokers of both versions on one schema, and a client that knows the addresses of all."""

    def __init__(self, directory: Path, server: PostgresServer, schema: str, stack: ExitStack) -> None:
        self._directory, self._server, self._schema, self._stack = directory, server, schema, stack
        self._brokers: dict[str, Serving] = {}
        self._urls: dict[str, str] = {}

    def start(self, name: str, program: list[str]) -> Place:
        directory = self._directory / name
        directory.mkdir(mode=0o700, exist_ok=True)
        here = at(place(directory), self._server, self._schema)
        tokens = self._directory / "b1/.stepwire/token"
        own = {"STEPWIRE_BROKER__ID": name, "STEPWIRE_BROKER__LEASE_MS": "2000", "PYTHONPATH": str(ROOT)}
        if name != "b1":
            own["STEPWIRE_HTTP__TOKENS_FILE"] = str(tokens)
        here.environ.update(own)
        command = [*program, "serve", "-o", "json"]
        process = subprocess.Popen(
            command, cwd=directory, env=here.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._stack.callback(stop, process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        self._brokers[name] = Serving(process, line)
        self._urls[name] = json.loads(line)["http"]
        return here

    def end(self, name: str) -> None:
        assert self._brokers[name].end(signal.SIGTERM).code == 0

    def client(self) -> Client:
        return Client(list(self._urls.values()), token_file=str(self._directory / "b1/.stepwire/token"))

    def until_owned(self, *owners: str) -> None:
        """Wait until the lanes have these owners, in any order."""
        eventually(lambda: self._owners() == sorted(owners), f"the lanes to be owned by {owners}", 60)

    def _owners(self) -> list[Any]:
        rows = self._server.sql(f"SELECT coalesce(owner, '') FROM {self._schema}.lanes")  # noqa: S608
        return sorted(owner for (owner,) in rows)

    def beats(self, name: str) -> int:
        ((beat,),) = self._server.sql(f"SELECT beat FROM {self._schema}.brokers WHERE id = %s", name)  # noqa: S608
        return int(beat)


def test_lanes_move_to_the_next_version_and_not_back_while_brokers_are_upgraded_one_by_one(
    tmp_path: Path, server: PostgresServer
) -> None:
    with ExitStack() as stack:
        rolling = Rolling(tmp_path, server, "v", stack)
        here = rolling.start("b1", STEPWIRE)
        rolling.until_owned("b1", "b1")
        assert next_program(here, "db", "upgrade").code == 0
        rolling.start("b2", NEXT)
        rolling.until_owned("b1", "b2")
        with rolling.client() as client:
            client.apply_workflow({"name": "w", "steps": [{"name": "a", "handler_class": "x.a"}]})
            first = client.submit("w").task_id
            rolling.end("b1")
            rolling.until_owned("b2", "b2")
            assert client.task(first)["state"] == "running"
            rolling.start("b1", STEPWIRE)
            before = rolling.beats("b2")
            eventually(lambda: rolling.beats("b2") > before + BEATS, "the brokers to see each other for two leases", 60)
            rolling.until_owned("b2", "b2")
            versions = {one["broker"]: one["version"] for one in client.brokers()["brokers"] if one["is_alive"]}
            assert versions.keys() == {"b1", "b2"}
            assert versions["b2"] == following.VERSION != versions["b1"]
        with rolling.client() as client:
            second = client.submit("w").task_id
            rolling.end("b2")
            rolling.until_owned("b1", "b1")
            assert {client.cancel(task_id)["state"] for task_id in (first, second)} == {"cancelled"}


def test_a_program_that_the_upgraded_tables_do_not_serve_is_refused(empty: Place, server: PostgresServer) -> None:
    place = at(empty, server, "t")
    assert place.stepwire("db", "upgrade").code == 0
    assert next_program(place, "db", "upgrade", TEST_SERVES_FROM="0099").code == 0
    ended = place.stepwire("config", "validate")
    assert "have version 0099, and this program works on" in ended.err
    assert "run a newer version of Stepwire" in ended.err


def test_an_administrator_gets_the_statements_of_the_upgrade(empty: Place, server: PostgresServer) -> None:
    place = at(empty, server, "u")
    assert place.stepwire("db", "upgrade").code == 0
    script = next_program(place, "db", "upgrade", "--sql", "--from", migrating.known().schema).out
    done = subprocess.run(
        [server.programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", server.url()], input=script, text=True, check=True
    )
    assert done.returncode == 0
    assert server.sql("SELECT value FROM u.meta WHERE name = 'schema'") == [("0099",)]
    assert place.stepwire("config", "validate").code == 0


def test_an_index_whose_build_failed_is_built_again_by_the_next_upgrade(empty: Place, server: PostgresServer) -> None:
    place, own = at(empty, server, "x"), migrating.known().schema
    assert place.stepwire("db", "upgrade").code == 0
    server.sql(
        "INSERT INTO x.tasks (id, uid, workflow_id, lane, namespace, state, cancelling, stored, priority, rank_ms, "
        "context_bytes, created_ms, context, finished_ms) SELECT n, repeat('0', 32), 1, 1, 'd', 'completed', false, "
        "false, 0, 1, 2, 1, '{}', 1 FROM generate_series(5, 10, 5) AS n"
    )
    ended = next_program(place, "db", "upgrade")
    assert ended.code != 0
    assert 'could not create unique index "tasks_of_uid"' in ended.err
    assert server.sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'x.tasks_of_uid'::regclass") == [(False,)]
    assert server.sql("SELECT value FROM x.meta WHERE name = 'schema'") == [(own,)]
    server.sql("DELETE FROM x.tasks WHERE id = 10")
    assert next_program(place, "db", "upgrade").code == 0
    assert server.sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'x.tasks_of_uid'::regclass") == [(True,)]
    assert server.sql("SELECT value FROM x.meta WHERE name = 'schema'") == [("0099",)]


def test_groups_are_written_while_an_index_is_built(empty: Place, server: PostgresServer) -> None:
    place = at(empty, server, "w")
    assert place.stepwire("db", "upgrade").code == 0
    upgrading: list[Ended] = []
    with server.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("UPDATE w.tasks SET priority = 1")  # the build waits for this transaction
        thread = threading.Thread(target=lambda: upgrading.append(next_program(place, "db", "upgrade")))
        thread.start()
        server.wait_for(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE UNIQUE%' AND wait_event_type = 'Lock'"
        )
        with server.connect() as group:
            group.execute("SET lock_timeout = '10s'")
            group.execute("UPDATE w.tasks SET priority = 2")
        writer.execute("COMMIT")
    thread.join()
    assert upgrading[0].code == 0
