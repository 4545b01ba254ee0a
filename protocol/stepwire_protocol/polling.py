"""Level 1 over HTTP, for places that ZeroMQ cannot go: the bodies of `/v1/worker/…` and of their answers.

They are the wire's messages, with what a call itself says left out: its path is its type, its answer needs no topic.
SPEC.md, "Over HTTP", has the rules.
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
    HandlerPattern,
    HeldItem,
    Id,
    Item,
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
    """What every call of a worker carries."""

    v: str = limits.PROTOCOL_LEVEL_1
    worker: WorkerId


class LeaseCall(FromPoller, frozen=True, kw_only=True):
    """Steps, please. Says who the worker is, and what it holds: this is the whole truth of what it has been given.

    `n` rises with each call for a lease and each goodbye; what was said before is old. Without `session`, or with one
    that is over, a session is opened and answered at once. `free` is how many steps it takes now.
    """

    n: Id
    session: SessionId | None = None
    handlers: Annotated[list[HandlerPattern], Meta(max_length=limits.HANDLERS_MAX)]
    shadow_safe: list[HandlerPattern] = []
    labels: dict[str, str] = {}
    slots: Id
    prefetch: Count = 0
    free: Count | None = None
    holding: Held = []
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = WAIT_MS
    lang: str = ""
    sdk: str = ""
    host: str = ""
    pid: Count = 0
    max_message_bytes: Id = limits.MESSAGE_BYTES_MAX


class HeartbeatCall(FromPoller, frozen=True, kw_only=True):
    """The worker lives, and this is how far it is with what it holds. Gives nothing back. `progress` is for people."""

    n: Count = 0
    session: SessionId
    holding: Held = []
    progress: Annotated[list[ProgressItem], Meta(max_length=limits.BATCH_ITEMS_MAX)] = []


class StartCall(FromPoller, frozen=True, kw_only=True):
    """May I run these at_most_once steps? Nothing of them has run yet."""

    session: SessionId
    items: Annotated[list[Item], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class ResultsCall(FromPoller, frozen=True, kw_only=True):
    """Outcomes of steps of one batch. May be said again, and is until it is answered."""

    session: SessionId
    deployment: str
    batch_id: BatchId
    protocol_version: str = limits.PROTOCOL_LEVEL_1
    rid: Id = 1
    results: Annotated[list[Result], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)]


class ByeCall(FromPoller, frozen=True, kw_only=True):
    """The worker goes. What is in `holding` it still ends, or, without `drain`, leaves as it is."""

    n: Id
    session: SessionId
    holding: Held = []
    drain: bool = True


class ToPoller(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every answer of a broker carries."""

    v: str = limits.PROTOCOL_LEVEL_1
    broker: BrokerId
    epoch: Count


class Leased(ToPoller, frozen=True, kw_only=True, tag="steps"):
    """Steps to run, or none: then there is no `batch_id`. The lease runs from when the call was sent."""

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
    """The lease is renewed, from when the heartbeat was sent. What `cancel` names is to stop, or never to start."""

    session: SessionId
    n: Count
    lease_ms: Id
    quiet: bool
    quit: bool
    cancel: list[CancelledItem]


class StartAnswer(ToPoller, frozen=True, kw_only=True, tag="go"):
    """`items` are granted, and that is committed: run them. What `cancel` names must never start."""

    session: SessionId
    items: list[Item]
    cancel: list[CancelledItem]


class ResultsAnswer(ToPoller, frozen=True, kw_only=True, tag="ack"):
    """These results are committed, or can never matter: forget them."""

    rids: list[Id]


class ByeAnswer(ToPoller, frozen=True, kw_only=True, tag="bye"):
    """`ended`: the session is over; else it ends with what the worker still holds."""

    ended: bool


def read(kind: type[C], body: bytes, bytes_max: int) -> C:
    """A call of a worker. Raises InvalidMessage."""
    decode, items_of = _CALLS[kind]
    call: C = codec.decode_call(body, decode, items_of, bytes_max)
    return call


_ITEMS_OF: Final[dict[type[FromPoller], Callable[[Any], list[Any]] | None]] = {
    LeaseCall: lambda call: call.holding,
    HeartbeatCall: lambda call: call.holding,
    StartCall: lambda call: call.items,
    ResultsCall: None,
    ByeCall: lambda call: call.holding,
}
_CALLS: Final = {kind: (msgspec.json.Decoder(kind).decode, items_of) for kind, items_of in _ITEMS_OF.items()}
