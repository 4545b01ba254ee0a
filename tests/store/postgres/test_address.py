"""The URL of `database.url`, and the first connection to it."""

import pytest
from stepwire_broker.store.errors import NotThere, StoreRefused
from stepwire_broker.store.postgres.address import PostgresAddress, read_address
from stepwire_broker.store.postgres.connecting import PAUSE_MAX_S, Pauses, connect, connect_first
from stepwire_broker.store.postgres.failures import ConnectionLost
from stepwire_broker.store.postgres.schema import read_schema_name

from tests.postgres.server import PostgresServer, free_port

SECRET = "s3cret%2Fpart"

REFUSED_URLS = {
    "sqlite:///x.db": "is not a URL of PostgreSQL",
    "postgresql:/x": "is not a URL of PostgreSQL",
    f"postgresql://user:{SECRET}@host/": "names no database",
    f"postgresql://user:{SECRET}@host/db?colour=red": 'invalid URI query parameter: "colour"',
    "postgresql://user:s3cret%zz@host/db": "percent-encoded",
    f"postgresql://user:{SECRET}@host/db?options=-c%20fsync%3Doff": "sets 'options'",
    f"postgresql://user:{SECRET}@host/db?client_encoding=latin1": "sets 'client_encoding'",
}


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_a_url_that_is_no_database_is_refused_in_a_sentence_without_its_password(url: str) -> None:
    with pytest.raises(StoreRefused) as refused:
        read_address(url)
    assert "database.url" in str(refused.value)
    assert REFUSED_URLS[url] in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_an_address_is_shown_without_its_password() -> None:
    address = read_address(f"postgresql://user:{SECRET}@db.internal:6432/shop?sslmode=require")
    assert address.shown == "postgresql://user@db.internal:6432/shop"
    assert address.parameters["password"] == "s3cret/part"
    assert address.parameters["sslmode"] == "require"


def test_a_connection_whose_peer_is_gone_ends_within_12_seconds_unless_the_url_has_other_limits() -> None:
    parameters = read_address("postgresql://host/db").parameters
    idle, interval, count = (int(parameters[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + interval * count <= 12
    assert parameters["tcp_user_timeout"] == "10000"
    assert read_address("postgresql://host/db?keepalives_idle=60").parameters["keepalives_idle"] == "60"


def test_a_first_connection_to_a_missing_database_names_the_command_that_creates_it(server: PostgresServer) -> None:
    with pytest.raises(NotThere, match="does not exist: create it with `createdb`"):
        connect_first(read_address(server.url("nowhere")), "stepwire test")


def test_a_first_connection_with_a_wrong_password_names_the_setting(server: PostgresServer) -> None:
    address = read_address(server.url())
    wrong = PostgresAddress(address.parameters | {"password": "wrong"}, address.shown)
    with pytest.raises(StoreRefused, match="refuses this user: password authentication failed") as refused:
        connect_first(wrong, "stepwire test")
    assert "database.url" in str(refused.value)


def test_a_first_connection_without_the_right_to_connect_names_the_right(server: PostgresServer) -> None:
    server.sql("CREATE DATABASE closed")
    server.sql("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    server.sql(f"CREATE ROLE visitor LOGIN PASSWORD '{server.password}'")
    with pytest.raises(StoreRefused, match="GRANT CONNECT"):
        connect_first(read_address(server.url("closed", "visitor")), "stepwire test")


def test_a_first_connection_to_a_port_without_a_server_is_refused(server: PostgresServer) -> None:
    with pytest.raises(StoreRefused, match=r"no connection could be made: .*Start the server") as refused:
        connect_first(read_address(server.url(port=free_port())), "stepwire test")
    assert server.password not in str(refused.value)


def test_a_later_connection_reports_every_failure_as_a_lost_connection(server: PostgresServer) -> None:
    for url in (server.url("nowhere"), server.url(port=free_port())):
        with pytest.raises(ConnectionLost) as lost:
            connect(read_address(url), "stepwire test")
        assert server.password not in str(lost.value)


def test_a_connection_is_listed_by_the_server_under_its_own_name(server: PostgresServer) -> None:
    with connect(read_address(server.url()), "stepwire b1 lane 3"):
        rows = server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwire b1 lane 3'")
    assert rows == [(1,)]


def test_pauses_between_connections_grow_to_two_seconds_and_begin_again_after_a_success() -> None:
    pauses = Pauses()
    taken = [pauses.next_s() for _ in range(12)]
    assert taken[0] <= 0.05
    assert all(PAUSE_MAX_S / 2 <= pause <= PAUSE_MAX_S for pause in taken[7:])
    pauses.reset()
    assert pauses.next_s() <= 0.05


@pytest.mark.parametrize("name", ["", "Stepwire", "a b", "1st", "pg_shop", "x" * 64, 'a";--'])
def test_a_schema_name_that_needs_quotes_is_refused(name: str) -> None:
    with pytest.raises(StoreRefused, match=r"database\.schema"):
        read_schema_name(name)
