"""`/metrics`, in the text format of Prometheus. The answer and the reference page are generated from one table.

Every value is read at the request: counters of the core, figures from memory, and one count from an index of the
database. No value depends on a commit, so the route also answers while the database does not.
"""

import asyncio
import importlib.metadata
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from stepwire_broker.bus.counters import WireCounters
from stepwire_broker.core.guards.breaker import BreakerPhase
from stepwire_broker.core.guards.guard import Guard
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.figures import Histogram
from stepwire_broker.core.overview import ExecutorView
from stepwire_broker.loop_measures import Measures as LoopMeasures
from stepwire_broker.posture import INSECURE

from . import core_views
from .bus_metrics import BUS_METRICS, Counted, ReadCounters
from .cluster_metrics import CLUSTER_METRICS, Gauged, ReadCluster
from .connections import HttpConnections
from .core_views import CoreFigures
from .engine_port import EnginePort
from .http import HttpCall
from .metric_text import Labels, Value, metric_text
from .pool_metrics import POOL_METRICS, PoolGauged, ReadPools
from .replies import Reply
from .request_counts import RequestCounts
from .shares import Shares

TEXT_FORMAT: Final = b"text/plain; version=0.0.4; charset=utf-8"
HANDLERS_MAX: Final = 500  # handler classes with their own figures; further classes are summed up
OTHER_HANDLERS: Final = "(others)"
READ_TIMEOUT_S: Final = 1.0
VERSION: Final = importlib.metadata.version("stepwire")

_BREAKER: Final[dict[BreakerPhase, int]] = {BreakerPhase.CLOSED: 0, BreakerPhase.HALF_OPEN: 1, BreakerPhase.OPEN: 2}

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Measured(NamedTuple):
    """The figures behind the metrics, read at one moment."""

    broker: EnginePort
    core: CoreFigures
    loop: LoopMeasures
    wire: WireCounters
    requests: RequestCounts
    usage: "Usage"
    held: int | None  # None when the database did not answer in time
    now: Now
    executors: list[ExecutorView]


def _of_wire(read: ReadCounters) -> Callable[[Measured], Counted]:
    return lambda measured: read(measured.wire)


def _of_cluster(read: ReadCluster) -> Callable[[Measured], Gauged]:
    return lambda measured: read(measured.core.cluster)


def _of_pools(read: ReadPools) -> Callable[[Measured], PoolGauged]:
    return lambda measured: read(measured.broker.coordinator, measured.now.mono)


def _refusals(measured: Measured) -> dict[str, int]:
    """Refusals by the bus, by the core and by the authenticator. Two of them may know the same code."""
    sources = (measured.wire.refused, measured.core.counters.refused, measured.wire.connections_refused)
    codes = {code for source in sources for code in source}
    return {code: sum(source.get(code, 0) for source in sources) for code in codes}


class Usage(NamedTuple):
    """The figures of the limits: shares of requests, connections and refusals."""

    shares: Shares
    connections: HttpConnections


class Metric(NamedTuple):
    name: str
    kind: Kind
    labels: Labels
    help: str
    read: Callable[[Measured], Iterable[tuple[Labels, Value | Histogram]] | Value | Histogram | None]


SHADOW_OUTCOMES: Final = ("equal", "differs", "failed", "not_compared", "lost", "dropped")


METRICS: Final[tuple[Metric, ...]] = (
    # ready, dispatched and open steps
    Metric(
        "stepwire_ready_steps",
        "gauge",
        ("handler_class",),
        "Ready steps in memory.",
        lambda m: [((name,), ready.steps) for name, ready in m.core.ready.items()],
    ),
    Metric(
        "stepwire_ready_oldest_age_seconds",
        "gauge",
        ("handler_class",),
        "Age of the oldest ready step.",
        lambda m: [((name,), _age_s(ready.oldest_ms, m.now)) for name, ready in m.core.ready.items()],
    ),
    Metric(
        "stepwire_in_flight_steps",
        "gauge",
        (),
        "Steps dispatched to workers, started or not.",
        lambda m: m.core.in_flight_steps,
    ),
    Metric(
        "stepwire_backlog_steps",
        "gauge",
        ("handler_class", "state"),
        "Steps in this broker's memory that wait for a slot (waiting), or occupy one (running).",
        lambda m: list(m.core.backlog.items()),
    ),
    Metric(
        "stepwire_held_steps",
        "gauge",
        (),
        "Steps with an unknown outcome that wait for an operator. Absent while the database cannot be read.",
        lambda m: m.held,
    ),
    Metric(
        "stepwire_open_steps",
        "gauge",
        (),
        "Steps that are not final, in memory or not; limited by limits.max_open_steps.",
        lambda m: m.core.open_steps,
    ),
    Metric(
        "stepwire_namespace_open_steps",
        "gauge",
        ("namespace",),
        "Steps that are not final, of namespaces with a quota; limited by max_open_steps of limits.namespaces.",
        lambda m: [((name,), steps) for name, steps in m.core.open_steps_with_quota.items()],
    ),
    Metric(
        "stepwire_open_tasks",
        "gauge",
        (),
        "Tasks that have not ended, in memory or not.",
        lambda m: m.core.loaded_tasks + m.core.unloaded_tasks,
    ),
    Metric(
        "stepwire_loaded_tasks",
        "gauge",
        (),
        "Tasks in memory; limited by limits.max_active_tasks.",
        lambda m: m.core.loaded_tasks,
    ),
    # since the broker started
    Metric(
        "stepwire_submitted_tasks_total",
        "counter",
        (),
        "Tasks stored. A submission whose idempotency key exists already stores none.",
        lambda m: m.core.counters.submitted,
    ),
    Metric(
        "stepwire_quota_refusals_total",
        "counter",
        ("namespace", "limit"),
        "Submissions that were refused because their namespace would exceed its quota, by the limit.",
        lambda m: list(m.core.counters.over_quota.items()),
    ),
    Metric(
        "stepwire_dispatched_steps_total",
        "counter",
        (),
        "Deliveries of steps to workers.",
        lambda m: m.core.counters.dispatched,
    ),
    Metric("stepwire_completed_steps_total", "counter", (), "Steps completed.", lambda m: m.core.counters.completed),
    Metric(
        "stepwire_failed_steps_total",
        "counter",
        (),
        "Steps that failed and are not retried.",
        lambda m: m.core.counters.failed,
    ),
    Metric(
        "stepwire_held_steps_total",
        "counter",
        (),
        "Steps that became held.",
        lambda m: m.core.counters.held,
    ),
    Metric(
        "stepwire_erased_tasks_total",
        "counter",
        (),
        "Tasks whose payloads an operator erased.",
        lambda m: m.core.counters.erased,
    ),
    Metric(
        "stepwire_retries_total",
        "counter",
        (),
        "Failed attempts that are followed by another attempt.",
        lambda m: m.core.counters.retried,
    ),
    Metric(
        "stepwire_redeliveries_total",
        "counter",
        (),
        "Deliveries without a result, after which the step went back to the queue.",
        lambda m: m.core.counters.redelivered,
    ),
    Metric(
        "stepwire_retransmissions_total",
        "counter",
        (),
        "Batches sent again because no answer had arrived.",
        lambda m: m.core.counters.retransmitted,
    ),
    Metric(
        "stepwire_late_results_total",
        "counter",
        (),
        "Results of deliveries that were no longer current.",
        lambda m: m.core.counters.late_results,
    ),
    # workers
    Metric("stepwire_sessions", "gauge", (), "Live worker sessions.", lambda m: m.core.sessions),
    Metric(
        "stepwire_worker_slots",
        "gauge",
        (),
        "Slots of all live sessions together.",
        lambda m: m.core.slots,
    ),
    Metric(
        "stepwire_sessions_opened_total",
        "counter",
        (),
        "Worker sessions opened.",
        lambda m: m.core.counters.sessions_opened,
    ),
    Metric(
        "stepwire_lease_expiries_total",
        "counter",
        (),
        "Sessions that ended because their worker was silent for a whole lease.",
        lambda m: m.core.counters.lease_expiries,
    ),
    Metric(
        "stepwire_audit_rows_total",
        "counter",
        (),
        "Rows that were added to the audit.",
        lambda m: m.core.counters.audited,
    ),
    Metric(
        "stepwire_worker_deaths_proven_total",
        "counter",
        (),
        "Workers whose process was found to have ended.",
        lambda m: m.core.counters.deaths_proven,
    ),
    Metric(
        "stepwire_peers",
        "gauge",
        (),
        "Level-0 handlers: those that only subscribe to steps.",
        lambda m: m.core.peers,
    ),
    Metric(
        "stepwire_peer_expiries_total",
        "counter",
        (),
        "Batches that a level-0 handler did not answer within their lease.",
        lambda m: m.core.counters.level0_expiries,
    ),
    Metric(
        "stepwire_peer_unknown_handlers_total",
        "counter",
        (),
        "Steps that a level-0 handler returned because it does not know their handler. They are dispatched again.",
        lambda m: m.core.counters.level0_unknown,
    ),
    # breakers and retry budgets
    Metric(
        "stepwire_breaker_state",
        "gauge",
        ("handler_class",),
        "State of the breaker of a handler that failed recently: 0 closed, 1 half-open, 2 open.",
        lambda m: [((name,), _BREAKER[guard.breaker.state]) for name, guard in _guards(m)],
    ),
    Metric(
        "stepwire_breakers_opened_total",
        "counter",
        (),
        "Number of times that a breaker opened, over all handlers.",
        lambda m: m.core.counters.breakers_opened,
    ),
    Metric(
        "stepwire_probes_total",
        "counter",
        (),
        "Trial steps dispatched while a breaker was half-open.",
        lambda m: m.core.counters.probes,
    ),
    Metric(
        "stepwire_infrastructure_failures_total",
        "counter",
        (),
        "Failures that breakers count: of sessions, deliveries and results, and those of the category `unavailable`.",
        lambda m: m.core.counters.infrastructure_failures,
    ),
    Metric(
        "stepwire_retry_budget_room",
        "gauge",
        ("handler_class",),
        "Number of retries of a handler that may be dispatched now; at 0 they wait.",
        lambda m: [((name,), guard.budget.room(m.now.mono)) for name, guard in _guards(m) if guard.budget is not None],
    ),
    # the database and memory
    Metric(
        "stepwire_commit_duration_seconds",
        "histogram",
        (),
        "Time from passing a commit group to the writer until the event loop knows that the group is durable.",
        lambda m: m.loop.commit_s,
    ),
    Metric(
        "stepwire_group_rows",
        "histogram",
        (),
        "Rows that one transaction writes.",
        lambda m: m.loop.group_rows,
    ),
    Metric(
        "stepwire_database_stalls_total",
        "counter",
        ("code",),
        "Number of times that the database stopped accepting writes.",
        lambda m: [((code,), count) for code, count in m.loop.stalls.items()],
    ),
    Metric(
        "stepwire_database_stalled",
        "gauge",
        (),
        "1 while the database accepts no writes.",
        lambda m: int(m.core.is_stalled),
    ),
    Metric(
        "stepwire_resident_bytes",
        "gauge",
        (),
        "Bytes of contexts and outputs in memory; limited by limits.active_bytes.",
        lambda m: m.core.resident_bytes,
    ),
    Metric(
        "stepwire_uncommitted_bytes",
        "gauge",
        (),
        "Bytes of writes that wait for the database; limited by limits.uncommitted_bytes.",
        lambda m: m.core.uncommitted_bytes,
    ),
    # the event loop
    Metric(
        "stepwire_loop_lag_seconds",
        "histogram",
        (),
        "Delay of the event loop, measured four times a second.",
        lambda m: m.loop.loop_lag_s,
    ),
    Metric(
        "stepwire_draining",
        "gauge",
        (),
        "1 while the broker drains and accepts no new work.",
        lambda m: int(m.core.is_draining),
    ),
    *(Metric(one.name, one.kind, one.labels, one.help, _of_cluster(one.read)) for one in CLUSTER_METRICS),
    *(Metric(one.name, one.kind, one.labels, one.help, _of_pools(one.read)) for one in POOL_METRICS),
    Metric(
        "stepwire_broker_info",
        "gauge",
        ("broker", "version", "epoch"),
        "Always 1. The labels are the broker's id, its version, and the number of its start.",
        lambda m: [((m.broker.broker_id, VERSION, str(m.broker.epoch)), 1)],
    ),
    # executors
    Metric(
        "stepwire_executor_active_steps",
        "gauge",
        ("executor",),
        "Steps dispatched to an executor and not answered.",
        lambda m: [((one.executor,), one.active) for one in m.executors],
    ),
    Metric(
        "stepwire_executor_max_concurrent",
        "gauge",
        ("executor",),
        "Number of steps that an executor runs at a time.",
        lambda m: [((one.executor,), one.max_concurrent) for one in m.executors],
    ),
    Metric(
        "stepwire_executor_paused",
        "gauge",
        ("executor",),
        "1 while an operator has paused the executor.",
        lambda m: [((one.executor,), int(one.paused_since_ms is not None)) for one in m.executors],
    ),
    Metric(
        "stepwire_executor_executed_total",
        "counter",
        ("executor",),
        "Runs of an executor that have ended, with any outcome.",
        lambda m: [((key,), of.executed) for key, of in m.core.executors.items()],
    ),
    Metric(
        "stepwire_executor_failed_total",
        "counter",
        ("executor",),
        "Runs of an executor that did not complete.",
        lambda m: [((key,), of.failed) for key, of in m.core.executors.items()],
    ),
    Metric(
        "stepwire_executor_duration_seconds",
        "histogram",
        ("executor",),
        "Duration of an executor's runs.",
        lambda m: [((key,), of.duration_s) for key, of in m.core.executors.items()],
    ),
    # routing
    Metric(
        "stepwire_unroutable_steps",
        "gauge",
        ("executor", "handler_class"),
        "Steps that have been ready for longer than dispatch.unroutable_after_ms without a worker for them.",
        lambda m: [((e.executor, e.handler_class), e.steps) for e in m.broker.unroutable][:HANDLERS_MAX],
    ),
    Metric(
        "stepwire_canary_steps_total",
        "counter",
        ("match", "side"),
        "Steps of rules with a canary, by the side that they were dispatched to.",
        lambda m: [
            ((match, side), counts[i])
            for match, counts in m.core.canaries.items()
            for i, side in enumerate(("canary", "other"))
        ],
    ),
    Metric(
        "stepwire_shadows_total",
        "counter",
        ("match", "outcome"),
        "Shadow copies of steps, by the outcome of the comparison.",
        lambda m: _shadows(m),
    ),
    # the bus
    *(Metric(one.name, one.kind, (one.label,), one.help, _of_wire(one.read)) for one in BUS_METRICS),
    Metric(
        "stepwire_bus_refusals_total",
        "counter",
        ("code",),
        "Messages, subscriptions and connections that were refused.",
        lambda m: [((code,), n) for code, n in sorted(_refusals(m).items())],
    ),
    Metric(
        "stepwire_insecure",
        "gauge",
        ("what",),
        f"1 for what is open to other users or hosts: {', '.join(INSECURE)}.",
        lambda m: [((what,), int(what in m.broker.insecure())) for what in INSECURE],
    ),
    # HTTP
    Metric(
        "stepwire_http_requests_total",
        "counter",
        ("route", "method", "status"),
        "Requests answered. The route `none` is an unknown path, or a request that access control refused.",
        lambda m: [((route, method, str(code)), n) for (route, method, code), n in m.requests.counts.items()],
    ),
    Metric(
        "stepwire_http_refusals_total",
        "counter",
        ("limit",),
        "Refused requests and closed connections, by the exceeded limit; see docs/operating/http-limits.md.",
        lambda m: [((limit,), n) for limit, n in sorted(m.usage.shares.refusals.counts.items())],
    ),
    Metric(
        "stepwire_http_open",
        "gauge",
        ("what",),
        "Open connections, requests in progress, requests that only wait, and streams, which also wait.",
        lambda m: [
            (("connections",), m.usage.connections.count),
            (("requests",), m.usage.shares.requests),
            (("waits",), m.usage.shares.waits),
            (("streams",), m.usage.shares.streams),
        ],
    ),
    Metric(
        "stepwire_http_bytes",
        "gauge",
        ("what",),
        "Bytes of large request bodies in progress (bodies), and of answers that clients do not accept (unread).",
        lambda m: [
            (("bodies",), m.usage.shares.body_bytes),
            (("unread",), m.usage.connections.unread_bytes),
        ],
    ),
)


async def show(call: HttpCall, requests: RequestCounts, usage: Usage) -> Reply:
    call.query()
    broker = call.broker
    held = await _held(broker)
    measured = Measured(
        broker,
        core_views.figures(broker, HANDLERS_MAX, OTHER_HANDLERS),
        broker.measures,
        broker.wire_counters,
        requests,
        usage,
        held,
        broker.now(),
        broker.executors(),
    )
    return Reply(
        200,
        b"".join(
            metric_text(metric.name, metric.kind, metric.help, metric.labels, metric.read(measured))
            for metric in METRICS
        ),
        TEXT_FORMAT,
    )


async def _held(broker: EnginePort) -> int | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await broker.read(lambda queries: queries.held_count())
    except Exception:  # still report the other metrics: they are needed most when the database has a problem
        return None


def _guards(m: Measured) -> list[tuple[str, Guard]]:
    """At most HANDLERS_MAX guards by handler class. Guards whose breaker is not closed come first."""
    guards = sorted(m.core.guards, key=lambda guard: -_BREAKER[guard.breaker.state])
    return [(guard.handler_class, guard) for guard in guards[:HANDLERS_MAX]]


def _shadows(m: Measured) -> list[tuple[Labels, int]]:
    counts: dict[tuple[str, str], int] = {}
    for tally in m.core.tallies:
        for outcome in SHADOW_OUTCOMES:
            key = (tally.match, outcome)
            counts[key] = counts.get(key, 0) + getattr(tally, outcome)
    return list(counts.items())


def _age_s(since_ms: int, now: Now) -> float:
    return max(0, now.wall - since_ms) / 1000
