"""What `handle` decides should happen now. Writes are not in it: they wait in the outbox until the lane takes them."""

from typing import TypeAlias

from msgspec import Struct
from stepwire_protocol.messages import BrokerMessage

from stepwire_broker.core.model.answers import Answer
from stepwire_broker.core.model.level0_peer import Handout
from stepwire_broker.core.model.live import StepBatch


class ToWorker(Struct, frozen=True, gc=False):
    """A message on a worker's inbox."""

    topic: bytes
    message: BrokerMessage


class ToRequest(Struct, frozen=True):
    """The answer to a command."""

    request: int
    answer: Answer


class LoadPage(Struct, frozen=True):
    """Bring up to `limit` open tasks that nobody has in memory: those that are due, those that wait for one of the
    handler classes in `wants` (somebody offers them), and those left behind by an earlier run of this broker."""

    request: int
    limit: int
    wants: list[str]


class LoadById(Struct, frozen=True):
    request: int
    task_ids: list[int]


class LoadBySteps(Struct, frozen=True):
    """Whose are these steps? Bring the tasks that are open; with `any_state`, also those that are over."""

    request: int
    step_ids: list[int]
    any_state: bool = False


class FetchPayloads(Struct, frozen=True):
    request: int
    task_ids: list[int]
    step_ids: list[int]


Read: TypeAlias = LoadPage | LoadById | LoadBySteps | FetchPayloads


class WatchProcess(Struct, frozen=True):
    """Look whether this process on our own host is gone, every 250 ms for 5 s."""

    worker: str
    pid: int
    pid_started: int


class BreakerChanged(Struct, frozen=True):
    """A handler's breaker has changed its state: something for whoever keeps the log."""

    handler_class: str
    state: str
    is_forced: bool
    cause: str  # of its last opening: how much failed
    reason: str  # what failed last, or what an operator said
    left_ms: int | None  # while it is open: how long


class Complaint(Struct, frozen=True):
    """A fault in a message whose sender has no session, so it is logged instead of answered."""

    code: str
    text: str


class Decision(Struct):
    """Things to do at once, in this order."""

    grants: list[str] = []  # to the level-0 peer that subscribes in this turn: its `to`
    batches: list[StepBatch] = []
    handouts: list[Handout] = []
    sends: list[ToWorker] = []
    answers: list[ToRequest] = []
    reads: list[Read] = []
    watches: list[WatchProcess] = []
    turned: list[BreakerChanged] = []
    complaints: list[Complaint] = []

    @property
    def is_empty(self) -> bool:
        return not (
            self.batches
            or self.sends
            or self.answers
            or self.reads
            or self.watches
            or self.handouts
            or self.grants
            or self.turned
            or self.complaints
        )
