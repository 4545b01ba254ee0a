"""P7 and P8: every task ends. The times of recovery are judged by tests/simulation."""

from tests.checker.database import Case, Database
from tests.checker.story import TASK_FINAL
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds


def every_acknowledged_task_ends(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Judged only if every task has had the time that it needs."""
    task = case.task
    if task.id in seen.keys_of and task.state not in TASK_FINAL and task.attention is None:
        states = ", ".join(f"{row.name} {row.state} {row.reason or ''}".rstrip() for row in case.steps)
        yield Finding(None, f"it is still {task.state}: {states}")
