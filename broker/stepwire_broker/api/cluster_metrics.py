"""The metrics of brokers that share a database and of the lanes that this one owns, from the state of the core."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from stepwire_broker.core.commit.decision import LaneEnding

Gauged: TypeAlias = list[tuple[tuple[str, ...], float]]


class LaneFigures(NamedTuple):
    commits: int  # the number of the last transaction
    open_steps: int
    is_stalled: bool


class ClusterFigures(NamedTuple):
    """The place of this broker among the brokers on its database."""

    lanes: dict[int, LaneFigures]  # that this broker owns
    lane_changes: dict[str, int]  # since its start, by kind
    live_brokers: int
    is_dark: bool
    beat_age_ms: int | None  # None: no other broker can use the database
    orders_sent: int
    orders_answered: int
    notifications_sent: int
    notifications_received: int
    is_listening: bool | None  # None: no other broker can use the database
    loop_busy_s: float  # processor time of the event loop's thread, since the start


ReadCluster: TypeAlias = Callable[[ClusterFigures], Gauged]


class ClusterMetric(NamedTuple):
    name: str
    help: str
    read: ReadCluster
    kind: Literal["gauge", "counter"] = "gauge"
    labels: tuple[str, ...] = ()


CHANGES: Final = ("taken", *get_args(LaneEnding))


CLUSTER_METRICS: Final = (
    ClusterMetric("stepwire_lanes", "Lanes of the database that this broker owns.", lambda c: [((), len(c.lanes))]),
    ClusterMetric(
        "stepwire_lane_transactions_total",
        "Transactions of a lane that this broker owns, since the database was created.",
        lambda c: [((str(number),), lane.commits) for number, lane in c.lanes.items()],
        "counter",
        ("lane",),
    ),
    ClusterMetric(
        "stepwire_lane_open_steps",
        "Steps of a lane that this broker owns that are not final.",
        lambda c: [((str(number),), lane.open_steps) for number, lane in c.lanes.items()],
        labels=("lane",),
    ),
    ClusterMetric(
        "stepwire_lane_stalled",
        "1 while a lane that this broker owns cannot be written.",
        lambda c: [((str(number),), int(lane.is_stalled)) for number, lane in c.lanes.items()],
        labels=("lane",),
    ),
    ClusterMetric(
        "stepwire_lane_changes_total",
        "Lanes that this broker has taken from the database since its start, released to other brokers, lost to them,"
        " or stopped because commits were lost.",
        lambda c: [((change,), c.lane_changes.get(change, 0)) for change in CHANGES],
        "counter",
        ("change",),
    ),
    ClusterMetric(
        "stepwire_brokers_live",
        "Brokers on the database that are not known to be dead, this one included.",
        lambda c: [((), c.live_brokers)],
    ),
    ClusterMetric(
        "stepwire_broker_dark",
        "1 while the broker sends nothing, because its lease in the database may be over.",
        lambda c: [((), int(c.is_dark))],
    ),
    ClusterMetric(
        "stepwire_beat_age_seconds",
        "Time since the last beat of this broker that the database confirmed. Only where several brokers can share it.",
        lambda c: [] if c.beat_age_ms is None else [((), c.beat_age_ms / 1000)],
    ),
    ClusterMetric(
        "stepwire_loop_busy_seconds_total",
        "Processor time of the event loop. A rate above 0.75 means that one more broker would help.",
        lambda c: [((), c.loop_busy_s)],
        "counter",
    ),
    ClusterMetric(
        "stepwire_orders_sent_total",
        "Commands of this broker's clients that were stored for the owner of the task, another broker.",
        lambda c: [((), c.orders_sent)],
        "counter",
    ),
    ClusterMetric(
        "stepwire_orders_answered_total",
        "Commands of other brokers' clients that this broker has answered as the owner of the task.",
        lambda c: [((), c.orders_answered)],
        "counter",
    ),
    ClusterMetric(
        "stepwire_notifications_sent_total",
        "Notifications to the other brokers on the database, that they should look at it now.",
        lambda c: [((), c.notifications_sent)],
        "counter",
    ),
    ClusterMetric(
        "stepwire_notifications_received_total",
        "Notifications of other brokers that this broker has received.",
        lambda c: [((), c.notifications_received)],
        "counter",
    ),
    ClusterMetric(
        "stepwire_listening",
        "1 while notifications can be received; otherwise changes of other brokers are found by regular looks. Only "
        "where several brokers can share the database.",
        lambda c: [] if c.is_listening is None else [((), int(c.is_listening))],
    ),
)
