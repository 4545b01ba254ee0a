"""The audit rows of a database, for commands that read the file themselves. A broker may run meanwhile."""

import sqlite3
from collections.abc import Iterator, Sequence

from stepwire_broker.store.audit_chain import AuditChain, AuditHead, AuditRow, faults, faults_against


def verify(connection: sqlite3.Connection, heads: Sequence[AuditHead] = ()) -> Iterator[str]:
    """Yield a sentence for each fault of the chains, and for each of `heads` that the database contradicts. All rows
    are read as of one moment."""
    connection.execute("BEGIN")
    try:
        ends = chains(connection)
        yield from faults(ends, rows(connection))
        yield from faults_against(heads, ends, _rows_of(connection, heads))
    finally:
        connection.execute("ROLLBACK")


def chains(connection: sqlite3.Connection) -> list[AuditChain]:
    found = connection.execute("SELECT lane, n, hash, cut_n, cut_hash FROM audit_chains ORDER BY lane")
    return [AuditChain(*row) for row in found]


def rows(connection: sqlite3.Connection) -> Iterator[AuditRow]:
    """Yield every row, by lane and number."""
    for row in connection.execute(f"SELECT {', '.join(AuditRow._fields)} FROM audit ORDER BY lane, n"):  # noqa: S608
        yield AuditRow(*row)


def _rows_of(connection: sqlite3.Connection, heads: Sequence[AuditHead]) -> Iterator[AuditHead]:
    for head in heads:
        found = connection.execute("SELECT lane, n, hash FROM audit WHERE lane = ? AND n = ?", (head.lane, head.n))
        yield from (AuditHead(*row) for row in found)
