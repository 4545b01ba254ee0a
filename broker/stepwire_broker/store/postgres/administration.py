"""An administrator's changes to the tables, with or without a running broker."""

from contextlib import closing

from msgspec import Struct

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.errors import NotThere, StoreRefused

from .address import read_address
from .connecting import connect_first
from .database import check
from .refusals import refusals_of
from .schema import HEAD, LANES_MAX, add_lanes, check_tables, create_tables, has_tables, read_schema_name


class Upgrade(Struct, frozen=True):
    """`made`: the tables were made now. `is_needed`: they do not exist yet."""

    schema: str
    version: str
    made: bool
    is_needed: bool


def upgrade(settings: DatabaseSettings, *, changes: bool = True) -> Upgrade:
    """Make the tables of an empty schema. Without `changes`, only say whether they are missing. Raises StoreRefused for
    tables of another version."""
    check(settings)
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    with refusals_of(address), closing(connect_first(address, "stepwire: upgrade")) as connection:
        is_needed = not has_tables(connection, schema)
        if is_needed and changes:
            create_tables(connection, schema, settings.lanes)
    return Upgrade(schema, HEAD, made=is_needed and changes, is_needed=is_needed)


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
