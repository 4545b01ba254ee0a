"""Only store/sqlite knows SQLite and only store/postgres knows PostgreSQL: an adapter is a folder."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import stepwire_broker

ROOT = Path(stepwire_broker.__file__).parent
ADAPTER = ROOT / "store" / "sqlite"

# What operates on the database file itself, or measures SQLite.
MAY_IMPORT_THE_ADAPTER = {"store/store.py", "cli/db.py", "cli/doctor.py", "bench/product.py"}
MAY_IMPORT_THE_ADAPTER |= {"cli/db_access.py", "cli/doctor_audit.py", "erasures.py"}
MAY_IMPORT_THE_ADAPTER |= {"store/postgres/copying.py"}  # reads the file that it copies
MAY_IMPORT_THE_DRIVER = {"cli/db.py", "cli/doctor.py", "cli/bench.py", "cli/version.py", "bench/bare.py"}
MAY_IMPORT_THE_DRIVER |= {"cli/doctor_audit.py", "cli/db_access.py", "store/postgres/copying.py"}


def outside() -> Iterator[tuple[str, str]]:
    """The name and the text of every product file outside the adapter."""
    for path in sorted(ROOT.rglob("*.py")):
        if ADAPTER not in path.parents:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def imports(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_the_driver_is_imported_by_its_adapter_and_by_tools_of_the_command_line_only() -> None:
    assert {name for name, text in outside() if "sqlite3" in imports(text)} == MAY_IMPORT_THE_DRIVER


def test_the_adapter_is_imported_where_it_is_chosen_and_by_tools_of_the_command_line_only() -> None:
    users = {
        name
        for name, text in outside()
        if any(re.search(r"^(stepwire_broker\.)?(store\.)?sqlite(\.|$)|store\.sqlite", one) for one in imports(text))
    }
    assert users == MAY_IMPORT_THE_ADAPTER


def test_the_driver_of_postgresql_is_imported_by_its_adapter_only() -> None:
    users = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if "psycopg" in imports(path.read_text())}
    assert users
    assert all(user.startswith("store/postgres/") for user in users - {"cli/version.py"})


def test_sql_of_sqlite_is_written_in_its_adapter_only() -> None:
    words = re.compile(r"json_each|json_group_array|json_array\(|CAST\(\w+ AS BLOB\)|PRAGMA")
    assert {name for name, text in outside() if words.search(text)} <= {"bench/bare.py"}


def test_no_statement_has_numbered_parameters() -> None:
    """From Python 3.14 on, sqlite3 refuses a sequence of values for `?1`."""
    statements = {path.name: path.read_text() for path in (ROOT / "store").rglob("*.py")}
    assert len(statements) > 10
    assert [name for name, text in statements.items() if re.search(r"\?\d", text)] == []
