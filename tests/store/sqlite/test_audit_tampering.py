"""Changes of the audit behind the broker's back: each is found, and the row is named."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from stepwire_broker.store import stored_audit
from stepwire_broker.store.audit_chain import AuditHead, AuditRow, hash_of
from stepwire_broker.store.checking import check
from stepwire_broker.store.sqlite.stored_state import SqliteState

from tests.store.conformance.test_audit import ages, prune
from tests.store.running import Running

ROWS = 8  # row 1 and 2 are removed by retention


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with rows 3 to 8, which no broker has open."""
    place = tmp_path / "state.db"
    with Running(place) as run:
        run.write(audit=ages(500, 450, 3, 3, 2, 2, 1, 0))
        assert prune(run) == 2
    with closing(sqlite3.connect(place, isolation_level=None)) as opened:
        assert list(stored_audit.verify(SqliteState(opened))) == []
        yield opened


def stored(connection: sqlite3.Connection, n: int) -> AuditRow:
    return next(row for row in stored_audit.rows(SqliteState(connection)) if row.n == n)


def add(connection: sqlite3.Connection, row: AuditRow) -> None:
    connection.execute(f"INSERT INTO audit VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
    recompute(connection, row.n)


def recompute(connection: sqlite3.Connection, n: int) -> None:
    """Give row `n` the hash that follows from its present content."""
    row = stored(connection, n)
    connection.execute("UPDATE audit SET hash = ? WHERE n = ?", (hash_of(stored(connection, n - 1).hash, row), n))


def change_and_recompute(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE audit SET principal = 'another' WHERE n = 5")
    recompute(connection, 5)


def swap(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE audit SET n = 100 WHERE n = 4")
    connection.execute("UPDATE audit SET n = 4 WHERE n = 5")
    connection.execute("UPDATE audit SET n = 5 WHERE n = 100")


def insert(connection: sqlite3.Connection) -> None:
    for n in range(ROWS, 5, -1):
        connection.execute("UPDATE audit SET n = ? WHERE n = ?", (n + 1, n))
    add(connection, stored(connection, 5)._replace(n=6, action="forged"))


def append(connection: sqlite3.Connection) -> None:
    add(connection, stored(connection, ROWS)._replace(n=ROWS + 1))


def statement(text: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute(text)


TAMPERINGS: list[tuple[str, Callable[[sqlite3.Connection], object], str]] = [
    *((name, statement(f"UPDATE audit SET {name} = 'x' WHERE n = 5"), "row 5") for name in  # noqa: S608
      ("principal", "via", "action", "target", "reason", "detail", "outcome", "request_id")),
    ("a changed time", statement("UPDATE audit SET at_ms = at_ms + 1 WHERE n = 5"), "row 5"),
    ("a changed hash", statement("UPDATE audit SET hash = replace(hash, 'a', 'b') WHERE n = 5"), "row 5"),
    ("a changed row with its hash computed again", change_and_recompute, "row 6"),
    ("a removed row", statement("DELETE FROM audit WHERE n = 5"), "row 5"),
    ("a removed first row", statement("DELETE FROM audit WHERE n = 3"), "row 3"),
    ("a removed end", statement("DELETE FROM audit WHERE n > 6"), "rows 7 to 8"),
    ("swapped rows", swap, "row 4"),
    ("an inserted row", insert, "row 7"),
    ("an appended row", append, "row 9"),
    ("a renumbered row", statement("UPDATE audit SET n = 50 WHERE n = 8"), "rows 8 to 49"),
    ("another lane", statement("UPDATE audit SET lane = 2 WHERE n = 8"), "row 8"),
    ("a changed hash at the cut", statement("UPDATE audit_chains SET cut_hash = hash"), "row 3"),
    ("a moved cut", statement("UPDATE audit_chains SET cut_n = 3"), "row 3"),
    ("a changed end", statement("UPDATE audit_chains SET hash = cut_hash"), "row 8"),
    ("a truncated table", statement("DELETE FROM audit"), "rows 3 to 8"),
    ("a removed end of the chain", statement("DELETE FROM audit_chains"), "row 3"),
]  # fmt: skip


@pytest.mark.parametrize(("tamper", "named"), [one[1:] for one in TAMPERINGS], ids=[one[0] for one in TAMPERINGS])
def test_tampering_is_found_and_the_row_is_named(
    connection: sqlite3.Connection, tamper: Callable[[sqlite3.Connection], object], named: str
) -> None:
    tamper(connection)
    found = list(stored_audit.verify(SqliteState(connection)))
    assert found, "the tampering was not found"
    assert f"audit {named} of lane" in found[0], found
    assert found[0] in check(SqliteState(connection), None, lambda done, total: None).findings


def test_a_rewritten_end_is_found_by_a_stored_head_only(connection: sqlite3.Connection) -> None:
    """A writer that computes every later hash again, and the end of the chain, leaves no trace in the database."""
    heads = [chain.head for chain in stored_audit.chains(SqliteState(connection))]
    connection.execute("UPDATE audit SET principal = 'another' WHERE n = 5")
    for n in range(5, ROWS + 1):
        recompute(connection, n)
    connection.execute("UPDATE audit_chains SET hash = (SELECT hash FROM audit WHERE n = ?)", (ROWS,))
    assert list(stored_audit.verify(SqliteState(connection))) == []
    (found,) = stored_audit.verify(SqliteState(connection), heads)
    assert f"audit row {ROWS} of lane 1" in found


def test_an_older_copy_of_the_database_is_found_by_a_stored_head(tmp_path: Path) -> None:
    place, copy = tmp_path / "state.db", tmp_path / "copy.db"
    with Running(place) as run:
        run.write(audit=ages(3, 2))
    shutil.copy(place, copy)
    with Running(place) as run:
        run.write(audit=ages(1))
        heads = [chain.head for chain in run.queries.audit_chains()]
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        (found,) = stored_audit.verify(SqliteState(connection), heads)
    assert "audit row 3 of lane 1" in found
    assert "older copy" in found


def test_a_head_from_before_the_cut_is_no_fault_and_one_at_the_cut_is_compared(connection: sqlite3.Connection) -> None:
    assert list(stored_audit.verify(SqliteState(connection), [AuditHead(1, 1, "0" * 64)])) == []
    (chain,) = stored_audit.chains(SqliteState(connection))
    assert list(stored_audit.verify(SqliteState(connection), [AuditHead(1, 2, chain.cut_hash)])) == []
    (found,) = stored_audit.verify(SqliteState(connection), [AuditHead(1, 2, "0" * 64)])
    assert "audit row 2 of lane 1" in found


def test_the_hash_can_be_computed_with_the_documented_form_alone(connection: sqlite3.Connection) -> None:
    import hashlib

    before, row = stored(connection, 4), stored(connection, 5)
    columns = {name: value for name, value in row._asdict().items() if name != "hash"}
    text = json.dumps(columns, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(bytes.fromhex(before.hash) + text.encode()).hexdigest() == row.hash
