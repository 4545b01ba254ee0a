"""The rows of brokers and lanes as one beat of this broker has read them."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

ALL: Final = "*"  # in the place of a namespace: all namespaces together


class RouteLoad(Struct, frozen=True, array_like=True):
    """The steps of one handler that go to the same workers: those of `executor` that have all labels of `selector` and
    lack one of `without`."""

    handler_class: str
    executor: str
    selector: tuple[tuple[str, str], ...] = ()
    without: tuple[tuple[str, str], ...] = ()
    waiting: int = 0  # for a slot, at the broker or at a worker
    running: int = 0
    oldest_ms: int | None = None  # the time at which the oldest waiting step became ready, in UTC


class BrokerRow(Struct, frozen=True, kw_only=True):
    """A broker as it described itself at its last beat."""

    id: str
    epoch: int
    beat: int  # rises at every beat
    lease_ms: int  # without a beat for this time, the broker is dead
    worker_lease_ms: int = 0  # the longest lease that it has given to a worker
    listeners: str = ""  # where workers reach it, as JSON
    http: str | None = None
    version: str = ""  # of the program
    is_draining: bool = False  # it ends, or has ended
    config_digest: str | None = None
    open_steps: Mapping[str, int] = {}  # of its lanes: of ALL, and by namespace with a quota
    workers: int = 0  # sessions and level-0 handlers that are connected to it
    controls_revision: int = 0  # the last change of `controls` that it uses
    backlog: tuple[RouteLoad, ...] = ()  # of the steps in its memory, the largest
    is_gone: bool = False  # its process on this host has ended, as the operating system reports


class Presence(Struct, frozen=True, kw_only=True):
    """How this broker describes itself at a beat."""

    listeners: str = ""
    http: str | None = None
    is_draining: bool = False
    config_digest: str | None = None
    open_steps: Mapping[str, int] = {}
    workers: int = 0
    controls_revision: int = 0
    backlog: tuple[RouteLoad, ...] = ()


class LaneOwner(Struct, frozen=True, array_like=True):
    """A lane and its owner: the id and the epoch of a broker. `epoch` rises at every change of the owner."""

    lane: int
    owner: str | None = None
    owner_epoch: int | None = None
    epoch: int = 0
    is_in_doubt: bool = False  # commits may have been lost since its owner's last group, so no broker takes it


class Beaten(Struct, frozen=True, kw_only=True):
    """An event: a beat of this broker succeeded, and these are the rows that it read.

    Both times are of this process's own clock: before the beat was sent, and after its answer was received.
    """

    sent_mono: int
    received_mono: int
    brokers: tuple[BrokerRow, ...]
    lanes: tuple[LaneOwner, ...]
    offset_ms: int = 0  # the clock of the database minus the clock of this host
    orders: tuple[int, ...] = ()  # own lanes with open orders
    controls_revision: int = 0  # the last change of `controls`
    blocks: tuple[tuple[int, int], ...] = ()  # number and lane of each block of ids that was added since the last beat


class ObservedBroker(Struct, frozen=True):
    """A broker that is dead, as long as its row is still at this epoch and this beat or at a higher epoch."""

    id: str
    epoch: int
    beat: int


class TakeLanes(Struct, frozen=True):
    """Take at most this number of lanes: own ones that this broker does not serve, free ones, and those of dead
    brokers."""

    most: int
    dead: tuple[ObservedBroker, ...] = ()
    served: tuple[int, ...] = ()  # own lanes, which are not taken a second time
    stuck: tuple[int, ...] = ()  # lanes of dead brokers that a transaction still holds: it is ended
