"""The connection for notifications, which a pooler in transaction mode does not pass on.

`database.listen_url` leads to the same database without the pooler. Without it, brokers find changes by their polls.
"""

from contextlib import closing
from typing import Final

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.errors import StoreRefused

from .address import PostgresAddress, read_address
from .connecting import connect_first
from .pipeline import Pipeline, Statement, StatementCall
from .refusals import refusals_of

SETTING: Final = "database.listen_url"

_PLACE: Final = StatementCall(
    Statement(
        "place",
        "SELECT system_identifier, current_database(), pg_backend_pid(), pg_is_in_recovery() FROM pg_control_system()",
    )
)


def read_listen_address(settings: DatabaseSettings) -> PostgresAddress | None:
    """Read `database.listen_url`. Raises StoreRefused."""
    return None if settings.listen_url is None else read_address(settings.listen_url, SETTING)


def check_listening(settings: DatabaseSettings) -> None:
    """Connect to `database.listen_url`, and compare its database with that of `database.url`. Raises StoreRefused."""
    address = read_listen_address(settings)
    if address is None:
        return
    system, database, pid, is_standby, own_pid = _place(address, SETTING)
    if pid != own_pid:
        raise StoreRefused(
            f"{SETTING} leads to a pooler, which does not pass notifications on: name the server itself, or remove the "
            "setting"
        )
    if is_standby == b"t":
        raise StoreRefused(f"{SETTING} leads to a standby, which sends no notifications: name the primary")
    if (system, database) != _place(read_address(settings.url), "database.url")[:2]:
        raise StoreRefused(f"{SETTING} and database.url lead to different databases: name the same one in both")


def _place(address: PostgresAddress, setting: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    with (
        refusals_of(address, "the start", setting),
        closing(Pipeline(connect_first(address, "stepwire: check", setting), is_prepared=False)) as pipeline,
    ):
        (reply,) = pipeline.run([_PLACE])
        system, database, pid, is_standby = (value or b"" for value in reply.rows[0])
        return system, database, pid, is_standby, str(pipeline.backend_pid).encode()
