"""What the session orders its shell to do. Plain tuples: a simulation carries them out as well as real sockets do."""

from typing import Literal, NamedTuple, TypeAlias

from stepwire_protocol.messages import Item, StepRequest

RunEnd: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded", "lease_lost", "shutdown"]
LogLevel: TypeAlias = Literal["info", "warning", "error"]


class Link(NamedTuple):
    """One broker's pair of endpoints."""

    steps: str
    results: str


class Lease:
    """Until when steps of one broker may be started. Written by the session, read by whoever is about to start one."""

    __slots__ = ("until_ms",)

    def __init__(self) -> None:
        self.until_ms = 0.0


class Send(NamedTuple):
    topic: bytes
    body: bytes


class Run(NamedTuple):
    """Start this step now, unless `lease` has run out by then: in that case give it back, it must not start."""

    item: Item
    step: StepRequest
    offer: int  # which of the config's offers takes it
    started_ms: float
    timeout_at_ms: float  # infinite when the step has no time-out
    lease: Lease


class CancelRun(NamedTuple):
    """Ask a running step to stop. `lease_lost` is for its information only: nothing may be interrupted by force."""

    item: Item
    reason: RunEnd


class Connect(NamedTuple):
    """A broker told of another one."""

    link: Link


class Rebuild(NamedTuple):
    """Nothing was heard through this pair for too long: disconnect and connect it again."""

    link: Link


class Quit(NamedTuple):
    """Drained: nothing is held any more."""


class Log(NamedTuple):
    """A fact worth a line."""

    level: LogLevel
    event: str
    facts: dict[str, object]


Action: TypeAlias = Send | Run | CancelRun | Connect | Rebuild | Quit | Log
