"""Bugs of the audit: an operator's effect without its row in the same transaction."""

from typing import Any, Final

from stepwire_broker.core import state
from stepwire_broker.core.commit import outbox
from stepwire_broker.store import audit_chain

from tests.memory_store import writer

from .plant import Bug, Plant


def _row_missing(plant: Plant) -> None:
    def audit(original: Any, self: Any, command: Any, action: str, *args: Any, **kwargs: Any) -> None:
        if action != "retry_task":
            original(self, command, action, *args, **kwargs)

    plant.method(state.BrokerState, "audit", audit)


def _row_outside(plant: Plant) -> None:
    """The rows of a group are written with the next group."""
    moved: set[int] = set()

    def close(original: Any, self: Any, number: int, now: Any) -> Any:
        group = original(self, number, now)
        if group is not None:
            late = [row for row in group.audit if id(row) not in moved]
            group.audit = [row for row in group.audit if id(row) in moved]
            moved.update(map(id, late))
            self.lanes[number].audit = [*late, *self.lanes[number].audit]
        return group

    plant.method(outbox.Outbox, "close", close)


def _not_linked(plant: Plant) -> None:
    """Every row is linked to the first row of the chain's last group."""

    def linked(original: Any, end: Any, new: Any) -> Any:
        rows = original(end, new)
        return [original(end, [one])[0]._replace(n=row.n) for one, row in zip(new, rows, strict=True)]

    plant.value(writer, "linked", lambda end, new: linked(audit_chain.linked, end, new))


def _withdrawn_recorded(plant: Plant) -> None:
    """The rows of a task are withdrawn because the database refused earlier ones. The audit of its commands stays."""

    def withdraw(original: Any, self: outbox.Outbox, task: Any) -> None:
        audit = self.lanes[task.lane].audit
        original(self, task)
        self.lanes[task.lane].audit = audit

    plant.method(outbox.Outbox, "withdraw", withdraw)


BUGS: Final = (
    Bug("audit: the row of a retry is missing", _row_missing),
    Bug("audit: the row is in a later transaction than its effect", _row_outside),
    Bug("audit: rows of one group are not linked to each other", _not_linked),
    Bug("audit: a withdrawn command leaves its row", _withdrawn_recorded, True),
)
