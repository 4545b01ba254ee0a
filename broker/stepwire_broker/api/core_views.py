"""Typed views of the core's state: the only module of the API that knows how the core keeps it."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from stepwire_protocol import topics
from stepwire_protocol.messages import Hello, Item

from stepwire_broker.core import explain
from stepwire_broker.core.backlog import counting, demand
from stepwire_broker.core.brokers.listeners import BrokerEndpoints
from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.guards.guard import Guard
from stepwire_broker.core.lanes import darkness
from stepwire_broker.core.loading.residency import restored
from stepwire_broker.core.membership.cluster_rows import ALL, BrokerRow
from stepwire_broker.core.membership.notifications import NotificationCounts
from stepwire_broker.core.model.figures import Figures
from stepwire_broker.core.model.live import Step, StepProgress, Task
from stepwire_broker.core.model.principal import Grant, Rights
from stepwire_broker.core.model.states import TaskState
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.model.worker_session import is_inner_name
from stepwire_broker.core.routing.router import Router
from stepwire_broker.core.shadows.shadow import Tally
from stepwire_broker.core.state import BrokerState, CoreCounters
from stepwire_broker.core.why import Why, WhyTask
from stepwire_broker.core.workers import authority
from stepwire_broker.core.workflow_warnings import WorkflowWarning, of_handlers

from . import reading
from .cluster_metrics import ClusterFigures, LaneFigures
from .engine_port import EnginePort

# -- workers ----------------------------------------------------------------------------------------------------------


class SessionView(NamedTuple):
    id: str
    free: int  # the number of further steps that the worker accepts


def session(broker: EnginePort, worker: str) -> SessionView | None:
    session = broker.state.sessions.get(worker)
    return None if session is None else SessionView(session.id, session.free)


def recovered_items(broker: EnginePort, worker: str) -> list[Item]:
    """Deliveries from before the broker started that this worker has not reported yet."""
    return [(step.id, step.delivery) for step in broker.state.recovered.get(worker, {}).values()]


def broker_of_session(broker: EnginePort, session: str) -> BrokerEndpoints | None:
    """The other live broker that this session is with. None: it is with this broker, or over."""
    epoch, _ = topics.session_parts(session)
    return next((other for other in broker.state.other_brokers if other.epoch == epoch), None)


def is_worker(broker: EnginePort, worker: str) -> bool:
    state = broker.state
    is_inner = is_inner_name(worker, broker.broker_id, state.router.executors)
    return is_inner or worker in state.sessions or worker in state.attached or worker in state.inboxes


def outside_grant(broker: EnginePort, grant: Grant, hello: Hello) -> str | None:
    """Return the first thing that a worker over HTTP offers and its token does not allow, or None."""
    rights = Rights(grant)
    name = hello.worker.partition(":")[0]
    if not rights.allows_worker(name):
        return f"the grant of `{grant.principal}` does not allow the worker name `{name}`"
    return authority.outside_grant(broker.state, rights, hello)


def may_hold_steps(broker: EnginePort, worker: str) -> bool:
    """True if the worker has a session, or may still run deliveries from before the broker started."""
    state = broker.state
    if worker in state.sessions:
        return True
    lanes = {step.task.lane for step in state.recovered.get(worker, {}).values()}
    return any(broker.now().mono < state.lanes[lane].safe_at_mono for lane in lanes)


# -- the broker -------------------------------------------------------------------------------------------------------


def is_shared(broker: EnginePort) -> bool:
    """True if other brokers can use the database."""
    return broker.state.is_shared


def is_elsewhere(broker: EnginePort, number: int) -> bool:
    """True if another broker owns the task or step that has this id, or if this broker does not know its owner."""
    return broker.state.is_shared and broker.state.lane_of(number) not in broker.state.lanes


def live_owner(broker: EnginePort, number: int) -> str | None:
    """The other broker that owns the task or step that has this id; None if no living one is known to own it."""
    lane, members = broker.state.lane_of(number), broker.state.members
    if members is None:
        return None
    alive = {row.id for row in members.live}
    return next((each.owner for each in members.lanes if each.lane == lane and each.owner in alive), None)


def is_foreign(broker: EnginePort, number: int) -> bool:
    """True if another broker owns the task or step that has this id."""
    return broker.state.is_foreign(number)


def is_draining(broker: EnginePort) -> bool:
    return broker.state.draining


def is_dark(broker: EnginePort) -> bool:
    """True if this broker could not renew its lease, so that another one may own its lanes."""
    return darkness.is_dark(broker.state, broker.now())


def known_workflows(broker: EnginePort) -> Iterable[tuple[str, str, str]]:
    """The stored versions of workflows as (namespace, name, version), in the order in which they were applied."""
    return broker.state.versions


def is_behind(broker: EnginePort) -> bool:
    """True if the broker accepts no results, because too many writes wait for the database."""
    return broker.state.outbox.bytes_waiting > broker.settings.limits.uncommitted_bytes


def lanes_by_owner(broker: EnginePort) -> dict[str, int]:
    """The number of lanes of each broker, as of the last beat; those of this one as they are now. Lanes without an
    owner are counted under ""."""
    state = broker.state
    counts = {broker.broker_id: len(state.lanes)}
    for row in () if state.members is None else state.members.lanes:
        if row.lane not in state.lanes:
            owner = "" if row.owner in (None, broker.broker_id) else row.owner
            counts[owner] = counts.get(owner, 0) + 1
    return counts


class BrokerView(NamedTuple):
    id: str
    epoch: int
    version: str
    is_answering: bool
    is_alive: bool
    beat_age_ms: int | None
    is_draining: bool
    open_steps: int
    workers: int
    http: str | None
    config_digest: str | None
    controls_revision: int


def brokers(broker: EnginePort, version: str) -> list[BrokerView]:
    """The brokers of the deployment by id, as of the last beat; this one, of this version, as it is now."""
    state = broker.state
    members = state.members
    rows = {} if members is None else {row.id: row for row in members.rows}
    own_row = rows.get(broker.broker_id)
    found = [
        BrokerView(
            broker.broker_id,
            broker.epoch,
            version,
            True,
            True,
            None if members is None else members.beat_age_ms(broker.now().mono),
            state.draining,
            state.open_steps,
            len(state.sessions) + len(state.level0.peers),
            None if own_row is None else own_row.http,
            None if own_row is None else own_row.config_digest,
            state.catalogue.revision,
        )
    ]
    found += [_other_broker(broker, row) for row in rows.values() if row.id != broker.broker_id]
    return sorted(found, key=lambda each: each.id)


def _other_broker(broker: EnginePort, row: BrokerRow) -> BrokerView:
    members = broker.state.members
    assert members is not None
    return BrokerView(
        row.id,
        row.epoch,
        row.version,
        False,
        any(each.id == row.id for each in members.live),
        members.silent_ms(row.id, broker.now().mono),
        row.is_draining,
        row.open_steps.get(ALL, 0),
        row.workers,
        row.http,
        row.config_digest,
        row.controls_revision,
    )


class OwnLaneView(NamedTuple):
    open_steps: int
    stalled: str | None


def own_lanes(broker: EnginePort) -> dict[int, OwnLaneView]:
    state = broker.state
    return {
        number: OwnLaneView(sum(lane.open_by_namespace.values()), state.outbox.lanes[number].stalled)
        for number, lane in state.lanes.items()
    }


# -- tasks in memory --------------------------------------------------------------------------------------------------


class LiveTask(NamedTuple):
    is_running: bool
    has_attention: bool
    steps: int
    context_bytes: int


def live_task(broker: EnginePort, task_id: int) -> LiveTask | None:
    task = broker.state.tasks.get(task_id)
    if task is None:
        return None
    is_running = task.state is TaskState.RUNNING
    return LiveTask(is_running, task.attention is not None, len(task.steps), task.context_bytes)


def task_of_open_step(broker: EnginePort, step_id: int) -> int | None:
    """The task of a step that is in memory and not final."""
    step = broker.state.steps.get(step_id)
    return None if step is None or step.is_final else step.task.id


def live(broker: EnginePort) -> reading.Live:
    """Data for documents of tasks and steps that is not in the database."""
    return reading.Live(broker.workflows, broker.state.progress)


def is_of_running_step(broker: EnginePort, report: StepProgress) -> bool:
    """True if the run that sent this report has not ended."""
    latest = broker.state.progress.get(report.step.id)
    return latest is not None and latest.delivery == report.delivery


def restored_task(task: StoredTask, steps: list[StoredStep], workflow: Workflow) -> Task:
    """The task as described by its rows. The caller must unlink the task after use."""
    return restored(workflow, task, steps)


def why_task(broker: EnginePort, task: Task) -> WhyTask:
    return explain.task(broker.state, task, broker.now())


def why_step(broker: EnginePort, step: Step) -> Why:
    return explain.step(broker.state, step, broker.now())


# -- routing and handlers ---------------------------------------------------------------------------------------------


def handler_warnings(broker: EnginePort, workflow: Workflow) -> list[WorkflowWarning]:
    """The handlers of the workflow that no connected worker offers now."""
    return of_handlers(broker.state, workflow)


def router(broker: EnginePort) -> Router:
    return broker.state.router


def canary_steps(broker: EnginePort) -> dict[str, list[int]]:
    """The number of steps dispatched to the canary and to the other side, by the rule's `match`."""
    return broker.state.canaries


class ShadowsView(NamedTuple):
    tallies: list[Tally]
    under_way: int


def shadows(broker: EnginePort) -> ShadowsView:
    shadows = broker.state.shadows
    return ShadowsView(list(shadows.tallies.values()), len(shadows.by_id))


def guards(broker: EnginePort) -> list[Guard]:
    """The guards of handlers that failed recently."""
    return list(broker.state.guards.by_handler.values())


# -- the backlog ------------------------------------------------------------------------------------------------------


def backlog(
    broker: EnginePort, kind: demand.WorkerKind, stored: list[demand.StoredLoad], oldest_stored_ms: int | None
) -> demand.Backlog:
    """The backlog of the deployment for workers of this kind, given what stored tasks wait for."""
    return demand.backlog(broker.state, kind, stored, oldest_stored_ms)


def is_split(broker: EnginePort, kind: demand.WorkerKind, wants: str) -> bool:
    """True if workers of this kind can take the steps of some workflows only, of those that wait for these handlers."""
    return demand.is_split(broker.state, kind, wants)


# -- figures for the metrics ------------------------------------------------------------------------------------------


class ReadyFigures(NamedTuple):
    steps: int
    oldest_ms: int  # the time at which the oldest step became ready, in UTC


class CoreFigures(NamedTuple):
    counters: CoreCounters
    ready: dict[str, ReadyFigures]  # by handler_class
    backlog: dict[tuple[str, str], int]  # by handler_class and state: steps that wait for a slot, or run
    executors: dict[str, Figures]
    canaries: dict[str, list[int]]
    tallies: list[Tally]
    guards: list[Guard]
    in_flight_steps: int
    open_steps: int
    open_steps_with_quota: dict[str, int]  # by namespace
    loaded_tasks: int
    unloaded_tasks: int
    sessions: int
    slots: int
    peers: int
    resident_bytes: int
    uncommitted_bytes: int
    is_stalled: bool
    is_draining: bool
    cluster: ClusterFigures


def figures(broker: EnginePort, handlers_max: int, other_handlers: str) -> CoreFigures:
    """At most `handlers_max` handler classes have their own figures. The rest are summed up as `other_handlers`."""
    state = broker.state
    dispatched = sum(len(session.deliveries) for session in state.sessions.values())
    dispatched += sum(map(len, state.recovered.values()))
    dispatched += sum(len(handout.items) for handout in state.level0.handouts.values())
    return CoreFigures(
        counters=state.counters,
        ready=ready_figures(state.ready.ready_counts(), handlers_max, other_handlers),
        backlog=_backlog_figures(state, handlers_max, other_handlers),
        executors={key: executor.figures for key, executor in state.executors.items()},
        canaries=state.canaries,
        tallies=list(state.shadows.tallies.values()),
        guards=list(state.guards.by_handler.values()),
        in_flight_steps=dispatched,
        open_steps=state.open_steps,
        open_steps_with_quota={name: state.open_by_namespace.get(name, 0) for name in state.quotas},
        loaded_tasks=len(state.tasks),
        unloaded_tasks=state.unloaded,
        sessions=len(state.sessions),
        slots=sum(session.slots for session in state.sessions.values()),
        peers=len(state.level0.peers),
        resident_bytes=state.resident_bytes,
        uncommitted_bytes=state.outbox.bytes_waiting,
        is_stalled=state.outbox.stalled is not None,
        is_draining=state.draining,
        cluster=_cluster(state, broker.measures.notifications, broker.now().mono),
    )


def _cluster(state: BrokerState, notifications: NotificationCounts, mono: int) -> ClusterFigures:
    members, counters = state.members, state.counters
    return ClusterFigures(
        lanes={number: _lane(state, number) for number in state.lanes},
        lane_changes=counters.lane_changes,
        live_brokers=1 if members is None else 1 + len(members.live),
        is_dark=members is not None and members.is_dark(mono),
        beat_age_ms=None if members is None else members.beat_age_ms(mono),
        orders_sent=counters.orders_sent,
        orders_answered=counters.orders_answered,
        notifications_sent=notifications.sent,
        notifications_received=notifications.received,
        is_listening=None if members is None else notifications.is_listening,
        loop_busy_s=time.thread_time(),
    )


def _lane(state: BrokerState, number: int) -> LaneFigures:
    lane = state.outbox.lanes[number]
    return LaneFigures(lane.committed, sum(state.lanes[number].open_by_namespace.values()), lane.stalled is not None)


def _backlog_figures(state: BrokerState, handlers_max: int, other_handlers: str) -> dict[tuple[str, str], int]:
    figures: dict[tuple[str, str], int] = {}
    for load in counting.in_memory(state):
        name = load.handler_class
        key = name if (name, "waiting") in figures or len(figures) < 2 * handlers_max else other_handlers
        for of, steps in (("waiting", load.waiting), ("running", load.running)):
            figures[key, of] = figures.get((key, of), 0) + steps
    return figures


def ready_figures(
    routes: Iterable[tuple[Route, int, int]], handlers_max: int, other_handlers: str
) -> dict[str, ReadyFigures]:
    ready: dict[str, ReadyFigures] = {}
    for route, count, since_ms in routes:
        name = route.handler_class
        key = name if name in ready or len(ready) < handlers_max else other_handlers
        steps, oldest_ms = ready.get(key, ReadyFigures(0, since_ms))
        ready[key] = ReadyFigures(steps + count, min(oldest_ms, since_ms))
    return ready
