"""A: each effect of an operator has one row of the audit, in its transaction, and the chain is complete."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from stepwire_broker.core.model.commit_group import AuditNew
from stepwire_broker.store.audit_chain import faults
from stepwire_broker.store.lane import Rows

from tests.memory_store.queries import MemoryQueries

from .books import Books, json

ACTIONS: Final = {"cancel_asked": "cancel_task", "paused": "pause_task", "resumed": "resume_task"}  # by fact
OF_TASKS: Final = frozenset({*ACTIONS.values(), "retry_task", "resolve_step"})

Effect = tuple[int, str]  # the task and the action


def check_transaction(books: Books, parts: Sequence[Rows], audit: Sequence[AuditNew]) -> None:
    """Compare the facts of operators in one transaction with its rows of the audit."""
    effects: Counter[Effect] = Counter()
    for rows in parts:
        for row in rows.history:
            for fact in json(row.facts):
                action = _action_of(fact)
                if action is not None:
                    effects[row.task_id, action] += 1
    recorded = Counter(
        (int(row.part[1]), row.action)
        for row in audit
        if row.action in OF_TASKS and row.outcome == "done" and row.part is not None
    )
    for row in audit:
        if row.action in OF_TASKS:
            key = (row.request_id, row.action, row.target)
            if key in books.carried_out:
                books.fail("L5 a command is carried out once", f"{row}")
            books.carried_out.add(key)
    if effects != recorded:
        books.fail("A an effect and its audit row are one", f"effects {dict(effects)}, rows {dict(recorded)}")
    books.audit_rows += len(audit)


def _action_of(fact: list[object]) -> str | None:
    if fact[0] == "operated":
        return "retry_task" if fact[2] == "retry" else "resolve_step"
    return ACTIONS.get(str(fact[0]))


def check_chain(books: Books) -> None:
    """At the end: the rows that were committed, and no others, are in the chain without a gap."""
    tables = books.world.tables
    chains = MemoryQueries(tables).audit_chains()
    for fault in faults(chains, sorted(tables.audit, key=lambda row: (row.lane, row.n))):
        books.fail("A the chain of the audit is complete", fault)
    if len(tables.audit) != books.audit_rows:
        text = f"{books.audit_rows} rows were committed, {len(tables.audit)} are stored"
        books.fail("A the chain of the audit is complete", text)
