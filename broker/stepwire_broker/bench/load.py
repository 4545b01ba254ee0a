"""The workload that all measurements share, and their common types."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from stepwire_broker.errors import BrokerError

Progress: TypeAlias = Callable[[float], object]  # called with the number of newly finished tasks

NAME: Final = "bench"
HANDLER: Final = "bench.echo"
IDLE: Final = "bench_idle"
STEPS: Final = ("validate_order", "reserve_stock", "process_payment", "ship_order")
CONTEXT: Final = {"order_id": 12345, "customer_info": {"name": "x", "email": "y"}}
OUTPUT: Final = {"tracking_number": "1234567890", "carrier": "UPS"}


class Workload(Struct, frozen=True):
    """The settings of a run, printed with its figures. A task is a chain of four steps."""

    rounds: int = 5
    tasks: int = 6_000  # in every round
    window: int = 2_000  # tasks in flight
    submit_tasks: int = 500  # tasks in one submission
    batch_steps: int = 50  # at most, in one message to a worker; not for the default settings
    slots: int = 1_000  # of all workers; not for the default settings
    lone_tasks: int = 200  # run one at a time in every round, for the latency
    echo_window: int = 64  # messages in flight, of batch_steps each


QUICK: Final = Workload(rounds=2, tasks=3_000, lone_tasks=100)


class Setup(Struct, frozen=True):
    """The settings of a product, and its workers. None: the product's default."""

    batch_steps: int | None = None
    slots: int | None = None  # of each worker
    workers: tuple[dict[str, str], ...] = ({},)  # the labels of each
    command: tuple[str, ...] = ()  # a worker in any language that offers `handler`; (): the worker of this package
    handler: str = HANDLER
    is_tcp: bool = False
    has_keys: bool = False  # CURVE; with is_tcp


DEFAULT: Final = Setup(workers=({}, {}))


def tuned(load: Workload, workers: tuple[dict[str, str], ...] = ({},)) -> Setup:
    """The settings of the workload, with its slots divided among the workers."""
    return Setup(load.batch_steps, max(1, load.slots // len(workers)), workers)


class Throughput(NamedTuple):
    steps: int
    seconds: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds


class BenchFailed(BrokerError):
    """A measured program failed, so there are no figures."""


def chain(handler: str = HANDLER) -> dict[str, Any]:
    """The workflow: four steps, each of which depends on the previous one."""
    steps = [
        {"name": step, "handler_class": handler, "depends_on": [before] if before else []}
        for step, before in zip(STEPS, (None, *STEPS), strict=False)
    ]
    return {"name": NAME, "version": "1", "steps": steps}


def idle() -> dict[str, Any]:
    """A workflow with one step, whose handler no worker offers."""
    return {"name": IDLE, "version": "1", "steps": [{"name": "wait", "handler_class": "bench.not_offered"}]}
