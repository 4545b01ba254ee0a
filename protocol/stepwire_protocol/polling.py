"""Level 1 over HTTP, for networks that ZeroMQ cannot cross: the bodies of `/v1/worker/…` and of the answers.

The bodies are the messages of the bus, without a topic; the path of a call is its type. SPEC.md, section 23, specifies
the rules.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from . import codec, limits
from .messages import (
    BatchId,
    BrokerId,
    CancelReason,
    Count,
    Description,
    HandlerPatterns,
    HeldItem,
    Id,
    Item,
    Labels,
    MessageBytes,
    ProgressItem,
    Result,
    SessionId,
    StepRequest,
    WorkerId,
)

C = TypeVar("C", bound="FromPoller")

WAIT_MS: Final = 20_000
WAIT_MS_MAX: Final = 60_000

CancelledItem: TypeAlias = tuple[Id, Id, CancelReason]  # step_id, delivery, why
Held: TypeAlias = Annotated[list[HeldItem], Meta(max_length=limits.BATCH_ITEMS_MAX)]


class FromPoller(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The members of every call of a worker."""

    v: str = limits.PROTOCOL_LEVEL_1
    worker: WorkerId


class LeaseCall(FromPoller, frozen=True, kw_only=True):
    """The worker asks for steps. `holding` lists every step that the worker has received and still holds.

    `n` increases with each lease call and each bye; a call with a lower `n` is out of date. Without a valid `session`,
    the broker opens a session and answers at once. `free` is the maximum number of steps in the answer.
    """

    n: Id
    session: SessionId | None = None
    handlers: HandlerPatterns
    shadow_safe: HandlerPatterns = []
    labels: Labels = {}
    slots: Id
    prefetch: Count = 0
    free: Count | None = None
    holding: Held = []
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = WAIT_MS
    lang: Description = ""
    sdk: Description = ""
    host: Description = ""
    pid: Count = 0
    max_message_bytes: MessageBytes = limits.MESSAGE_BYTES_MAX


class HeartbeatCall(FromPoller, frozen=True, kw_only=True):
    """The worker is alive, and reports the states of its steps. The call returns no step. `progress` is for people."""

    n: Count = 0
    session: SessionId
    holding: Held = []
    progress: Annotated[list[ProgressItem], Meta(max_length=limits.BATCH_ITEMS_MAX)] = []


class StartCall(FromPoller, frozen=True, kw_only=True):
    """The worker asks to run these at_most_once steps. None of them has started."""

    session: SessionId
    items: Annotated[list[Item], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class ResultsCall(FromPoller, frozen=True, kw_only=True):
    """Outcomes of steps of one batch. The worker repeats the call until the broker answers."""

    session: SessionId
    deployment: str
    batch_id: BatchId
    protocol_version: str = limits.PROTOCOL_LEVEL_1
    rid: Id = 1
    results: Annotated[list[Result], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class ByeCall(FromPoller, frozen=True, kw_only=True):
    """The worker ends. With `drain`, it finishes the steps in `holding`; without, they are lost."""

    n: Id
    session: SessionId
    holding: Held = []
    drain: bool = True


class ToPoller(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The members of every answer of a broker."""

    v: str = limits.PROTOCOL_LEVEL_1
    broker: BrokerId
    epoch: Count


class Leased(ToPoller, frozen=True, kw_only=True, tag="steps"):
    """Steps to run. Without steps, `batch_id` is null. The lease begins at the time when the worker sent the call."""

    session: SessionId
    deployment: str
    n: Id
    lease_ms: Id
    heartbeat_ms: Count
    max_message_bytes: Id
    quiet: bool
    quit: bool
    cancel: list[CancelledItem]
    batch_id: BatchId | None
    protocol_version: str
    steps: list[StepRequest]


class HeartbeatAnswer(ToPoller, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """Renews the lease from the time when the worker sent the heartbeat. Items in `cancel` must stop or never start."""

    session: SessionId
    n: Count
    lease_ms: Id
    quiet: bool
    quit: bool
    cancel: list[CancelledItem]


class StartAnswer(ToPoller, frozen=True, kw_only=True, tag="go"):
    """The broker has committed the grant of `items`: the worker runs them. The items in `cancel` must never start."""

    session: SessionId
    items: list[Item]
    cancel: list[CancelledItem]


class ResultsAnswer(ToPoller, frozen=True, kw_only=True, tag="ack"):
    """The broker has committed these results, or does not need them. The worker forgets them."""

    rids: list[Id]


class ByeAnswer(ToPoller, frozen=True, kw_only=True, tag="bye"):
    """`ended`: the session has ended. Otherwise it ends with the last step that the worker holds."""

    ended: bool


def read(kind: type[C], body: bytes, bytes_max: int) -> C:
    """Decode a worker's call. Raises InvalidMessage."""
    decoder, items_of = _CALLS[kind]
    call: C = codec.decode_call(body, decoder, items_of, bytes_max)
    return call


_ITEMS_OF: Final[dict[type[FromPoller], Callable[[Any], list[Any]] | None]] = {
    LeaseCall: lambda call: call.holding,
    HeartbeatCall: lambda call: call.holding,
    StartCall: lambda call: call.items,
    ResultsCall: None,
    ByeCall: lambda call: call.holding,
}
_CALLS: Final = {kind: (msgspec.json.Decoder(kind), items_of) for kind, items_of in _ITEMS_OF.items()}
