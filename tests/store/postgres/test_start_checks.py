"""Refusals at the start: unsafe servers, wrong databases, missing rights and unsuitable poolers."""

from collections.abc import Callable

import pytest
from stepwire_broker.store.errors import StoreRefused
from stepwire_broker.store.postgres.pipeline import Pipeline
from stepwire_broker.store.postgres.start_checks import ServerFacts, check_server, read_facts, refusals

from tests.postgres.pooler import Pooler
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]

GOOD = ServerFacts(
    version=150_018,
    version_text="15.18",
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    standbys="",
    is_standby=False,
    encoding="UTF8",
    is_pooled=False,
    schema_exists=False,
    may_create=True,
    may_use=False,
)


def refused(pipeline: Pipeline, schema: str = "stepwire", user: str = "admin") -> str:
    with pytest.raises(StoreRefused) as error:
        check_server(pipeline, schema, user)
    assert str(error.value).startswith("database.url")
    return str(error.value)


def test_the_defaults_of_a_server_are_accepted(open_pipeline: Open) -> None:
    facts = check_server(open_pipeline(), "stepwire", "admin")
    assert facts.version >= 130_000
    assert not facts.is_pooled
    assert facts._replace(version=0, version_text="") == GOOD._replace(version=0, version_text="")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 120_019, "version_text": "12.19"}, "the server is PostgreSQL 12.19"),
        ({"fsync": False}, "fsync = off"),
        ({"full_page_writes": False}, "full_page_writes = off"),
        ({"synchronous_commit": "off"}, "synchronous_commit = off"),
        ({"synchronous_commit": "local", "standbys": "b"}, "synchronous_commit = local"),
        ({"encoding": "LATIN1"}, "the encoding LATIN1"),
    ],
)
def test_an_unsafe_server_is_refused_unless_the_operator_accepts_the_loss(
    changes: dict[str, object], text: str
) -> None:
    facts = GOOD._replace(**changes)  # type: ignore[arg-type]
    (sentence,) = refusals(facts, "stepwire", "shop")
    assert text in sentence
    assert "database.allow_unsafe" in sentence
    assert refusals(facts, "stepwire", "shop", allow_unsafe=True) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"is_standby": True}, "target_session_attrs=read-write"),
        ({"may_create": False}, "CREATE SCHEMA stepwire AUTHORIZATION shop"),
        ({"schema_exists": True}, "GRANT USAGE ON SCHEMA stepwire TO shop"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_in_any_case(changes: dict[str, object], text: str) -> None:
    (sentence,) = refusals(GOOD._replace(**changes), "stepwire", "shop", allow_unsafe=True)  # type: ignore[arg-type]
    assert text in sentence


def test_synchronous_commit_local_is_accepted_without_standbys() -> None:
    assert refusals(GOOD._replace(synchronous_commit="local"), "stepwire", "shop") == []


def test_every_unsafe_setting_of_a_server_is_read_from_it(open_pipeline: Open) -> None:
    unsafe = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    with PostgresServer(unsafe) as own:
        own.sql("CREATE DATABASE old ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        text = refused(open_pipeline(own.url("old")))
    for part in (*(f"{name} = off" for name in unsafe), "the encoding LATIN1"):
        assert part in text
    assert len(text.splitlines()) == 4


def test_a_standby_is_read_as_one(open_pipeline: Open) -> None:
    with PostgresServer({"wal_level": "replica"}) as own:
        own.stop()
        (own.data / "standby.signal").touch()
        own.start()
        assert "the server is a standby" in refused(open_pipeline(own.url()))


def test_rights_are_those_of_the_user_of_the_url(server: PostgresServer, schema: str, open_pipeline: Open) -> None:
    server.sql(f"CREATE ROLE clerk LOGIN PASSWORD '{server.password}'")
    pipeline = open_pipeline(server.url(user="clerk"))
    try:
        assert "CREATE SCHEMA absent AUTHORIZATION clerk" in refused(pipeline, "absent", "clerk")
        assert f"GRANT USAGE ON SCHEMA {schema} TO clerk" in refused(pipeline, schema, "clerk")
        server.sql(f"GRANT USAGE ON SCHEMA {schema} TO clerk")
        assert not check_server(pipeline, schema, "clerk").may_create
    finally:
        server.sql("DROP OWNED BY clerk")
        server.sql("DROP ROLE clerk")


def test_a_pooler_in_transaction_mode_is_recognised_and_accepted(server: PostgresServer, open_pipeline: Open) -> None:
    with Pooler(server) as pooler:
        assert check_server(open_pipeline(pooler.url(), is_prepared=False), "stepwire", "admin").is_pooled


def test_a_pooler_in_statement_mode_is_refused(server: PostgresServer, open_pipeline: Open) -> None:
    with Pooler(server, "statement") as pooler, pytest.raises(StoreRefused, match="set pool_mode = transaction"):
        read_facts(open_pipeline(pooler.url(), is_prepared=False), "stepwire")
