"""A session: what this broker and one worker process agreed, and what of it is under way.

The broker's side of the lease ends 3 % after the worker's (the worker counts from its send, we from our receipt), so
when a session is dead here, its worker has started nothing of it for a while.
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from stepwire_protocol import limits, patterns, topics
from stepwire_protocol.messages import Hello

from .figures import Figures
from .task import Step

NAME_MAX: Final = 48  # of a worker's id, before its digits
BUS: Final = "bus"  # the executor of every worker that comes over the bus
LOCAL: Final = "local"  # of handlers in the broker's own process
POLL: Final = "poll"  # of workers that lease steps over HTTP


def own_worker(executor: str, broker: str, epoch: int, number: int) -> str:
    """The id of a worker inside the broker's process. It tells the epoch, so that the next one knows it for dead."""
    return f"{executor[: NAME_MAX - 1 - len(broker)]}.{broker}:{epoch:012x}{number:04x}"


def died_with(worker: str, broker: str, epoch: int) -> bool:
    """Was this a worker inside an earlier process of this broker? Others have random digits there."""
    name, _, digits = worker.partition(":")
    return name.endswith(f".{broker}") and int(digits[:12], 16) < epoch


class ExecutorState(Struct, weakref=False, eq=False):
    """An executor as the core sees it: sessions that bear its key, whoever stands behind them."""

    key: str
    figures: Figures
    paused_wall: int | None = None  # since when it is handed nothing, if an operator said so


class Batch(Struct, gc=False, weakref=False, eq=False):
    """Steps sent in one message. Sent again, the same bytes, until it is answered or its session is dead."""

    id: str
    session: "WorkerSession"
    steps: list[Step]
    frame: bytes
    released: bool = False  # its commit is done and it was sent
    answered: bool = False
    pause_ms: int = limits.STEPS_RETRANSMIT_MS
    released_mono: int = 0


class WorkerSession(Struct, weakref=False, eq=False):
    worker: str
    k: int
    id: str
    offers: Callable[[str], bool]
    is_shadow_safe: Callable[[str], bool]
    handlers: list[str]
    labels: dict[str, str]
    slots: int
    prefetch: int
    heartbeat_ms: int
    max_message_bytes: int
    lang: str
    sdk: str
    host: str
    pid: int
    pid_started: int
    proof: bool
    since_wall: int
    heard_mono: int
    told_mono: int  # when it last said what it holds
    told_n: int  # and in which message: older ones are late, or came twice
    topic: bytes
    of: ExecutorState
    joins_bus: bool = False  # whatever its executor is
    free: int = 0  # what the worker last said it could take
    free_n: int = -1  # and when, in its own counting
    unanswered: int = 0  # steps sent since, that no accept, refusal or result has answered
    batches: int = 0  # made so far: their numbers rise within the session
    deliveries: dict[int, Step] = {}  # by step id: what it holds, or what is on the way to it
    unanswered_batches: dict[str, Batch] = {}
    unknown: set[str] = set()  # handler classes that it offers and does not know after all
    is_asked: bool = False  # a timer stands to ask it what it holds
    asking: set[int] = set()  # deliveries it was asked about and has not said it holds
    draining: bool = False
    stuck: bool = False  # all it runs is past its time-out: it gets no more
    muted: bool = False  # it lets steps go unanswered: its heartbeats are not acked any more
    suspects: int = 0  # steps in it that may be what kills workers: one at a time
    dead: bool = False
    confirmed: bool = False  # it has spoken in this session: so it knows of it, and goes by its lease
    idle_since_mono: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def executor(self) -> str:
        return self.of.key

    @property
    def credit(self) -> int:
        """How many more steps may be sent now."""
        if self.draining or self.stuck or self.muted or self.dead or self.of.paused_wall is not None:
            return 0
        return self.free - self.unanswered

    @property
    def share(self) -> float:
        """The free share of what it can take: whom the next batch goes to."""
        return (self.free - self.unanswered) / (self.slots + self.prefetch)

    @property
    def has_lease(self) -> bool:
        """Without heartbeats there is no lease: each of its steps needs a grant and has a time of its own."""
        return self.heartbeat_ms > 0


def opened(hello: Hello, k: int, epoch: int, broker: str, of: ExecutorState, mono: int, wall: int) -> WorkerSession:
    return WorkerSession(
        worker=hello.worker,
        k=k,
        id=topics.session_id(epoch, k),
        offers=offer_of(hello.handlers),
        is_shadow_safe=offer_of(hello.shadow_safe),
        handlers=list(hello.handlers),
        labels=dict(hello.labels),
        slots=hello.slots,
        prefetch=hello.prefetch,
        heartbeat_ms=hello.heartbeat_ms,
        max_message_bytes=hello.max_message_bytes,
        lang=hello.lang,
        sdk=hello.sdk,
        host=hello.host,
        pid=hello.pid,
        pid_started=hello.pid_started,
        proof=hello.proof,
        since_wall=wall,
        heard_mono=mono,
        told_mono=mono,
        told_n=-1,
        topic=topics.to_worker(hello.worker),
        of=of,
        free=hello.free.get(broker, 0),
        free_n=hello.n,
        idle_since_mono=mono,
    )


def offer_of(handlers: Iterable[str]) -> Callable[[str], bool]:
    """Does any of these names or patterns match a handler_class?"""
    exact = frozenset(h for h in handlers if "*" not in h)
    globs = [patterns.compile_pattern(h) for h in handlers if "*" in h]

    def offers(handler_class: str) -> bool:
        return handler_class in exact or any(g.matches(handler_class) for g in globs)

    return offers
