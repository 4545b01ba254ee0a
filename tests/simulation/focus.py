"""Situations that faults drawn blindly make too seldom: in a part of the seeds the world makes them common.

Each was written because a planted bug needed it: what two things must meet, and how the world makes them meet. The rest
of such a seed is drawn as ever.
"""

from typing import Final, NamedTuple

import msgspec
from stepwire_broker.core.definitions.settings import LimitSettings

from . import flows

EVERY: Final = 6  # one seed of so many, by turns


class Focus(NamedTuple):
    name: str
    kinds: frozenset[str]  # only these faults
    often: frozenset[str] = frozenset()  # these at nearly their highest rate
    plan_factor: int = 1  # so many times the faults that come at a planned time
    flows: tuple[int, ...] = ()  # workflows to choose from
    max_active_tasks: int | None = None
    resident_payload_bytes: int | None = None
    active_bytes: int | None = None
    leases_ms: tuple[int, ...] | None = None  # of the broker's lives, by turns
    pace_ms: tuple[float, float] | None = None  # what a handler takes on average
    unknown_rate: float = 0.0  # of runs of which the handler itself does not know the outcome
    has_queues: bool = False  # workers with one slot, and more than that given to them
    cut_ms: tuple[float, float] | None = None  # partitions so long, and only of what a worker says
    pause_ms: tuple[float, float] | None = None  # the broker stands still so long
    cuts_after_start: bool = False  # also soon after each start of the broker
    answer_delay_ms: float | None = None  # what the broker says takes up to that much longer
    phase_ms: float = 30_000.0
    tasks: int = 15

    def limits(self, drawn: LimitSettings) -> LimitSettings:
        return msgspec.structs.replace(
            drawn,
            max_active_tasks=self.max_active_tasks or drawn.max_active_tasks,
            resident_payload_bytes=self.resident_payload_bytes or drawn.resident_payload_bytes,
            active_bytes=self.active_bytes or drawn.active_bytes,
        )


def _flows(wanted: str) -> tuple[int, ...]:
    return tuple(i for i in range(flows.COUNT) if any(_fits(wanted, step) for step in flows.workflow(i).steps))


def _fits(wanted: str, step: object) -> bool:
    match wanted:
        case "rule":
            return step.trigger_rule is not None  # type: ignore[attr-defined,no-any-return]
        case _:
            return step.delivery_mode == "at_most_once" and step.timeout_ms <= 3_000  # type: ignore[attr-defined,no-any-return]


FOCUSES: Final = (
    Focus(
        "answers so late that the lease they give is nearly over",
        frozenset({"partition", "delay"}),
        often=frozenset({"partition", "delay"}),
        leases_ms=(5_000,),
        pace_ms=(700.0, 1_700.0),
        has_queues=True,
        cut_ms=(5_500.0, 8_000.0),
        answer_delay_ms=1_500.0,
    ),
    Focus(
        "a lease that is shorter after a restart",
        frozenset({"partition", "broker_killed"}),
        leases_ms=(20_000, 5_000),
        pace_ms=(1_500.0, 3_000.0),
        has_queues=True,
        cut_ms=(6_000.0, 12_000.0),
        cuts_after_start=True,
        phase_ms=45_000.0,
    ),
    Focus(
        "results that are late",
        frozenset({"partition"}),
        often=frozenset({"partition"}),
        flows=_flows("at_most_once"),
        pace_ms=(500.0, 1_000.0),
        has_queues=True,
        cut_ms=(8_000.0, 9_500.0),
        tasks=25,
    ),
    Focus(
        "more tasks than room, and a slow disk",
        frozenset({"slow_read", "operator_cancel", "operator_retry", "operator_retry_from"}),
        often=frozenset({"slow_read"}),
        plan_factor=3,
        flows=_flows("rule"),
        max_active_tasks=2,
        resident_payload_bytes=40,
        tasks=20,
    ),
    Focus(
        "clocks that are set while steps wait",
        frozenset({"wall_jump", "slow_commit"}),
        often=frozenset({"wall_jump"}),
        plan_factor=6,
        leases_ms=(5_000,),
        pace_ms=(2_000.0, 4_000.0),
        has_queues=True,
    ),
    Focus(
        "a broker that stands still for about a lease",
        frozenset({"broker_paused"}),
        often=frozenset({"broker_paused"}),
        plan_factor=2,
        leases_ms=(5_000,),
        pace_ms=(500.0, 2_000.0),
        has_queues=True,
        pause_ms=(4_500.0, 7_000.0),
    ),
    Focus(
        "orders that overtake what they are about",
        frozenset({"operator_cancel", "operator_drain", "reorder", "loss", "delay"}),
        often=frozenset({"operator_cancel", "reorder", "loss"}),
        plan_factor=2,
        pace_ms=(300.0, 1_500.0),
        has_queues=True,
    ),
    Focus(
        "new tasks, orders and restarts while the database refuses",
        frozenset({"operator_retry_from", "operator_cancel", "broker_killed", "data_refused", "slow_commit"}),
        often=frozenset({"operator_retry_from", "broker_killed", "data_refused", "slow_commit"}),
        plan_factor=2,
        pace_ms=(500.0, 1_500.0),
        phase_ms=20_000.0,
    ),
    Focus(
        "held tasks that fill the memory, and restarts",
        frozenset({"broker_killed"}),
        often=frozenset({"broker_killed"}),
        flows=_flows("at_most_once"),
        resident_payload_bytes=16 * 1024,
        active_bytes=100,
        pace_ms=(100.0, 400.0),
        unknown_rate=0.6,
        tasks=25,
    ),
)


def of(seed: int) -> Focus | None:
    turn, place = divmod(seed, EVERY)
    return FOCUSES[turn % len(FOCUSES)] if place == EVERY - 1 else None
