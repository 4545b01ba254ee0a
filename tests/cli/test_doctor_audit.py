"""`stepwire doctor` on the audit."""

import sqlite3
from contextlib import closing
from pathlib import Path

from stepwire_broker.cli import doctor_audit
from stepwire_broker.core.definitions.settings import DatabaseSettings, Settings
from stepwire_broker.core.model.commit_group import AuditNew

from tests.store.running import Running


def test_a_changed_row_of_the_audit_is_red(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    settings = Settings(database=DatabaseSettings(url=f"sqlite:///{database}"))
    assert list(doctor_audit.audit(settings)) == []
    row = AuditNew(1, "ci", "token", "cancel_task", "task 1", "", "{}", "done", None)
    with Running(database) as run:
        run.write(audit=[row, row])
    (good,) = doctor_audit.audit(settings)
    assert good.state == "ok"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE audit SET principal = 'another' WHERE n = 1")
    (bad,) = doctor_audit.audit(settings)
    assert bad.state == "red"
    assert "audit row 1 of lane 1" in bad.text
