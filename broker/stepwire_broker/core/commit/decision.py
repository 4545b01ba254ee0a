"""The actions that the core decides on, to be taken at once. Writes are not included: they wait in the outbox."""

from typing import Literal, TypeAlias

from msgspec import Struct
from stepwire_protocol.messages import BrokerMessage, Result

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.core.membership.members import Conclusion
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.events import Command
from stepwire_broker.core.model.level0_peer import Handout
from stepwire_broker.core.model.live import StepBatch, StepProgress


class ToWorker(Struct, frozen=True, gc=False):
    """A message on a worker's inbox."""

    topic: bytes
    message: BrokerMessage


class ToRequest(Struct, frozen=True):
    """The answer to a command."""

    request: int
    answer: Answer


class LoadPage(Struct, frozen=True):
    """Read at most `limit` open tasks of these lanes that are in no broker's memory: the tasks that the lane's former
    owner had in memory, unless all were read, then those that are due or wait for one of `wants` (offered by a
    worker)."""

    request: int
    limit: int
    wants: list[str]
    lanes: dict[int, LeftBehind | None]


class LoadById(Struct, frozen=True):
    request: int
    task_ids: list[int]


class LoadBySteps(Struct, frozen=True):
    """Read the open tasks of these steps; with `any_state`, also tasks that have ended."""

    request: int
    step_ids: list[int]
    any_state: bool = False


class FetchPayloads(Struct, frozen=True):
    request: int
    task_ids: list[int]
    step_ids: list[int]


class LookAround(Struct, frozen=True):
    """Read the open orders of these lanes, and the highest revision of `controls`."""

    request: int
    lanes: tuple[int, ...]


class ReadCatalogue(Struct, frozen=True):
    """Read controls, blocks of ids, the active versions of workflows, and the workflows that are not known."""

    request: int
    known: frozenset[int]


Read: TypeAlias = LoadPage | LoadById | LoadBySteps | FetchPayloads | LookAround | ReadCatalogue


class OrderToStore(Struct, frozen=True):
    """Store this command for the owner of the lane, and answer the request with the owner's answer."""

    request: int
    lane: int
    command: Command


class ResultsElsewhere(Struct, frozen=True):
    """Pass these results of a message on to the owners of their steps, then acknowledge the message."""

    worker: str
    rid: int
    batch_id: str
    results: tuple[Result, ...]


class WaitElsewhere(Struct, frozen=True):
    """Answer the request when the task ends or needs an operator. Another broker owns the task, so its rows tell."""

    request: int
    task_id: int


class WatchProcess(Struct, frozen=True):
    """Check every 250 ms, for 5 s, whether this process of the broker's host has ended. `heard_ms_ago`: its worker sent
    a message at that time, so a process that started earlier and has the pid now is the worker."""

    worker: str
    pid: int
    pid_started: int
    heard_ms_ago: int = 0


class BreakerChanged(Struct, frozen=True):
    """A handler's breaker has changed its state. The change is logged."""

    handler_class: str
    state: str
    is_forced: bool
    cause: str  # of the last opening: how many calls failed
    reason: str  # the last failure, or the operator's reason
    left_ms: int | None  # while it is open: the time until the next trial


class Complaint(Struct, frozen=True):
    """A fault in a message, which is logged. `worker`: its sender, which is also answered; "" if its id cannot be read;
    None for a level-0 handler."""

    code: str
    text: str
    worker: str | None = None
    kind: str | None = None  # the type of the message
    principal: str | None = None  # who sent it, where that matters


class WorkerDied(Struct, frozen=True):
    """The process of this worker has ended, so its session has ended before its lease. This is logged."""

    worker: str
    pid: int


class WorkerFlaps(Struct, frozen=True):
    """The broker has reset this worker's sessions `resets` times within `within_ms`. This is logged."""

    worker: str
    code: str  # of the last reset
    resets: int
    within_ms: int


class OffersLeftOut(Struct, frozen=True):
    """A worker offers handlers that are not recorded as offered, because the limit is reached. This is logged."""

    worker: str
    handlers: int


LaneEnding: TypeAlias = Literal["lost", "commits_lost", "released"]


class LaneGone(Struct, frozen=True):
    """The broker has removed a lane from memory: the broker writes and sends nothing more of it. This is logged."""

    lane: int
    cause: LaneEnding
    text: str
    tasks: int  # that were in memory
    sessions: int  # that ended, because they held deliveries of the lane


class LaneReleasable(Struct, frozen=True):
    """The broker may give up this lane now: nothing of it is left to write or to send."""

    lane: int
    epoch: int  # of the lane
    to: str | None  # the broker that is to own it; None: any


class Decision(Struct):
    """Actions to take at once, in this order."""

    grants: list[str] = []  # to the level-0 peer that subscribes in this turn: its `to`
    batches: list[StepBatch] = []
    handouts: list[Handout] = []
    sends: list[ToWorker] = []
    answers: list[ToRequest] = []
    reads: list[Read] = []
    orders: list[OrderToStore] = []
    waits: list[WaitElsewhere] = []
    results_elsewhere: list[ResultsElsewhere] = []
    watches: list[WatchProcess] = []
    breaker_changes: list[BreakerChanged] = []
    complaints: list[Complaint] = []
    worker_news: list[WorkerDied | WorkerFlaps] = []
    progress: list[StepProgress] = []
    offers_left_out: list[OffersLeftOut] = []
    lanes_gone: list[LaneGone] = []
    conclusions: list[Conclusion] = []  # from beats
    released: list[LaneReleasable] = []
    notifications: list[Notification] = []  # for the other brokers

    @property
    def is_empty(self) -> bool:
        return not (
            self.batches
            or self.sends
            or self.answers
            or self.reads
            or self.orders
            or self.waits
            or self.results_elsewhere
            or self.watches
            or self.handouts
            or self.grants
            or self.breaker_changes
            or self.complaints
            or self.worker_news
            or self.progress
            or self.offers_left_out
            or self.lanes_gone
            or self.conclusions
            or self.released
            or self.notifications
        )
