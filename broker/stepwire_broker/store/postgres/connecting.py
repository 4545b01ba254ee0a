"""Open connections: the first one, whose failure refuses the start, and later ones, with growing random pauses."""

import random
from typing import Any, Final

import psycopg

from stepwire_broker.store.errors import NotThere, StoreRefused

from .address import PostgresAddress
from .failures import ConnectionLost

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0

PostgresConnection = psycopg.Connection[tuple[Any, ...]]


def connect(address: PostgresAddress, application: str) -> PostgresConnection:
    """Open a connection in autocommit. `application`: the name under which the server lists it. Raises ConnectionLost
    for every failure, since a running broker waits for the cure of all of them."""
    try:
        return _connect(address, application)
    except psycopg.Error as error:
        raise ConnectionLost(f"no connection to {address.shown}: {_reason(error)}") from error


def connect_first(address: PostgresAddress, application: str, setting: str = "database.url") -> PostgresConnection:
    """Open the connection of a start. Raises StoreRefused with the remedy."""
    try:
        return _connect(address, application)
    except psycopg.Error as error:
        refusal = NotThere if _sqlstate(error) == "3D000" else StoreRefused
        raise refusal(_sentence(address, error, setting)) from error


def _connect(address: PostgresAddress, application: str) -> PostgresConnection:
    named: dict[str, Any] = {**address.parameters, "application_name": application, "client_encoding": "UTF8"}
    return psycopg.Connection.connect("", autocommit=True, prepare_threshold=None, **named)


def _sentence(address: PostgresAddress, error: psycopg.Error, setting: str) -> str:
    reason = _reason(error)
    if _sqlstate(error) == "3D000":
        remedy = f"this database does not exist: create it with `createdb`, or correct {setting}"
    else:
        texts = (text for marks, text in REMEDIES.items() if any(mark in reason for mark in marks))
        remedy = next(texts, REMEDY).format(reason=reason, setting=setting)
    return f"{setting} leads to {address.shown}, and {remedy}"


# libpq gives a refused connection no SQLSTATE, so the remedy is chosen by words of the server's reason.
REMEDIES: Final = {
    ("password", "authentication", "role"): (
        "the server refuses this user: {reason}. Correct the user and the password of {setting}"
    ),
    ("pg_hba.conf", "permission denied"): (
        "the server refuses this connection: {reason}. Permit it in pg_hba.conf and by GRANT CONNECT ON DATABASE"
    ),
}
REMEDY: Final = "no connection could be made: {reason}. Start the server, or correct {setting}"


def _reason(error: psycopg.Error) -> str:
    """The server's or the library's reason. libpq gives no SQLSTATE for a refused connection, only a text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_server = [line.partition("FATAL:")[2].strip() for line in lines if "FATAL:" in line]
    return of_server[-1] if of_server else lines[0]


def _sqlstate(error: psycopg.Error) -> str | None:
    if error.sqlstate is not None:
        return error.sqlstate
    reason = _reason(error)
    return "3D000" if reason.startswith("database ") and reason.endswith("does not exist") else None


class Pauses:
    """The times between attempts to connect. Random, so that brokers do not come back at the same instant."""

    def __init__(self) -> None:
        self._most_s = PAUSE_S

    def next_s(self) -> float:
        pause_s = random.uniform(self._most_s / 2, self._most_s)  # noqa: S311 - spreads reconnections; no id
        self._most_s = min(self._most_s * 2, PAUSE_MAX_S)
        return pause_s

    def reset(self) -> None:
        self._most_s = PAUSE_S
