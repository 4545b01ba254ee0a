"""The actions that a session returns. Its caller performs them: a worker with sockets, or a simulation."""

from typing import Final, Literal, NamedTuple, TypeAlias

from stepwire_protocol.messages import Item, Result, StepRequest

RunEnd: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded", "lease_lost", "shutdown"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

NEVER: Final = float("inf")


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


class Run:
    """Run this step as soon as a slot is free. If `begin` returns False, report that the step is given back.

    The session and a runner share this object. The runner begins the run; until then, the session may take it back.
    Each writes its own decision before it reads the other's, so a run that was taken back never begins.
    """

    __slots__ = (
        "deadline_ms",
        "is_taken_back",
        "item",
        "lease",
        "may_need_opening",
        "offer",
        "started_ms",
        "step",
        "timeout_at_ms",
        "timeout_ms",
    )

    def __init__(
        self,
        item: Item,
        step: StepRequest,
        offer: int,
        lease: Lease,
        timeout_ms: float = NEVER,
        deadline_ms: float = NEVER,
        may_need_opening: bool = True,
    ) -> None:
        self.item = item
        self.step = step
        self.offer = offer  # the number of the offer that handles the step
        self.lease = lease
        self.timeout_ms = timeout_ms
        self.deadline_ms = deadline_ms  # the time at which the run must end, whenever it begins
        self.may_need_opening = may_need_opening  # False: certainly no secrets, and not sealed
        self.is_taken_back = False
        self.started_ms: float | None = None  # set by the runner
        self.timeout_at_ms = NEVER  # set by the runner; the earlier of timeout and deadline

    def begin(self, now_ms: float) -> bool:
        """Called by the runner when it has a slot: may the handler be called? Not after the end of the lease."""
        self.started_ms = now_ms
        if self.is_taken_back or now_ms >= self.lease.until_ms:
            self.started_ms = None
            return False
        timeout_at_ms = now_ms + self.timeout_ms
        self.timeout_at_ms = timeout_at_ms if timeout_at_ms < self.deadline_ms else self.deadline_ms
        return True

    def take_back(self) -> bool:
        """Called by the session: True if the run has not begun, and therefore never will."""
        self.is_taken_back = True
        return self.started_ms is None


class CancelRun(NamedTuple):
    """Ask a run that has begun to stop. `lease_lost` only informs the handler: the run continues."""

    item: Item
    reason: RunEnd


class Connect(NamedTuple):
    """Connect to a broker that another broker has listed. `server_key`: its CURVE key; None: the configured one."""

    link: Link
    server_key: str | None = None


class Disconnect(NamedTuple):
    """Disconnect from a broker that is no longer listed."""

    link: Link


class Rebuild(NamedTuple):
    """Disconnect this pair of endpoints and connect it again, because the pair was silent for too long."""

    link: Link


class Quit(NamedTuple):
    """End the worker, which has drained and holds nothing."""


class ResultTooLarge(NamedTuple):
    """Log that a run has failed, because no message can carry its output. `result` is the failure that was sent."""

    step: StepRequest
    result: Result


class Log(NamedTuple):
    """Log this event with its facts."""

    level: LogLevel
    event: str
    facts: dict[str, object]


Action: TypeAlias = Send | Run | CancelRun | Connect | Disconnect | Rebuild | Quit | ResultTooLarge | Log
