"""Messages to workers. Only this module writes their header (version, broker, epoch, session)."""

from typing import Final, TypedDict

from stepwire_protocol import limits
from stepwire_protocol.messages import (
    Ack,
    Adopt,
    Cancel,
    CancelReason,
    Endpoints,
    Go,
    HeartbeatAck,
    Here,
    Refused,
    Reset,
    ResetCode,
    StepRequest,
    Steps,
    Welcome,
)

from .definitions.settings import BusSettings
from .model.live import WorkerSession
from .state import Identity

V: Final = limits.PROTOCOL_LEVEL_1

Items = list[tuple[int, int]]  # step_id and delivery


class _Header(TypedDict):
    v: str
    broker: str
    epoch: int


class _SessionHeader(_Header):
    session: str


def _header(identity: Identity) -> _Header:
    return {"v": V, "broker": identity.broker, "epoch": identity.epoch}


def _session_header(identity: Identity, session: WorkerSession) -> _SessionHeader:
    return {"v": V, "broker": identity.broker, "epoch": identity.epoch, "session": session.id}


# -- sessions ---------------------------------------------------------------------------------------------------------


def here(identity: Identity) -> Here:
    return Here(**_header(identity), deployment=identity.deployment, versions=list(limits.VERSIONS_SUPPORTED))


def welcome(identity: Identity, session: WorkerSession, n: int, bus: BusSettings, brokers: list[Endpoints]) -> Welcome:
    return Welcome(
        **_session_header(identity, session),
        deployment=identity.deployment,
        n=n,
        lease_ms=bus.lease_ms,
        heartbeat_ms=bus.heartbeat_ms,
        max_message_bytes=bus.max_message_bytes,
        brokers=brokers,
    )


def heartbeat_ack(
    identity: Identity, session: WorkerSession, n: int, *, quiet: bool, quit: bool, brokers: list[Endpoints] | None
) -> HeartbeatAck:
    return HeartbeatAck(**_session_header(identity, session), n=n, quiet=quiet, quit=quit, brokers=brokers)


def adopt(identity: Identity, session: WorkerSession, items: Items) -> Adopt:
    return Adopt(**_session_header(identity, session), items=items)


def reset(identity: Identity, k: int, code: ResetCode) -> Reset:
    versions = list(limits.VERSIONS_SUPPORTED) if code == "version" else []
    return Reset(**_header(identity), next=k, code=code, versions=versions)


def refused(identity: Identity, code: str, message: str, kind: str | None, rid: int | None) -> Refused:
    return Refused(**_header(identity), code=code, message=message, refused=kind, rid=rid)


# -- steps ------------------------------------------------------------------------------------------------------------


def steps(identity: Identity, session: WorkerSession, batch_id: str, requests: list[StepRequest]) -> Steps:
    return Steps(**_session_header(identity, session), batch_id=batch_id, protocol_version=V, steps=requests)


def go(identity: Identity, session: WorkerSession, items: Items) -> Go:
    return Go(**_session_header(identity, session), items=items)


def cancel(identity: Identity, session: WorkerSession, items: Items, reason: CancelReason) -> Cancel:
    return Cancel(**_session_header(identity, session), items=items, reason=reason)


def ack(identity: Identity, rid: int) -> Ack:
    return Ack(**_header(identity), rids=[rid])
