"""Q: no submission takes a namespace over its quota, and none is refused below it."""

from collections import Counter
from typing import Any

from stepwire_broker.core.model.states import STEP_FINAL
from stepwire_broker.core.state import BrokerState

from tests.simulation.broker_node import BrokerNode

from .books import FINAL, Books


def check_decision(books: Books, expected: str | None, *, is_refused: bool, is_accepted: bool) -> None:
    """`expected`: the quota that the submission exceeds. A submission may also be refused for another reason."""
    if is_accepted and expected is not None:
        books.fail("Q no submission exceeds a quota", f"a submission over {expected} was accepted")
    if is_refused and expected is None:
        books.fail("Q no submission is refused below its quota", "a submission within all quotas was refused")


def check_own_steps(books: Books, broker: BrokerNode, steps: int, most: int | None) -> None:
    """A broker among others has accepted a submission: with it, the open steps of its own lanes fit."""
    if most is not None and steps > most:
        text = f"{steps} open steps in the lanes of {broker.id}, and {most} are allowed"
        books.fail("Q no submission exceeds a quota", text)


def open_steps(state: BrokerState, tables: Any) -> Counter[str]:
    """Count the open steps of each namespace: in memory, in submissions under way, and in the rows of the rest."""
    counts: Counter[str] = Counter()
    elsewhere = set(state.rejected)  # refused rows, which count again when their task is loaded
    for task in state.tasks.values():
        counts[task.namespace] += sum(step.state not in STEP_FINAL for step in task.steps)
        elsewhere.add(task.id)
    for undecided in state.undecided.values():
        if not undecided.admitted:
            for task in undecided.tasks:
                counts[task.namespace] += len(task.steps)
        for stored in undecided.stored_only:
            counts[stored.namespace] += stored.steps
        elsewhere.update(undecided.ids)
    for row in tables.open_tasks:
        if row.id not in elsewhere and row.lane in state.outbox.lanes:
            counts[row.namespace] += sum(step.state not in FINAL for step in tables.stored_steps(row.id))
    return +counts


def _owns_its_lanes(books: Books, broker: BrokerNode) -> bool:
    """False for a broker that does not know yet that another one writes one of its lanes."""
    rows = books.world.tables.lanes
    return all(rows[lane.number].epoch == lane.epoch for lane in broker.state.lanes.values())


def check_open_steps(books: Books, broker: BrokerNode) -> None:
    """The counts of a broker that builds no large submission at the moment: the rest of one cannot be counted."""
    if not broker.is_alive or broker.state.building or not _owns_its_lanes(books, broker):
        return
    counted, true = broker.state.open_by_namespace, dict(open_steps(broker.state, books.world.tables))
    if counted != true:
        books.fail("Q open steps are counted by namespace", f"{counted}, in truth {true}")
