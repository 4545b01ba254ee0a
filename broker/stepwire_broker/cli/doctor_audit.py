"""The check of the audit for `stepwire doctor`."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from stepwire_broker.core.phrases import counted

from .finding import Finding

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings


def audit(settings: "Settings") -> Iterator[Finding]:
    """A broken chain means that a program changed rows of the audit, or that the disk lost some."""
    from stepwire_broker.store import stored_audit
    from stepwire_broker.store.errors import StoreRefused
    from stepwire_broker.store.sqlite.backup import open_stored
    from stepwire_broker.store.sqlite.migrate import HEAD, revision
    from stepwire_broker.store.sqlite.opening import path_of
    from stepwire_broker.store.sqlite.stored_state import SqliteState

    try:
        path = path_of(settings.database.url)
        if not path.exists():
            return
        with closing(open_stored(path)) as connection:
            if revision(connection) != HEAD:
                return  # `serve` upgrades the database when it starts
            state = SqliteState(connection)
            fault = next(iter(list(islice(stored_audit.verify(state), 1))), None)
            rows = sum(chain.n - chain.cut_n for chain in stored_audit.chains(state))
    except (sqlite3.Error, StoreRefused):
        return  # other checks report this database
    if fault is None:
        yield Finding("ok", "audit", f"the chain of {counted(rows, 'row')} is complete")
        return
    todo = "find all faults: stepwire audit verify; compare a stored head, and keep a copy of the database"
    yield Finding("red", "audit", f"the audit was changed: {fault}", todo)
