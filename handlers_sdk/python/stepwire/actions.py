"""The actions that a session decides, and its caller carries out: a worker with sockets, or a simulation."""

from typing import Literal, NamedTuple, TypeAlias

from stepwire_protocol.messages import Item, StepRequest

RunEnd: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded", "lease_lost", "shutdown"]
LogLevel: TypeAlias = Literal["info", "warning", "error"]


class Link(NamedTuple):
    """One broker's pair of endpoints."""

    steps: str
    results: str


class Lease:
    """The time until which steps of one broker may start. The session writes it; runners read it before each start."""

    __slots__ = ("until_ms",)

    def __init__(self) -> None:
        self.until_ms = 0.0


class Send(NamedTuple):
    """Send this frame: the topic, then the body."""

    topic: bytes
    body: bytes


class Run(NamedTuple):
    """Start this step now. If `lease` is over by then, the step must not start: give it back."""

    item: Item
    step: StepRequest
    offer: int  # the number of the offer that takes it
    started_ms: float
    timeout_at_ms: float  # infinite when the step has no timeout
    lease: Lease


class CancelRun(NamedTuple):
    """Ask a running step to stop. `lease_lost` only informs it: the run goes on."""

    item: Item
    reason: RunEnd


class Connect(NamedTuple):
    """Connect to a broker that another one has listed."""

    link: Link


class Rebuild(NamedTuple):
    """Disconnect this pair and connect it again: it was silent for too long."""

    link: Link


class Quit(NamedTuple):
    """End the worker: it is drained, and holds nothing."""


class Log(NamedTuple):
    """Log this event with its facts."""

    level: LogLevel
    event: str
    facts: dict[str, object]


Action: TypeAlias = Send | Run | CancelRun | Connect | Rebuild | Quit | Log
