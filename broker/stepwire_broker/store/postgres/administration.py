"""An administrator's changes to the tables, with or without a running broker."""

from contextlib import closing

from msgspec import Struct

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.errors import NotThere, StoreRefused

from . import migrating
from .address import read_address
from .connecting import connect_first
from .database import check_server_of
from .refusals import refusals_of
from .schema import LANES_MAX, add_lanes, check_tables, create_tables, has_tables, read_schema_name


class Upgrade(Struct, frozen=True):
    """`made`: the tables were made now. `is_needed`: they do not exist, or have an older version."""

    schema: str
    version: str  # of this program
    before: str | None  # of the tables; None: there were none
    made: bool
    is_needed: bool


def upgrade(settings: DatabaseSettings, *, changes: bool = True) -> Upgrade:
    """Make the tables of an empty schema, or run the missing migrations. Without `changes`, only say what is missing.
    Raises StoreRefused for tables of a newer version."""
    check_server_of(settings)
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    version = migrating.known().schema
    with refusals_of(address, "the upgrade"), closing(connect_first(address, "stepwire: upgrade")) as connection:
        if not has_tables(connection, schema):
            if changes:
                create_tables(connection, schema, settings.lanes)
            return Upgrade(schema, version, None, made=changes, is_needed=True)
        before = migrating.read_versions(connection, schema)
        if before.schema < version and changes:
            with closing(connect_first(address, "stepwire: upgrade")) as guard:
                before = migrating.migrate(connection, schema, guard)
    if before.schema > version:
        migrating.refuse_version(schema, before)
    return Upgrade(schema, version, before.schema, made=False, is_needed=before.schema < version)


def make_lanes(settings: DatabaseSettings, count: int) -> int:
    """Let the schema have this number of lanes. Returns the number before. Raises StoreRefused for fewer lanes than
    before, because the tasks of a lane stay in it."""
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    if count > LANES_MAX:
        raise StoreRefused(f"a schema has at most {LANES_MAX} lanes")
    with refusals_of(address), closing(connect_first(address, "stepwire: lanes")) as connection:
        if not has_tables(connection, schema):
            raise NotThere(f"the schema {schema} has no tables yet")
        before = add_lanes(connection, schema, count)
        check_tables(connection, schema, max(before, count))
    if before > count:
        raise StoreRefused(
            f"the schema {schema} has {before} lanes, and never fewer: tasks stay in their lane. Set "
            f"database.lanes: {before}"
        )
    return before
