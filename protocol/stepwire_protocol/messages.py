"""The messages of the wire as frozen types. One struct a message; the tag `type` tells them apart.

H→B is what a handler process (a worker) tells a broker, B→H the other way. Business data (contexts, configs,
outputs) stays raw JSON from socket to database and back: the broker never opens it.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from . import limits, topics

NULL: Final = Raw(b"null")
EMPTY_OBJECT: Final = Raw(b"{}")


def _whole(pattern: str) -> str:
    """All of a string. Python's `$` alone would let a line end through."""
    return f"^{pattern}(?!\\n)$"


Count: TypeAlias = Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]
Id: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]
WorkerId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.WORKER_PATTERN))]
BrokerId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.BROKER_PATTERN))]
SessionId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.SESSION_PATTERN))]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
HandlerPattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
BatchId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Text: TypeAlias = Annotated[str, Meta(max_length=8192)]

Item: TypeAlias = tuple[Id, Id]  # step_id, delivery
HeldState: TypeAlias = Literal["queued", "asking", "running", "done"]
HeldItem: TypeAlias = tuple[Id, Id, HeldState, Count]  # …, age in ms since start (running, done) or receipt
AdoptedItem: TypeAlias = tuple[Id, Id, Literal["queued", "asking", "running", "done", "unknown"], Count]
ProgressItem: TypeAlias = tuple[Id, Id, float | int, float | int | None, Text | None]  # …, done, total, note

Items: TypeAlias = Annotated[list[Item], Meta(max_length=limits.BATCH_ITEMS_MAX)]
HeldItems: TypeAlias = list[HeldItem]

RefuseCode: TypeAlias = Literal["busy", "unknown_handler", "draining", "stale", "bad_message", "too_large"]
CancelReason: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded"]
ResetCode: TypeAlias = Literal["unknown_session", "expired", "version", "unauthorized", "shutdown"]
DeliveryMode: TypeAlias = Literal["at_least_once", "at_most_once"]
Status: TypeAlias = Literal["completed", "failed", "error"]


class FromWorker(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What every H→B message of level 1 carries."""

    v: str
    worker: WorkerId


class Hello(FromWorker, frozen=True, kw_only=True, tag="hello"):
    """A worker introduces itself, or says again who it is: on start, on `here`, on `reset`, after a drop."""

    n: Count
    versions: list[str]
    next: dict[BrokerId, Id] = {}
    sessions: dict[BrokerId, SessionId] = {}
    handlers: Annotated[list[HandlerPattern], Meta(max_length=limits.HANDLERS_MAX)]
    shadow_safe: list[HandlerPattern] = []
    labels: dict[str, str] = {}
    slots: Id
    prefetch: Count = 0
    free: dict[BrokerId, Count] = {}
    holding: HeldItems = []
    heartbeat_ms: Count = limits.HEARTBEAT_MS
    lang: str = ""
    sdk: str = ""
    host: str = ""
    pid: Count = 0
    pid_started: Count = 0
    proof: bool = False
    max_message_bytes: Id = limits.MESSAGE_BYTES_MAX


class Heartbeat(FromWorker, frozen=True, kw_only=True, tag="heartbeat"):
    """Ping: `n` counts; the worker remembers when it sent each, and the echo renews its lease from then."""

    n: Count
    next: dict[BrokerId, Id] = {}
    sessions: dict[BrokerId, SessionId] = {}
    free: dict[BrokerId, Count] = {}
    holding: HeldItems = []


class Bye(FromWorker, frozen=True, kw_only=True, tag="bye"):
    """The worker takes nothing new, and goes when `holding` is empty."""

    n: Count = 0
    drain: bool = True


class Gone(FromWorker, frozen=True, kw_only=True, tag="gone"):
    """A supervisor has reaped this child of its own: `worker` is the child."""


class Accept(FromWorker, frozen=True, kw_only=True, tag="accept", gc=False):
    """The batch has arrived and is kept. `free` is the worker's credit for this broker after it."""

    session: SessionId
    batch_id: BatchId
    free: Count


class Refuse(FromWorker, frozen=True, kw_only=True, tag="refuse"):
    """These items of the batch will not run in this delivery: each is a tombstone now."""

    session: SessionId
    batch_id: BatchId
    items: Items
    code: RefuseCode
    free: Count = 0


class Start(FromWorker, frozen=True, kw_only=True, tag="start"):
    """May I run these at_most_once steps? Nothing of them has run yet."""

    session: SessionId
    items: Items


class ErrorDetail(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a step failed, in the handler's words. Only `message` is needed; seed handlers send no more."""

    message: str = ""
    code: str | None = None
    category: str | None = None
    retryable: bool | None = None
    retry_after_ms: Count | None = None
    backtrace: list[str] | str | None = None


class ResultMetadata(Struct, frozen=True, gc=False, omit_defaults=True):
    """What the handler's side knows about the run. All of it may be missing."""

    execution_time_ms: Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)] | None = None
    handler_version: str | None = None
    retryable: bool | None = None


class Result(Struct, frozen=True, kw_only=True, gc=False):
    """One step's outcome. `failed` is the handler's verdict, `error` says it could not be run at all.

    Level 0 sends no `delivery`: there is one batch per delivery, and the batch_id tells it.
    """

    step_id: Id
    delivery: Id | UnsetType = UNSET
    status: Status
    output: Raw = NULL
    error: ErrorDetail | None = None
    metadata: ResultMetadata | None = None


class Results(FromWorker, frozen=True, kw_only=True, tag="results"):
    """Outcomes of steps of one batch. `rid` is the worker-wide number of this message and the key of its ack."""

    session: SessionId
    deployment: str
    batch_id: BatchId
    protocol_version: str
    rid: Id
    n: Count = 0
    free: Count | None = None
    results: Annotated[list[Result], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class Adopted(FromWorker, frozen=True, kw_only=True, tag="adopted"):
    """What the worker knows of the items a broker asked for in `adopt`; `unknown` is a promise never to start it."""

    session: SessionId
    items: Annotated[list[AdoptedItem], Meta(max_length=limits.BATCH_ITEMS_MAX)]


class Progress(FromWorker, frozen=True, kw_only=True, tag="progress"):
    """How far running steps are: step_id, delivery, done, total, note. Lost ones are not sent again."""

    session: SessionId
    items: Annotated[list[ProgressItem], Meta(max_length=limits.BATCH_ITEMS_MAX)]


class FromBroker(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What every B→H message of level 1 carries."""

    v: str
    broker: BrokerId
    epoch: Count


class Endpoints(Struct, frozen=True):
    """Where a broker can be reached: both its sockets, as a handler connects them."""

    broker: str
    steps: str
    results: str


class Here(FromBroker, frozen=True, kw_only=True, tag="here"):
    """A broker (re)started, or does not know the session a message named: say hello."""

    deployment: str
    versions: list[str]


class Welcome(FromBroker, frozen=True, kw_only=True, tag="welcome"):
    """The session is agreed. `n` echoes the hello's n, and the worker's lease runs from when it sent that."""

    session: SessionId
    deployment: str
    n: Count
    lease_ms: Id
    heartbeat_ms: Count
    max_message_bytes: Id
    brokers: list[Endpoints] = []


class HeartbeatAck(FromBroker, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The echo of heartbeat `n`: renews the lease from when the worker sent it. Control rides on it."""

    session: SessionId
    n: Count
    quiet: bool = False
    quit: bool = False


class StepMetadata(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What the broker says about this run of the step."""

    attempt: Count
    retry_limit: Count
    timeout_ms: Count
    idempotency_key: str
    traceparent: str | None = None
    deadline_ms: Count | None = None  # what is left of the step's own deadline when it was sent
    shadow: bool = False


class StepRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One step as a worker gets it: the seed's fields, and what level 1 adds."""

    step_id: Id
    task_id: Id
    step_name: str
    handler_class: str
    handler_config: Raw = EMPTY_OBJECT
    task_context: Raw = EMPTY_OBJECT
    previous_results: Raw = EMPTY_OBJECT
    input: Raw | UnsetType = UNSET
    delivery: Id
    delivery_mode: DeliveryMode = "at_least_once"
    metadata: StepMetadata


class Steps(FromBroker, frozen=True, kw_only=True, tag="steps"):
    """A batch of steps to run, said again byte for byte until it is answered."""

    session: SessionId
    batch_id: BatchId
    protocol_version: str
    steps: list[StepRequest]


class Go(FromBroker, frozen=True, kw_only=True, tag="go"):
    """These at_most_once steps are granted: the grant is committed, run them."""

    session: SessionId
    items: Items


class Cancel(FromBroker, frozen=True, kw_only=True, tag="cancel"):
    """Stop these, or never start them. Said again until they are gone from `holding`."""

    session: SessionId
    items: Items
    reason: CancelReason


class Ack(FromBroker, frozen=True, kw_only=True, tag="ack"):
    """These result messages are committed (or can never matter): forget them."""

    rids: list[Id]


class Adopt(FromBroker, frozen=True, kw_only=True, tag="adopt"):
    """Do you hold these? Answer each in `adopted`; what you call unknown you must never start."""

    session: SessionId
    items: Items


class Reset(FromBroker, frozen=True, kw_only=True, tag="reset"):
    """Your session `next` is no good here. Valid only if `next` is the worker's current number for this broker."""

    next: Count
    code: ResetCode
    versions: list[str] = []


class Refused(FromBroker, frozen=True, kw_only=True, tag="refused"):
    """A message of yours was refused. `code` is from errors.py; `rid` is set when it was a results message."""

    code: str
    message: str
    refused: str | None = None  # the refused message's type, where it could be read
    rid: int | None = None


class StepMetadataLevel0(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The seed's three members; the rest is for handlers that want it."""

    attempt: Count
    retry_limit: Count
    timeout_ms: Count
    idempotency_key: str | UnsetType = UNSET
    traceparent: str | None = None


class StepRequestLevel0(Struct, frozen=True, kw_only=True, gc=False):
    """One step in the seed's form."""

    step_id: Id
    task_id: Id
    step_name: str
    handler_class: str
    handler_config: Raw = EMPTY_OBJECT
    task_context: Raw = EMPTY_OBJECT
    previous_results: Raw = EMPTY_OBJECT
    input: Raw | UnsetType = UNSET
    metadata: StepMetadataLevel0


class StepsLevel0(Struct, frozen=True, kw_only=True):
    """A level-0 batch. `to` comes first on the wire: it is what the peer's own subscription was narrowed to."""

    to: str | UnsetType = UNSET  # absent only in the seed's own document
    batch_id: BatchId
    protocol_version: str
    steps: list[StepRequestLevel0]


class ResultsLevel0(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The seed's response document. A whole-batch `error` without results fails each step of the batch."""

    batch_id: BatchId
    protocol_version: str | UnsetType = UNSET
    results: Annotated[list[Result], Meta(max_length=limits.BATCH_ITEMS_MAX)] = []
    error: ErrorDetail | str | None = None


WorkerMessage: TypeAlias = Hello | Heartbeat | Bye | Gone | Accept | Refuse | Start | Results | Adopted | Progress
BrokerMessage: TypeAlias = Here | Welcome | HeartbeatAck | Steps | Go | Cancel | Ack | Adopt | Reset | Refused
