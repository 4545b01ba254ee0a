"""Workers and executors as the broker sees them now, for the API and for metrics. Pure functions over the state."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from . import takers
from .brokers import addresses
from .model.death_proof import why_unprovable
from .model.events import Now
from .model.figures import ExecutorMetrics
from .model.level0_peer import Level0Peer
from .model.live import StepProgress, WorkerSession
from .model.targets import BUS
from .state import BrokerState

PROGRESS_MAX: Final = 20  # reports shown of one worker


class WorkerView(Struct, frozen=True, kw_only=True):
    """A live session, or at `level` 0 a handler that subscribed `steps`. `stuck`: all its runs are overdue."""

    worker: str
    principal: str  # whose connection it uses
    executor: str
    level: int
    session: str
    since_ms: int
    heard_ms_ago: int
    handlers: list[str]
    unknown_handlers: list[str]  # that it refused, because it does not know them
    labels: dict[str, str]
    slots: int
    prefetch: int
    free: int  # number of further steps that it takes now
    holding: int
    running: int
    draining: bool
    stuck: bool
    completed: int
    failed: int
    lang: str
    sdk: str
    host: str  # the machine, as the worker identifies it
    pid: int
    unprovable: str | None  # why the operating system cannot prove the death of its process; None: it can
    progress: list[StepProgress]  # of the steps that it runs, the newest report first
    brokers: list[str] = []  # live ones with which it has a session, while there are several
    missing_brokers: list[str] = []  # the other live ones


class ExecutorView(Struct, frozen=True, kw_only=True):
    """An executor since this broker's start. `is_hosted`: it runs in this process, and keeps its own figures."""

    executor: str
    is_hosted: bool
    paused_since_ms: int | None
    workers: int
    handlers: list[str]
    has_capacity: bool
    active: int
    total_executed: int
    total_failed: int
    max_concurrent: int
    mean_ms: float | None
    p95_ms: float | None


def workers(state: BrokerState, now: Now) -> list[WorkerView]:
    """All sessions, then all level-0 peers."""
    return [
        *(_session(state, session, now) for session in state.sessions.values()),
        *(_peer(state, peer, now) for peer in state.level0.peers.values()),
    ]


def _session(state: BrokerState, session: WorkerSession, now: Now) -> WorkerView:
    return WorkerView(
        worker=session.worker,
        principal=session.principal,
        executor=session.executor,
        level=1,
        session=session.id,
        since_ms=session.since_wall,
        heard_ms_ago=max(0, now.mono - session.heard_mono),
        handlers=session.handlers,
        unknown_handlers=sorted(session.unknown),
        labels=session.labels,
        slots=session.slots,
        prefetch=session.prefetch,
        free=max(0, session.credit),
        holding=len(session.deliveries),
        running=sum(step.seen == "running" for step in session.deliveries.values()),
        draining=session.draining,
        stuck=session.stuck,
        completed=session.completed,
        failed=session.failed,
        lang=session.lang,
        sdk=session.sdk,
        host=session.host,
        pid=session.pid,
        unprovable=_unprovable(state, session),
        progress=_progress(state, session),
        brokers=sorted(session.brokers),
        missing_brokers=addresses.missing(state, session),
    )


def _unprovable(state: BrokerState, session: WorkerSession) -> str | None:
    if session.worker in state.attached:
        return "it is not connected to the bus"
    return why_unprovable(session, state.identity.host)


def _progress(state: BrokerState, session: WorkerSession) -> list[StepProgress]:
    if not state.progress:
        return []
    reports = [report for step_id in session.deliveries if (report := state.progress.get(step_id)) is not None]
    reports.sort(key=lambda report: -report.at_ms)
    return reports[:PROGRESS_MAX]


def _peer(state: BrokerState, peer: Level0Peer, now: Now) -> WorkerView:
    """Only the steps handed to a level-0 peer are known. A peer is `stuck` once it has let a lease expire."""
    return WorkerView(
        worker=peer.worker,
        principal=peer.principal,
        executor=BUS,
        level=0,
        session=peer.to,
        since_ms=peer.since_wall,
        heard_ms_ago=max(0, now.mono - peer.heard_mono),
        handlers=list(state.settings.bus.level0.handlers),
        unknown_handlers=sorted(peer.unknown),
        labels={},
        slots=1,
        prefetch=0,
        free=int(takers.is_free(peer, now)),
        holding=sum(len(handout.items) for handout in peer.holds.values()),
        running=int(bool(peer.holds)),
        draining=peer.draining,
        stuck=peer.doubted,
        completed=peer.completed,
        failed=peer.failed,
        lang="",
        sdk="",
        host="",
        pid=0,
        unprovable="level 0 does not name a process",
        progress=[],
    )


def executors(state: BrokerState, known: Mapping[str, ExecutorMetrics | None], now: Now) -> list[ExecutorView]:
    """List the executors of `known` and of workers. None in `known`: the core's own figures are used."""
    return [_executor(state, key, known.get(key), now) for key in dict.fromkeys((*known, *state.executors))]


def _executor(state: BrokerState, key: str, own: ExecutorMetrics | None, now: Now) -> ExecutorView:
    executor = state.executor(key)
    sessions = [session for session in state.sessions.values() if session.of is executor]
    peers = list(state.level0.peers.values()) if key == BUS else []
    handouts = state.level0.handouts.values() if key == BUS else ()
    active = sum(len(session.deliveries) for session in sessions) + sum(len(handout.items) for handout in handouts)
    slots = sum(session.slots for session in sessions) + len(peers)
    is_free = any(session.credit > 0 for session in sessions) or any(takers.is_free(peer, now) for peer in peers)
    metrics = executor.figures.metrics(active, slots) if own is None else own
    return ExecutorView(
        executor=key,
        is_hosted=own is not None,
        paused_since_ms=executor.paused_wall,
        workers=len(sessions) + len(peers),
        handlers=sorted({handler for session in sessions for handler in session.handlers}),
        has_capacity=is_free and executor.paused_wall is None,
        active=metrics.active,
        total_executed=metrics.total_executed,
        total_failed=metrics.total_failed,
        max_concurrent=metrics.max_concurrent,
        mean_ms=metrics.mean_ms,
        p95_ms=metrics.p95_ms,
    )


def steps_in_flight(state: BrokerState) -> int:
    """Count the steps that are handed out and not answered."""
    at_level0 = sum(len(handout.items) for handout in state.level0.handouts.values())
    return at_level0 + sum(len(session.deliveries) for session in state.sessions.values())


def is_settled(state: BrokerState) -> bool:
    """True if everything that was decided is committed and sent."""
    lanes = state.outbox.lanes.values()
    return len(state.outbox) == 0 and all(lane.is_idle and not lane.is_open for lane in lanes)
