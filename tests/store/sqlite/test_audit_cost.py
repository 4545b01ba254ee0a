"""The audit costs a group without an operator's command nothing in the database."""

from pathlib import Path

from stepwire_broker.store.ports import LANE
from stepwire_broker.store.sqlite.writer import SqliteWriter

from tests.store.conformance.test_audit import audit_new
from tests.store.running import Running
from tests.store.stored_rows import completed, dispatched, submission


def test_a_group_of_steps_runs_no_statement_on_the_tables_of_the_audit(tmp_path: Path) -> None:
    with Running(tmp_path / "state.db") as run:
        writer = run.store._database.writers[LANE]
        assert isinstance(writer, SqliteWriter)
        statements: list[str] = []
        writer.connection.set_trace_callback(statements.append)
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        run.write(steps_dispatched=[dispatched(11)])
        run.write(steps_completed=[completed(11)])
        assert any("UPDATE steps" in text for text in statements)
        assert not any("audit" in text for text in statements)
        run.write(audit=[audit_new()])
        assert sum("audit" in text for text in statements) == 3, "the end, the rows, and the new end"
