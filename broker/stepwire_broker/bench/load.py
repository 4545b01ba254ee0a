"""The workload that all measurements share, and their common types."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from stepwire_broker.errors import BrokerError

Progress: TypeAlias = Callable[[float], object]  # called with the number of newly finished tasks

NAME: Final = "bench"
HANDLER: Final = "bench.echo"
STEPS: Final = ("validate_order", "reserve_stock", "process_payment", "ship_order")
CONTEXT: Final = {"order_id": 12345, "customer_info": {"name": "x", "email": "y"}}
OUTPUT: Final = {"tracking_number": "1234567890", "carrier": "UPS"}


class Workload(Struct, frozen=True):
    """The settings of a run, printed with its figures. A task is a chain of four steps."""

    rounds: int = 3
    tasks: int = 10_000  # in every round
    window: int = 2_000  # tasks in flight
    submit_tasks: int = 500  # tasks in one submission
    batch_steps: int = 50  # at most, in one message to a worker
    slots: int = 1_000  # of all workers
    lone_tasks: int = 200  # run one at a time in every round, for the latency
    echo_window: int = 64  # messages in flight, of batch_steps each


QUICK: Final = Workload(rounds=2, tasks=4_000, lone_tasks=100)


class Throughput(NamedTuple):
    steps: int
    seconds: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds


class BenchFailed(BrokerError):
    """A measured program failed, so there are no figures."""


def chain() -> dict[str, Any]:
    """The workflow: four steps, each of which depends on the previous one."""
    steps = [
        {"name": step, "handler_class": HANDLER, "depends_on": [before] if before else []}
        for step, before in zip(STEPS, (None, *STEPS), strict=False)
    ]
    return {"name": NAME, "version": "1", "steps": steps}
