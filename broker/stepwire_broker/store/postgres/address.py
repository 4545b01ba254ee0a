"""The address of a PostgreSQL database: the URL of `database.url` and the parameters of its connections."""

from typing import Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from stepwire_broker.store.errors import StoreRefused

FORM: Final = "postgresql://user:password@host:5432/database"
SCHEMES: Final = ("postgresql", "postgres")

# A connection whose peer is gone fails within about 11 s, also in the middle of a statement.
KEEPALIVE: Final = {
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

# Parameters that the store sets itself, per transaction: a pooler would drop them, or keep them for another client.
OWN: Final = ("options", "client_encoding", "replication")


class PostgresAddress(NamedTuple):
    parameters: dict[str, str]  # of libpq
    shown: str  # without the password: for messages and logs


def read_address(url: str, setting: str = "database.url") -> PostgresAddress:
    """Read a URL. Raises StoreRefused, whose message never contains the password."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise StoreRefused(f"{setting} is not a URL of PostgreSQL: it needs a form like {FORM}")
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError as error:
        # libpq quotes the faulty part, which can be the password. Names of parameters are safe to repeat.
        first = str(error).strip().splitlines()[0]
        detail = f"; {first}" if first.startswith("invalid URI query parameter") else ""
        raise StoreRefused(
            f"{setting} cannot be read: it needs a form like {FORM}, with special characters of the password "
            f"percent-encoded{detail}"
        ) from None
    for name in OWN:
        if name in given:
            raise StoreRefused(f"{setting} sets {name!r}, which the broker sets itself: remove it from the URL")
    if "dbname" not in given:
        raise StoreRefused(f"{setting} names no database: it needs a form like {FORM}")
    return PostgresAddress(KEEPALIVE | given, _shown(given))


def _shown(given: dict[str, str]) -> str:
    user = f"{given['user']}@" if "user" in given else ""
    port = f":{given['port']}" if "port" in given else ""
    return f"postgresql://{user}{given.get('host', '')}{port}/{given['dbname']}"
