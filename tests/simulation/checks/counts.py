"""P9: every count of the core is right, and nothing is left in memory when everything has ended."""

from typing import Final

from tests.simulation import recount
from tests.simulation.broker_node import BrokerNode

from .books import Books

COUNTERS: Final = (
    "lease_expiries",
    "level0_expiries",
    "redelivered",
    "late_results",
    "deaths_proven",
    "sessions_opened",
)


def check_recount(books: Books, broker: BrokerNode) -> None:
    try:
        recount.check(broker.state)
    except AssertionError as error:
        books.fail("P9 counts equal a recount", f"{error}")


def add_counters(books: Books, broker: BrokerNode) -> None:
    """Keep the counters of a broker that ends."""
    counters = broker.state.counters
    for name in COUNTERS:
        books.numbers[name] += getattr(counters, name)


def fail_unsettled(books: Books) -> None:
    """Every task has ended, but a broker or a worker still holds something."""
    busy = {w.id: w.session.holding(w.now()) for w in books.world.workers if w.is_alive and not w.session.is_idle}
    books.fail(
        "P9 nothing is left at the end", f"{', '.join(map(_left_at, books.world.brokers))}, held by workers {busy}"
    )


def _left_at(broker: BrokerNode) -> str:
    state = broker.state
    lanes = [(lane.is_idle, lane.is_open) for lane in state.outbox.lanes.values()]
    return f"tasks {list(state.tasks)}, sends held {len(state.outbox)}, lanes {lanes}, loads {state.loads}"


def check_released(books: Books, broker: BrokerNode) -> None:
    state = broker.state
    left = {
        "open_steps": state.open_steps,
        "open_by_namespace": len(state.open_by_namespace),
        "resident_bytes": state.resident_bytes,
        "steps": len(state.steps),
        "unloaded": state.unloaded,
        "reserved_tasks": state.reserved_tasks,
        "undecided": len(state.undecided),
        "recovered": len(state.recovered),
        "handouts": len(state.level0.handouts),
        "probes": len(state.guards.probes),
        "large": len(state.large),
        "large_contexts": len(state.large_contexts),
        "fetching": len(state.fetching),
        "bytes_waiting": state.outbox.bytes_waiting,
    }
    left = {name: value for name, value in left.items() if value}
    if left:
        books.fail("P9 memory is released", f"{left}")
