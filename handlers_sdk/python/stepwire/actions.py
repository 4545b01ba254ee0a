"""The actions that a session returns. Its caller performs them: a worker with sockets, or a simulation."""

from typing import Literal, NamedTuple, TypeAlias

from stepwire_protocol.messages import Item, StepRequest

RunEnd: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded", "lease_lost", "shutdown"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class Link(NamedTuple):
    """One broker's pair of endpoints."""

    steps: str
    results: str


class Lease:
    """The time until which steps of one broker may start. The session sets it; runners read it before each start."""

    __slots__ = ("until_ms",)

    def __init__(self) -> None:
        self.until_ms = 0.0


class Send(NamedTuple):
    """Send this frame: the topic, then the body."""

    topic: bytes
    body: bytes


class Run(NamedTuple):
    """Start this step now. If `lease` is over at the start, the step must not start, and is given back."""

    item: Item
    step: StepRequest
    offer: int  # the number of the offer that handles the step
    started_ms: float
    timeout_at_ms: float  # infinite when the step has no timeout
    lease: Lease


class CancelRun(NamedTuple):
    """Ask a running step to stop. `lease_lost` only informs the handler: the run continues."""

    item: Item
    reason: RunEnd


class Connect(NamedTuple):
    """Connect to a broker that another broker has listed."""

    link: Link


class Rebuild(NamedTuple):
    """Disconnect this pair of endpoints and connect it again, because the pair was silent for too long."""

    link: Link


class Quit(NamedTuple):
    """End the worker, which has drained and holds nothing."""


class Log(NamedTuple):
    """Log this event with its facts."""

    level: LogLevel
    event: str
    facts: dict[str, object]


Action: TypeAlias = Send | Run | CancelRun | Connect | Rebuild | Quit | Log
