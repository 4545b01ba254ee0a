"""The events that the core handles: commands, and facts from outside. A message of a worker is an event without a
wrapper.

A command carries `request`, the number of its Answer. The command is answered once, after the commit of everything
decided before the answer.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct
from stepwire_protocol.messages import Result, ResultsLevel0, WorkerMessage

from stepwire_broker.core.brokers.listeners import Listener, ListenerKind
from stepwire_broker.core.definitions.settings import ExecutionSettings, QuotaSettings
from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads, StoredControl, TakenLane
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.membership.cluster_rows import Beaten
from stepwire_broker.core.membership.notifications import Notification

from .commit_group import Outcome
from .principal import PROCESS, Grant


class Now(NamedTuple):
    """One reading of both clocks. `mono` never jumps and counts sleep; `wall` is UTC and used only for stored times."""

    mono: int  # milliseconds
    wall: int  # milliseconds


# -- commands ---------------------------------------------------------------------------------------------------------


class NewTask(NamedTuple):
    """One task of a submission, checked by the requests stage. `digest` covers everything but the key."""

    namespace: str
    workflow: str
    version: str | None
    context: bytes  # compact JSON object
    key: str | None
    digest: bytes
    priority: int
    labels: bytes | None
    deadline_ms: int | None = None
    is_sealed: bool = False  # the context


class Command(Struct, frozen=True):
    """A command of a client or an operator. The commands of operators are defined next to their handlers."""

    request: int


class CommandOfOperator(Command, frozen=True, kw_only=True):
    """A command of an operator, which leaves a row in `audit`. `by`: the name of the sender's token, or its digest.
    None: the program that embeds the broker. `via`: how the sender was identified. `request_id`: the request at the
    broker that the sender is connected to, if that is another one."""

    by: str | None = None
    via: str = PROCESS
    request_id: str | None = None


class SubmitTasks(Command, frozen=True):
    """Store these together or not at all. `entropy` is 128 random bits; the tasks' uids count up from it."""

    tasks: list[NewTask]
    entropy: int


class ApplyWorkflow(CommandOfOperator, frozen=True):
    workflow: Workflow
    activate: bool = True


class ActivateWorkflow(CommandOfOperator, frozen=True):
    namespace: str
    name: str
    version: str


class AwaitTask(Command, frozen=True):
    """Answer when the task is terminal, or waits on a held step (`attention`)."""

    task_id: int


class Explain(Command, frozen=True):
    """Explain why this task, or this step of it, is not running."""

    task_id: int
    step: str | None = None


class ExplainSteps(Command, frozen=True):
    """Describe what is only in memory of the open steps of this task, or of this one: reasons and progress."""

    task_id: int
    step_id: int | None = None


class LearnCatalogue(Command, frozen=True):
    """Answer after workflows and controls of other brokers were read."""


class ReportResult(Command, frozen=True):
    """Apply a result that a worker reported to another broker, because it has no session with this one."""

    step_id: int
    worker: str
    batch_id: str
    result: Result


class Forget(Command, frozen=True):
    """The client of `request` has disconnected."""


# -- facts of the world -----------------------------------------------------------------------------------------------


class Attached(Struct, frozen=True):
    """A worker in the broker's own process takes steps that are routed to this executor. With `joins_bus` it also takes
    steps that are routed to the bus."""

    worker: str
    executor: str
    joins_bus: bool = False
    grant: Grant | None = None  # of the token that the worker's calls carry; None: the worker is part of the process

    @property
    def principal(self) -> str:
        return PROCESS if self.grant is None else self.grant.principal


class Detached(Struct, frozen=True):
    """A worker in the broker's own process has ended."""

    worker: str


class Subscribed(Struct, frozen=True):
    """A peer subscribed this worker's inbox, which was not refused to its principal. `kind`: of the listener that it
    came to; None: unknown."""

    worker: str
    kind: ListenerKind | None = None


class SubscriptionVanished(Struct, frozen=True):
    """The last connection that subscribed this worker's inbox is gone: the worker died, or lost its connection."""

    worker: str


class PeerSubscribed(Struct, frozen=True):
    """A level-0 handler subscribed `steps`. The handler receives nothing unless the decision grants it a `to`."""


class PeerVanished(Struct, frozen=True):
    """A level-0 peer unsubscribed, died or lost its connection. A busy peer may still send its result."""

    to: str


class NextEndpoints(Struct, frozen=True):
    """The endpoints that serve the key which will replace the brokers' CURVE key."""

    steps: str
    results: str
    server_key: str


class EndpointsBound(Struct, frozen=True):
    """The bus is open, or its keys have changed. Workers are sent these addresses in `welcome`, and after a change in
    acks of heartbeats."""

    steps: str
    results: str
    server_key: str | None = None  # the brokers' CURVE key, if these endpoints require keys
    next: NextEndpoints | None = None  # during a rotation of that key
    replaced: str | None = None  # the key that these endpoints still serve for a moment, until `server_key`
    listeners: tuple[Listener, ...] = ()  # all of them, which other brokers name to their workers


class ResultsTaken(Struct, frozen=True):
    """The owners of the steps have stored the results that this worker reported here for them, in this message."""

    worker: str
    rid: int


class HttpServed(Struct, frozen=True):
    """The API is open at this URL. Other brokers name it to workers over HTTP."""

    url: str


class MessageRefused(Struct, frozen=True):
    """A message of the bus that could not be decoded. `worker`, `kind` and `rid` are the members that could be read."""

    topic: bytes
    code: str
    message: str
    worker: str | None = None
    kind: str | None = None
    rid: int | None = None


class MessageIgnored(Struct, frozen=True):
    """A message of a type that this version does not know. The protocol lets later versions add types."""

    code: str


class FrameRefused(Struct, frozen=True):
    """A frame of the bus without a readable topic or body."""

    code: str


class PeersUncertain(Struct, frozen=True):
    """One of several level-0 peers is gone, and the broker cannot identify it."""


class ProcessDied(Struct, frozen=True):
    """The operating system reports that this worker's process has ended."""

    worker: str


class ClaimRefuted(Struct, frozen=True):
    """The process with this worker's pid started at another time than its hello states, and is not a successor."""

    worker: str


class LoadedTasks(Struct, frozen=True):
    """The tasks that a read returned. `absent`: requested steps that are final, or were removed with their task."""

    loaded: Loaded
    request: int
    absent: frozenset[int] = frozenset()


class LoadedPayloads(Struct, frozen=True):
    payloads: Payloads
    request: int


class FoundOrder(NamedTuple):
    """An open order of an own lane. `command` is None if this version of the program cannot read it."""

    lane: int
    id: int
    age_ms: int
    command: Command | None


class LookedAround(Struct, frozen=True):
    """The orders that other brokers stored for this one, and the revision of what all brokers keep in memory."""

    request: int
    orders: tuple[FoundOrder, ...]
    revision: int  # the highest of `controls`


class CatalogueRead(Struct, frozen=True):
    """The rows that every broker keeps in memory, as of one moment."""

    request: int
    revision: int  # the highest of `controls`
    controls: tuple[StoredControl, ...]
    workflows: tuple[Workflow, ...]  # those that were not known
    active: frozenset[int]
    blocks: Mapping[int, int]  # by number: the lane


class LoadFailed(Struct, frozen=True):
    request: int
    error: str


class LanesTaken(Struct, frozen=True):
    """The broker owns these lanes now, in addition to the others."""

    lanes: tuple[TakenLane, ...]


class ReleaseLane(Struct, frozen=True):
    """Give this lane up as soon as it may go: dispatch nothing more of it, then request the release."""

    lane: int
    to: str | None = None  # the broker that is to own it; None: any


class LaneReleased(Struct, frozen=True):
    """The release of this lane is stored, so another broker may own it now."""

    lane: int


class LoopWasLate(Struct, frozen=True):
    """The loop was blocked for `gap_ms`: no worker counts as silent for that time."""

    gap_ms: int


class Tick(Struct, frozen=True):
    """A timer is due."""


class Reconfigure(Struct, frozen=True):
    """Use this routing configuration from now on. `router.check` has accepted it."""

    execution: ExecutionSettings


class QuotasChanged(Struct, frozen=True):
    """Use these quotas from now on, by namespace. Steps that are open already stay."""

    quotas: Mapping[str, QuotaSettings]


class GrantsChanged(Struct, frozen=True):
    """Use these grants from now on, and no others. A principal without a grant is revoked: its sessions get no further
    step, and nothing that it sends counts. An operator states that the workers of `declared_dead` have ended."""

    grants: tuple[Grant, ...]
    declared_dead: frozenset[str] = frozenset()  # names of revoked principals


class ActionNoticed(Struct, frozen=True):
    """An action to record in `audit` that was not requested of the core. Nothing waits for the row's commit."""

    principal: str
    via: str
    action: str
    target: str = ""
    detail: Mapping[str, Any] = {}
    outcome: str = "done"


class Drain(Struct, frozen=True):
    """The broker will stop: it accepts and dispatches nothing new; running steps may finish."""


class Leave(Struct, frozen=True):
    """The broker stops now."""


Event: TypeAlias = (
    WorkerMessage
    | ResultsLevel0
    | MessageRefused
    | MessageIgnored
    | FrameRefused
    | Command
    | Outcome
    | EndpointsBound
    | HttpServed
    | ResultsTaken
    | Attached
    | Detached
    | Subscribed
    | SubscriptionVanished
    | PeerSubscribed
    | PeerVanished
    | PeersUncertain
    | ProcessDied
    | ClaimRefuted
    | LoadedTasks
    | LoadedPayloads
    | LookedAround
    | CatalogueRead
    | LoadFailed
    | Beaten
    | Notification
    | LanesTaken
    | ReleaseLane
    | LaneReleased
    | LoopWasLate
    | Tick
    | Reconfigure
    | QuotasChanged
    | GrantsChanged
    | ActionNoticed
    | Drain
    | Leave
)
