"""The command line with a database on PostgreSQL: its sentences, and the tables that it makes."""

from collections.abc import Iterator

import psycopg
import pytest
from stepwire_broker.store.postgres import migrating

from tests.postgres.pooler import Pooler
from tests.postgres.server import PostgresServer

from .a_place import Ended, Place
from .test_doctor import findings

USAGE = 2


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_validate_and_serve_refuse_what_the_server_lacks_in_one_sentence(empty: Place, server: PostgresServer) -> None:
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    as_guest = f"postgresql://guest:guest@127.0.0.1:{server.port}/postgres"
    refused = {
        server.url("nowhere"): "this database does not exist: create it with `createdb`",
        as_guest: "this user cannot create it: run `CREATE SCHEMA stepwire AUTHORIZATION guest`",
        f"postgresql://admin:wrong@127.0.0.1:{server.port}/postgres": "the server refuses this user",
    }
    for url, sentence in refused.items():
        done = empty.stepwire("config", "validate", DATABASE_URL=url)
        assert done.code == USAGE
        assert sentence in done.err
        assert "Traceback" not in done.err
        assert "wrong" not in done.err
    done = empty.stepwire("serve", DATABASE_URL=as_guest)
    assert "the broker cannot start: database.url: the schema stepwire does not exist" in done.err


def test_a_role_without_the_right_to_create_uses_tables_that_an_administrator_made(
    empty: Place, server: PostgresServer
) -> None:
    script = empty.stepwire("db", "upgrade", "--sql", DATABASE_URL="postgresql://h/d", STEPWIRE_DATABASE__LANES="3").out
    with psycopg.connect(server.socket_url(), autocommit=True) as connection:
        connection.execute(script.encode())
        connection.execute("CREATE ROLE worker LOGIN PASSWORD 'worker'")
        connection.execute("GRANT USAGE ON SCHEMA stepwire TO worker")
    url = f"postgresql://worker:worker@127.0.0.1:{server.port}/postgres"
    done = empty.stepwire("config", "validate", DATABASE_URL=url, STEPWIRE_DATABASE__LANES="3")
    assert "lacks a right: permission denied for table meta" in done.err
    server.sql("GRANT ALL ON ALL TABLES IN SCHEMA stepwire TO worker")
    server.sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA stepwire TO worker")
    assert empty.stepwire("config", "validate", DATABASE_URL=url, STEPWIRE_DATABASE__LANES="3").code == 0
    done = empty.stepwire("config", "validate", DATABASE_URL=url)
    assert "database.lanes is 8, and the schema stepwire has 3 lanes" in done.err


def test_tables_are_made_once_and_lanes_only_added(empty: Place, server: PostgresServer) -> None:
    own = {"DATABASE_URL": server.url(), "STEPWIRE_DATABASE__SCHEMA": "made", "STEPWIRE_DATABASE__LANES": "2"}
    assert "has no tables" in empty.stepwire("db", "upgrade", "--dry-run", **own).out
    assert empty.stepwire("db", "upgrade", "-o", "json", **own).json["made"]
    assert f"has version {migrating.known().schema}" in empty.stepwire("db", "upgrade", **own).out
    assert empty.stepwire("db", "lanes", "5", "-o", "json", **own).json == {"lanes": 5, "before": 2}
    assert "has 5 lanes, and never fewer" in empty.stepwire("db", "lanes", "3", **own).err
    assert server.sql("SELECT min(id), max(id), count(*) FROM made.lanes") == [(1, 5, 5)]
    assert server.sql("SELECT count(*) FROM made.commits WHERE seq = 0") == [(5,)]


def test_the_url_for_notifications_leads_to_the_same_database_without_a_pooler(
    empty: Place, server: PostgresServer
) -> None:
    server.sql("CREATE DATABASE another")
    own = {"DATABASE_URL": server.url(), "STEPWIRE_DATABASE__SCHEMA": "listening"}

    def validate(listen_url: str) -> Ended:
        return empty.stepwire("config", "validate", **own, STEPWIRE_DATABASE__LISTEN_URL=listen_url)

    assert validate(server.socket_url()).code == 0
    refused = {
        "sqlite:///x.db": "database.listen_url is not a URL of PostgreSQL",
        server.url("another"): "database.listen_url and database.url lead to different databases",
        server.url("nowhere"): "create it with `createdb`, or correct database.listen_url",
        server.url(port=1): "database.listen_url leads to postgresql://admin@127.0.0.1:1/postgres, and no connection",
    }
    with Pooler(server) as pooler:
        refused[pooler.url()] = "database.listen_url leads to a pooler"
        for url, sentence in refused.items():
            ended = validate(url)
            assert (ended.code, sentence in ended.err) == (USAGE, True), ended
            assert server.password not in ended.err
        found = findings(empty.stepwire("doctor", "-o", "jsonl", **own | {"DATABASE_URL": pooler.url()}))
        assert "without database.listen_url, brokers get no notifications" in found["database"]["text"]
    shown = empty.stepwire("config", "show", **own, STEPWIRE_DATABASE__LISTEN_URL=server.url())
    assert server.password not in shown.out + shown.err


def test_doctor_names_the_server_and_commands_on_a_file_are_refused(empty: Place, server: PostgresServer) -> None:
    own = {"DATABASE_URL": server.url(), "STEPWIRE_DATABASE__SCHEMA": "nothing"}
    found = findings(empty.stepwire("doctor", "-o", "jsonl", **own))
    assert found["database"]["state"] == "ok"
    assert "PostgreSQL" in found["database"]["text"]
    for command in (("backup", "x.db"), ("restore", "x.db"), ("prune",)):
        done = empty.stepwire("db", *command, **own)
        assert done.code == USAGE
        assert "works on the file of a SQLite database" in done.err
