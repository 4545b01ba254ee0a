"""The messages of the protocol as frozen types: one struct per message, distinguished by the tag `type`.

Workers send subclasses of FromWorker, brokers send subclasses of FromBroker. Business data (contexts, configurations,
outputs) stays raw JSON from the socket to the database and back. The broker never decodes business data.
"""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from . import limits, topics

NULL: Final = Raw(b"null")
EMPTY_OBJECT: Final = Raw(b"{}")


def _whole(pattern: str) -> str:
    """A pattern for the whole string. Python's `$` alone would also match before a final line end."""
    return f"^{pattern}(?!\\n)$"


Count: TypeAlias = Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]
Id: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]
MessageBytes: TypeAlias = Annotated[int, Meta(ge=limits.MESSAGE_BYTES_MIN, le=limits.INTEGER_MAX)]
WorkerId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.WORKER_PATTERN))]
BrokerId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.BROKER_PATTERN))]
SessionId: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.SESSION_PATTERN))]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
HandlerPattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
BatchId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Text: TypeAlias = Annotated[str, Meta(max_length=8192)]
HandlerVersion: TypeAlias = Annotated[str, Meta(max_length=limits.HANDLER_VERSION_MAX)]
TraceState: TypeAlias = Annotated[str, Meta(max_length=limits.TRACESTATE_MAX)]
CurveKey: TypeAlias = Annotated[str, Meta(pattern=_whole(topics.CURVE_KEY_PATTERN))]

Item: TypeAlias = tuple[Id, Id]  # step_id, delivery
HeldState: TypeAlias = Literal["queued", "asking", "running", "done"]
HeldItem: TypeAlias = tuple[Id, Id, HeldState, Count]  # …, age in ms since start (running, done) or receipt
AdoptedItem: TypeAlias = tuple[Id, Id, Literal["queued", "asking", "running", "done", "unknown"], Count]
ProgressItem: TypeAlias = tuple[Id, Id, float | int, float | int | None, Text | None]  # …, done, total, note

Items: TypeAlias = Annotated[list[Item], Meta(max_length=limits.BATCH_ITEMS_MAX)]
HeldItems: TypeAlias = Annotated[list[HeldItem], Meta(max_length=limits.HELD_ITEMS_MAX)]
HandlerPatterns: TypeAlias = Annotated[list[HandlerPattern], Meta(max_length=limits.HANDLERS_MAX)]
LabelText: TypeAlias = Annotated[str, Meta(max_length=limits.LABEL_MAX)]
Labels: TypeAlias = Annotated[dict[LabelText, LabelText], Meta(max_length=limits.LABELS_MAX)]
Description: TypeAlias = Annotated[str, Meta(max_length=limits.DESCRIPTION_MAX)]  # of a worker's program, for people

RefuseCode: TypeAlias = Literal["busy", "unknown_handler", "draining", "stale", "bad_message", "too_large"]
CancelReason: TypeAlias = Literal["not_granted", "timeout", "task_cancelled", "superseded"]
ResetCode: TypeAlias = Literal["unknown_session", "expired", "version", "unauthorized", "shutdown"]
DeliveryMode: TypeAlias = Literal["at_least_once", "at_most_once"]
Status: TypeAlias = Literal["completed", "failed", "error"]


class FromWorker(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The members of every level-1 message of a worker."""

    v: str
    worker: WorkerId


class Hello(FromWorker, frozen=True, kw_only=True, tag="hello"):
    """A worker introduces itself: at its start, after `here`, and after it dropped a session. Resent until answered."""

    n: Count
    versions: list[str]
    next: dict[BrokerId, Id] = {}
    sessions: dict[BrokerId, SessionId] = {}
    handlers: HandlerPatterns
    shadow_safe: HandlerPatterns = []
    labels: Labels = {}
    slots: Id
    prefetch: Count = 0
    free: dict[BrokerId, Count] = {}
    slots_free: dict[BrokerId, Count] = {}
    holding: HeldItems = []
    heartbeat_ms: Count = limits.HEARTBEAT_MS
    lang: Description = ""
    sdk: Description = ""
    handler_version: HandlerVersion = ""
    host: Description = ""
    pid: Count = 0
    pid_started: Count = 0
    proof: bool = False
    max_message_bytes: MessageBytes = limits.MESSAGE_BYTES_MAX


class Heartbeat(FromWorker, frozen=True, kw_only=True, tag="heartbeat"):
    """The worker is alive. `n` increases. The ack with the same `n` renews the lease from the time when the worker sent
    the heartbeat."""

    n: Count
    next: dict[BrokerId, Id] = {}
    sessions: dict[BrokerId, SessionId] = {}
    free: dict[BrokerId, Count] = {}
    slots_free: dict[BrokerId, Count] = {}
    holding: HeldItems = []


class Bye(FromWorker, frozen=True, kw_only=True, tag="bye"):
    """The worker accepts no new steps, and ends when it holds none."""

    n: Count = 0
    drain: bool = True


class Gone(FromWorker, frozen=True, kw_only=True, tag="gone"):
    """A supervisor has reaped one of its own children: `worker` is the child."""


class Accept(FromWorker, frozen=True, kw_only=True, tag="accept", gc=False):
    """The worker has accepted the batch. `free` is its credit for this broker after the batch."""

    session: SessionId
    batch_id: BatchId
    free: Count
    slots_free: Count | None = None


class Refuse(FromWorker, frozen=True, kw_only=True, tag="refuse"):
    """The worker will not run these items of the batch. It keeps a tombstone of each, so they never start later."""

    session: SessionId
    batch_id: BatchId
    items: Items
    code: RefuseCode
    free: Count = 0
    slots_free: Count | None = None


class Start(FromWorker, frozen=True, kw_only=True, tag="start"):
    """The worker asks to run these at_most_once steps. None of them has started."""

    session: SessionId
    items: Items


class ErrorDetail(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a step failed, as its handler reports it. All members are optional."""

    message: str = ""
    code: str | None = None
    category: str | None = None
    retryable: bool | None = None
    retry_after_ms: Count | None = None
    backtrace: list[str] | str | None = None


class ResultMetadata(Struct, frozen=True, gc=False, omit_defaults=True):
    """Facts about the run from the handler's side. All members are optional. `stderr` is what the run wrote to standard
    error; the broker keeps the end of it."""

    execution_time_ms: Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)] | None = None
    handler_version: str | None = None
    retryable: bool | None = None
    stderr: str | None = None


class Result(Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one step. `failed`: the handler failed it. `error`: the step could not be run.

    Level 0 sends no `delivery`: each delivery has its own batch, and the batch_id identifies it.
    """

    step_id: Id
    delivery: Id | UnsetType = UNSET
    status: Status
    output: Raw = NULL
    error: ErrorDetail | None = None
    metadata: ResultMetadata | None = None


class Results(FromWorker, frozen=True, kw_only=True, tag="results"):
    """Outcomes of steps of one batch. `rid` numbers the results messages of a worker; the ack names it."""

    session: SessionId
    deployment: str
    batch_id: BatchId
    protocol_version: str
    rid: Id
    n: Count = 0
    free: Count | None = None
    slots_free: Count | None = None
    results: Annotated[list[Result], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class Adopted(FromWorker, frozen=True, kw_only=True, tag="adopted"):
    """The states of the items that a broker named in `adopt`. `unknown` is a promise never to start the delivery."""

    session: SessionId
    items: Annotated[list[AdoptedItem], Meta(max_length=limits.BATCH_ITEMS_MAX)]


class Progress(FromWorker, frozen=True, kw_only=True, tag="progress"):
    """The progress of running steps: step_id, delivery, done, total, note. Never resent."""

    session: SessionId
    items: Annotated[list[ProgressItem], Meta(max_length=limits.BATCH_ITEMS_MAX)]


class FromBroker(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The members of every level-1 message of a broker."""

    v: str
    broker: BrokerId
    epoch: Count


class Endpoints(Struct, frozen=True, omit_defaults=True):
    """The endpoints of a broker's two sockets, for workers to connect to. `server_key` is the broker's CURVE key."""

    broker: str
    steps: str
    results: str
    server_key: CurveKey | None = None


class Here(FromBroker, frozen=True, kw_only=True, tag="here"):
    """A broker started, or does not know the session that a message named. The worker sends `hello`."""

    deployment: str
    versions: list[str]


class Welcome(FromBroker, frozen=True, kw_only=True, tag="welcome"):
    """The session is open. `n` is the number of the hello. The lease begins at the time when the worker sent that
    hello."""

    session: SessionId
    deployment: str
    n: Count
    lease_ms: Id
    heartbeat_ms: Count
    max_message_bytes: Id
    brokers: list[Endpoints] = []


class HeartbeatAck(FromBroker, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The ack of heartbeat `n`. Renews the lease from the time when the worker sent that heartbeat. `quiet`: accept no
    new steps. `quit`: drain and end. `brokers`: as in `welcome`; None if unchanged."""

    session: SessionId
    n: Count
    quiet: bool = False
    quit: bool = False
    brokers: list[Endpoints] | None = None


class StepMetadata(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Facts about this run of the step from the broker."""

    attempt: Count
    retry_limit: Count
    timeout_ms: Count
    idempotency_key: str
    traceparent: str | None = None
    tracestate: TraceState | None = None
    deadline_ms: Count | None = None  # time left until the step's own deadline when the message was sent
    shadow: bool = False


class StepRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One step as a worker receives it: the members of level 0, and the additional members of level 1."""

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
    """A batch of steps to run. The broker resends the same bytes until the worker answers."""

    session: SessionId
    batch_id: BatchId
    protocol_version: str
    steps: list[StepRequest]


class Go(FromBroker, frozen=True, kw_only=True, tag="go"):
    """The broker has committed the grant of these at_most_once steps. The worker runs them."""

    session: SessionId
    items: Items


class Cancel(FromBroker, frozen=True, kw_only=True, tag="cancel"):
    """The worker must stop these steps, or never start them. Resent until they are absent from `holding`."""

    session: SessionId
    items: Items
    reason: CancelReason


class Ack(FromBroker, frozen=True, kw_only=True, tag="ack"):
    """The broker has committed these results messages, or does not need them. The worker forgets them."""

    rids: list[Id]


class Adopt(FromBroker, frozen=True, kw_only=True, tag="adopt"):
    """The broker asks whether the worker holds these items. The worker answers with `adopted`."""

    session: SessionId
    items: Items


class Reset(FromBroker, frozen=True, kw_only=True, tag="reset"):
    """The broker rejects the session with the number `next`. Valid only if this is the worker's current session number
    for the broker."""

    next: Count
    code: ResetCode
    versions: list[str] = []


class Refused(FromBroker, frozen=True, kw_only=True, tag="refused"):
    """The broker refused a message of this worker. `rid` is set for a results message that the broker will never
    accept."""

    code: str
    message: str
    refused: str | None = None  # the type of the refused message, if it could be read
    rid: int | None = None


class StepMetadataLevel0(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Facts about this run of the step. The first three members are always present."""

    attempt: Count
    retry_limit: Count
    timeout_ms: Count
    idempotency_key: str | UnsetType = UNSET
    traceparent: str | None = None
    tracestate: TraceState | None = None


class StepRequestLevel0(Struct, frozen=True, kw_only=True, gc=False):
    """One step as a level-0 handler receives it."""

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
    """A level-0 batch. `to` is the first member on the wire, because the broker narrows the peer's subscription to
    it."""

    to: str | UnsetType = UNSET  # absent only in the original form of this message
    batch_id: BatchId
    protocol_version: str
    steps: list[StepRequestLevel0]


class ResultsLevel0(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of a level-0 handler. An `error` without results fails each step of the batch."""

    batch_id: BatchId
    protocol_version: str | UnsetType = UNSET
    results: Annotated[list[Result], Meta(max_length=limits.BATCH_ITEMS_MAX)] = []
    error: ErrorDetail | str | None = None


WorkerMessage: TypeAlias = Hello | Heartbeat | Bye | Gone | Accept | Refuse | Start | Results | Adopted | Progress
BrokerMessage: TypeAlias = Here | Welcome | HeartbeatAck | Steps | Go | Cancel | Ack | Adopt | Reset | Refused
