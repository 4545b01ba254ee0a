"""Situations that random faults produce too rarely: in some seeds the world makes them common.

Each focus was added because a planted bug needed two rare events to coincide. The rest of such a seed is random.
"""

from typing import Final, NamedTuple

import msgspec
from stepwire_broker.core.definitions.settings import LimitSettings

from . import flows

EVERY: Final = 6  # one seed in this many has a focus; the focuses take turns


class Focus(NamedTuple):
    name: str
    kinds: frozenset[str]  # only these faults
    often: frozenset[str] = frozenset()  # these faults at nearly their highest rate
    plan_factor: int = 1  # multiplies the faults at planned times
    flows: tuple[int, ...] = ()  # workflows to choose from
    max_active_tasks: int | None = None
    resident_payload_bytes: int | None = None
    active_bytes: int | None = None
    leases_ms: tuple[int, ...] | None = None  # the lease of each life of the broker, in turn
    pace_ms: tuple[float, float] | None = None  # the average run time of a handler
    unknown_rate: float = 0.0  # the share of runs that end with an unknown outcome
    has_queues: bool = False  # workers with one slot, which are given more steps than that
    cut_ms: tuple[float, float] | None = None  # the length of a partition, which cuts only messages to the broker
    pause_ms: tuple[float, float] | None = None  # how long the broker is suspended
    database_cut_ms: tuple[float, float] | None = None  # how long a broker is cut off from the database
    cuts_after_start: bool = False  # also soon after each start of the broker
    answer_delay_ms: float | None = None  # messages of the broker take up to this much longer
    refused_rate: float | None = None  # the share of written tasks whose rows the database refuses
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
        "answers so late that the lease they grant is nearly over",
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
        "late results",
        frozenset({"partition"}),
        often=frozenset({"partition"}),
        flows=_flows("at_most_once"),
        pace_ms=(500.0, 1_000.0),
        has_queues=True,
        cut_ms=(8_000.0, 9_500.0),
        tasks=25,
    ),
    Focus(
        "more tasks than memory, and a slow disk",
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
        "a broker suspended for about a lease",
        frozenset({"broker_paused"}),
        often=frozenset({"broker_paused"}),
        plan_factor=2,
        leases_ms=(5_000,),
        pace_ms=(500.0, 2_000.0),
        has_queues=True,
        pause_ms=(4_500.0, 7_000.0),
    ),
    Focus(
        "commands that overtake their steps",
        frozenset({"operator_cancel", "operator_drain", "reorder", "loss", "delay"}),
        often=frozenset({"operator_cancel", "reorder", "loss"}),
        plan_factor=2,
        pace_ms=(300.0, 1_500.0),
        has_queues=True,
    ),
    Focus(
        "new tasks, commands and restarts while the database refuses",
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
        tasks=40,
    ),
)


# Added later, and in other seeds, so that older seeds stay the same.
REFUSED_COMMANDS: Final = Focus(
    "operators decide held steps while the database refuses",
    frozenset({"operator_resolve", "operator_cancel", "data_refused"}),
    often=frozenset({"operator_resolve", "operator_cancel", "data_refused"}),
    plan_factor=3,
    flows=_flows("at_most_once"),
    pace_ms=(100.0, 400.0),
    unknown_rate=0.6,
    refused_rate=0.2,
)
REFUSED_EVERY: Final = 18
REFUSED_PLACE: Final = 13


ROTATED_KEYS: Final = Focus(
    "the brokers' key is rotated, and nothing else happens",
    frozenset({"server_key_rotated"}),
    pace_ms=(100.0, 1_500.0),
)
ROTATED_EVERY: Final = 24
ROTATED_PLACE: Final = 16


MOVED_LANES: Final = Focus(
    "lanes that move all the time, with slow steps in flight",
    frozenset({"lane_moved", "worker_elsewhere", "broker_stopped", "partition", "loss"}),
    often=frozenset({"lane_moved", "worker_elsewhere"}),
    plan_factor=3,
    pace_ms=(500.0, 3_000.0),
    has_queues=True,
    cut_ms=(3_000.0, 14_000.0),
    phase_ms=40_000.0,
    tasks=20,
)
MOVED_EVERY: Final = 10
MOVED_PLACE: Final = 2
CUT_OFF: Final = Focus(
    "a broker returns to the database after a lease, while workers that only it knows have slow steps",
    frozenset({"database_cut", "worker_elsewhere", "beats_stopped"}),
    often=frozenset({"database_cut", "worker_elsewhere"}),
    plan_factor=1,
    pace_ms=(2_000.0, 8_000.0),
    has_queues=True,
    database_cut_ms=(10_500.0, 18_000.0),
    phase_ms=50_000.0,
    tasks=15,
)
CUT_PLACE: Final = 7
OF_SEVERAL: Final = {(MOVED_EVERY, MOVED_PLACE): MOVED_LANES, (MOVED_EVERY, CUT_PLACE): CUT_OFF}


def of(seed: int, brokers: int) -> Focus | None:
    if brokers > 1:
        for (every, place), focus in OF_SEVERAL.items():
            if seed % every == place:
                return focus
    if seed % ROTATED_EVERY == ROTATED_PLACE:
        return ROTATED_KEYS
    if seed % REFUSED_EVERY == REFUSED_PLACE:
        return REFUSED_COMMANDS
    turn, place = divmod(seed, EVERY)
    return FOCUSES[turn % len(FOCUSES)] if place == EVERY - 1 else None
