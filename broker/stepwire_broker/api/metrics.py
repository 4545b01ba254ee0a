"""`/metrics`, in the text format of Prometheus. The table is all there is: it is asked, it is documented, it is tested.

Everything is read when somebody asks: from counts that the core keeps anyway, from what is in memory, and one count
from an index of the database. Nothing here depends on a commit, so it also answers while the database does not.
"""

import asyncio
import importlib.metadata
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from stepwire_broker.bus.wire import WireCounters
from stepwire_broker.core.guards.breaker import BreakerPhase
from stepwire_broker.core.guards.guard import Guard
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.figures import DURATION_S, Histogram
from stepwire_broker.core.overview import ExecutorView
from stepwire_broker.core.routing.ready_queue import handler_of
from stepwire_broker.core.state import BrokerState, CoreCounters
from stepwire_broker.loop_measures import COMMIT_S, GROUP_ROWS, LOOP_LAG_S, Measures

from .engine_port import EnginePort
from .http import HttpCall
from .replies import Reply
from .request_counts import RequestCounts

TEXT_FORMAT: Final = b"text/plain; version=0.0.4; charset=utf-8"
HANDLERS_MAX: Final = 500  # handler classes with a number of their own; what is ready of the others is added up
THE_OTHERS: Final = "(others)"
READ_TIMEOUT_S: Final = 1.0
VERSION: Final = importlib.metadata.version("stepwire")

_BREAKER: Final[dict[BreakerPhase, int]] = {BreakerPhase.CLOSED: 0, BreakerPhase.HALF_OPEN: 1, BreakerPhase.OPEN: 2}

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class MetricsView(NamedTuple):
    """What the metrics are read from."""

    broker: EnginePort
    state: BrokerState
    counters: CoreCounters
    measures: Measures
    wire: WireCounters
    requests: RequestCounts
    ready: dict[str, tuple[int, int]]  # by handler_class: how many, and since when (UTC) the oldest
    held: int | None  # None when the database did not answer in time
    now: Now
    executors: list[ExecutorView]


class Metric(NamedTuple):
    name: str
    kind: Kind
    labels: Labels
    help: str
    read: Callable[[MetricsView], Iterable[tuple[Labels, Value | Histogram]] | Value | Histogram | None]


SHADOW_OUTCOMES: Final = ("equal", "differs", "failed", "not_compared", "lost", "dropped")


def _shadows(seen: "MetricsView") -> list[tuple[tuple[str, str], int]]:
    found: dict[tuple[str, str], int] = {}
    for tally in seen.state.shadows.tallies.values():
        for outcome in SHADOW_OUTCOMES:
            key = (tally.match, outcome)
            found[key] = found.get(key, 0) + getattr(tally, outcome)
    return list(found.items())


METRICS: Final[tuple[Metric, ...]] = (
    # what waits, and what is under way
    Metric(
        "stepwire_ready_steps",
        "gauge",
        ("handler_class",),
        "Steps in memory that may run and wait for a worker.",
        lambda seen: [((name,), count) for name, (count, _) in seen.ready.items()],
    ),
    Metric(
        "stepwire_ready_oldest_age_seconds",
        "gauge",
        ("handler_class",),
        "For how long the oldest of them has been waiting.",
        lambda seen: [((name,), _age_s(since, seen.now)) for name, (_, since) in seen.ready.items()],
    ),
    Metric(
        "stepwire_in_flight_steps",
        "gauge",
        (),
        "Steps handed to a worker, whether started or not.",
        lambda seen: (
            sum(len(s.deliveries) for s in seen.state.sessions.values())
            + sum(map(len, seen.state.recovered.values()))
            + sum(len(handout.items) for handout in seen.state.level0.handouts.values())
        ),
    ),
    Metric(
        "stepwire_held_steps",
        "gauge",
        (),
        "Steps whose outcome is unknown and that wait for an operator. Absent while the database cannot be read.",
        lambda seen: seen.held,
    ),
    Metric(
        "stepwire_open_steps",
        "gauge",
        (),
        "Steps that are not final, in memory or not: what limits.max_open_steps limits.",
        lambda seen: seen.state.open_steps,
    ),
    Metric(
        "stepwire_open_tasks",
        "gauge",
        (),
        "Tasks that have not ended, in memory or not.",
        lambda seen: len(seen.state.tasks) + seen.state.unloaded,
    ),
    Metric(
        "stepwire_loaded_tasks",
        "gauge",
        (),
        "Tasks in memory: what limits.max_active_tasks limits.",
        lambda seen: len(seen.state.tasks),
    ),
    # what happened since the broker started
    Metric(
        "stepwire_submitted_tasks_total",
        "counter",
        (),
        "Tasks that were stored; a submission whose key was known is none.",
        lambda seen: seen.counters.submitted,
    ),
    Metric(
        "stepwire_dispatched_steps_total",
        "counter",
        (),
        "Steps handed to workers, each hand-over counted.",
        lambda seen: seen.counters.dispatched,
    ),
    Metric("stepwire_completed_steps_total", "counter", (), "Steps completed.", lambda seen: seen.counters.completed),
    Metric(
        "stepwire_failed_steps_total",
        "counter",
        (),
        "Steps that failed for good.",
        lambda seen: seen.counters.failed,
    ),
    Metric(
        "stepwire_held_steps_total",
        "counter",
        (),
        "Steps that became held.",
        lambda seen: seen.counters.held,
    ),
    Metric(
        "stepwire_retries_total",
        "counter",
        (),
        "Failed attempts after which another one follows.",
        lambda seen: seen.counters.retried,
    ),
    Metric(
        "stepwire_redeliveries_total",
        "counter",
        (),
        "Hand-overs that came to nothing, so that the step went back to the queue.",
        lambda seen: seen.counters.redelivered,
    ),
    Metric(
        "stepwire_retransmissions_total",
        "counter",
        (),
        "Batches sent again because no answer had come.",
        lambda seen: seen.counters.retransmitted,
    ),
    Metric(
        "stepwire_late_results_total",
        "counter",
        (),
        "Results of a delivery that was not the current one any more.",
        lambda seen: seen.counters.late_results,
    ),
    # workers
    Metric("stepwire_sessions", "gauge", (), "Live worker sessions.", lambda seen: len(seen.state.sessions)),
    Metric(
        "stepwire_worker_slots",
        "gauge",
        (),
        "Slots of all live sessions together.",
        lambda seen: sum(s.slots for s in seen.state.sessions.values()),
    ),
    Metric(
        "stepwire_sessions_opened_total",
        "counter",
        (),
        "Worker sessions opened.",
        lambda seen: seen.counters.sessions_opened,
    ),
    Metric(
        "stepwire_lease_expiries_total",
        "counter",
        (),
        "Sessions that ended because their worker was silent for a whole lease.",
        lambda seen: seen.counters.lease_expiries,
    ),
    Metric(
        "stepwire_worker_deaths_proven_total",
        "counter",
        (),
        "Workers whose process was found to be gone.",
        lambda seen: seen.counters.deaths_proven,
    ),
    Metric(
        "stepwire_peers",
        "gauge",
        (),
        "Level-0 handlers: those that only subscribe steps.",
        lambda seen: len(seen.state.level0.peers),
    ),
    Metric(
        "stepwire_peer_expiries_total",
        "counter",
        (),
        "Batches that a level-0 handler did not answer within their lease.",
        lambda seen: seen.counters.level0_expiries,
    ),
    # handlers that fail
    Metric(
        "stepwire_breaker_state",
        "gauge",
        ("handler_class",),
        "The breaker of a handler that failed lately: 0 closed, 1 half-open, 2 open.",
        lambda seen: [((name,), _BREAKER[guard.breaker.state]) for name, guard in _guards(seen)],
    ),
    Metric(
        "stepwire_breakers_opened_total",
        "counter",
        (),
        "How often a breaker opened, of whatever handler.",
        lambda seen: seen.counters.breakers_opened,
    ),
    Metric(
        "stepwire_probes_total",
        "counter",
        (),
        "Steps that were handed out to try a handler whose breaker was half-open.",
        lambda seen: seen.counters.probes,
    ),
    Metric(
        "stepwire_infrastructure_failures_total",
        "counter",
        (),
        "Failures that breakers count: of sessions, deliveries and results, and those of the category `unavailable`.",
        lambda seen: seen.counters.infrastructure_failures,
    ),
    Metric(
        "stepwire_retry_budget_room",
        "gauge",
        ("handler_class",),
        "How many retries of a handler may be handed out now; at 0 they wait.",
        lambda seen: [
            ((name,), guard.budget.room(seen.now.mono)) for name, guard in _guards(seen) if guard.budget is not None
        ],
    ),
    # the database, and the memory that waits for it
    Metric(
        "stepwire_commit_duration_seconds",
        "histogram",
        (),
        "From a group's hand-over to its writer until the loop hears that it is durable.",
        lambda seen: seen.measures.commit_s,
    ),
    Metric(
        "stepwire_group_rows",
        "histogram",
        (),
        "Rows that one transaction writes.",
        lambda seen: seen.measures.group_rows,
    ),
    Metric(
        "stepwire_database_stalls_total",
        "counter",
        ("code",),
        "Times that the database began to take no writes.",
        lambda seen: [((code,), count) for code, count in seen.measures.stalls.items()],
    ),
    Metric(
        "stepwire_database_stalled",
        "gauge",
        (),
        "1 while the database takes no writes.",
        lambda seen: int(seen.state.stalled is not None),
    ),
    Metric(
        "stepwire_resident_bytes",
        "gauge",
        (),
        "Contexts and outputs kept in memory: what limits.active_bytes limits.",
        lambda seen: seen.state.resident_bytes,
    ),
    Metric(
        "stepwire_uncommitted_bytes",
        "gauge",
        (),
        "Writes that wait for the database: what limits.uncommitted_bytes limits.",
        lambda seen: seen.state.outbox.bytes_waiting,
    ),
    # the loop
    Metric(
        "stepwire_loop_lag_seconds",
        "histogram",
        (),
        "How late the event loop was at its pulse, four times a second.",
        lambda seen: seen.measures.loop_lag_s,
    ),
    Metric(
        "stepwire_draining",
        "gauge",
        (),
        "1 while the broker stops and takes nothing new.",
        lambda seen: int(seen.state.draining),
    ),
    Metric(
        "stepwire_broker_info",
        "gauge",
        ("broker", "version", "epoch"),
        "Always 1: which broker this is, of what version, and which start of it.",
        lambda seen: [((seen.broker.broker_id, VERSION, str(seen.broker.epoch)), 1)],
    ),
    # executors
    Metric(
        "stepwire_executor_active_steps",
        "gauge",
        ("executor",),
        "Steps that an executor has been handed and has not answered.",
        lambda seen: [((one.executor,), one.active) for one in seen.executors],
    ),
    Metric(
        "stepwire_executor_max_concurrent",
        "gauge",
        ("executor",),
        "How many it runs at a time.",
        lambda seen: [((one.executor,), one.max_concurrent) for one in seen.executors],
    ),
    Metric(
        "stepwire_executor_paused",
        "gauge",
        ("executor",),
        "1 while an operator has paused it.",
        lambda seen: [((one.executor,), int(one.paused_since_ms is not None)) for one in seen.executors],
    ),
    Metric(
        "stepwire_executor_executed_total",
        "counter",
        ("executor",),
        "Runs that it has answered for, however they ended.",
        lambda seen: [((key,), of.figures.executed) for key, of in seen.state.executors.items()],
    ),
    Metric(
        "stepwire_executor_failed_total",
        "counter",
        ("executor",),
        "Those of them that did not complete.",
        lambda seen: [((key,), of.figures.failed) for key, of in seen.state.executors.items()],
    ),
    Metric(
        "stepwire_executor_duration_seconds",
        "histogram",
        ("executor",),
        "How long its runs took.",
        lambda seen: [((key,), of.figures.duration_s) for key, of in seen.state.executors.items()],
    ),
    # routing
    Metric(
        "stepwire_unroutable_steps",
        "gauge",
        ("executor", "handler_class"),
        "Steps that have been ready for too long without anybody who could take them.",
        lambda seen: [((e.executor, e.handler_class), e.steps) for e in seen.broker.unroutable][:HANDLERS_MAX],
    ),
    Metric(
        "stepwire_canary_steps_total",
        "counter",
        ("match", "side"),
        "Steps of rules with a canary, by the side they went to.",
        lambda seen: [
            ((match, side), counts[i])
            for match, counts in seen.state.canaries.items()
            for i, side in enumerate(("canary", "other"))
        ],
    ),
    Metric(
        "stepwire_shadows_total",
        "counter",
        ("match", "outcome"),
        "Copies of steps, by how they compared.",
        _shadows,
    ),
    # the bus
    Metric(
        "stepwire_bus_messages_total",
        "counter",
        ("direction",),
        "Messages of the bus.",
        lambda seen: [(("in",), seen.wire.received), (("out",), seen.wire.sent)],
    ),
    Metric(
        "stepwire_bus_bytes_total",
        "counter",
        ("direction",),
        "Their bytes.",
        lambda seen: [(("in",), seen.wire.received_bytes), (("out",), seen.wire.sent_bytes)],
    ),
    Metric(
        "stepwire_bus_refusals_total",
        "counter",
        ("code",),
        "Messages and subscriptions that were refused.",
        lambda seen: [((code,), n) for code, n in sorted((seen.wire.refused | seen.counters.refused).items())],
    ),
    Metric(
        "stepwire_bus_dropped_sends_total",
        "counter",
        ("reason",),
        "Messages that found no receiver (nobody), or one that reads too slowly (full).",
        lambda seen: [((reason,), n) for reason, n in seen.wire.dropped.items()],
    ),
    # HTTP
    Metric(
        "stepwire_http_requests_total",
        "counter",
        ("route", "method", "status"),
        "RequestCounts that were answered; route `none` is a path that there is not, or a request refused at the gate.",
        lambda seen: [((route, method, str(code)), n) for (route, method, code), n in seen.requests.counts.items()],
    ),
)


async def show(call: HttpCall, requests: RequestCounts) -> Reply:
    """What a scraper reads."""
    call.query()
    broker, state = call.broker, call.broker.state
    held = await _held(broker)
    ready = _ready(state)
    seen = MetricsView(
        broker,
        state,
        state.counters,
        broker.measures,
        broker.wire_counters,
        requests,
        ready,
        held,
        broker.now(),
        broker.executors(),
    )
    return Reply(200, b"".join(_text(metric, seen) for metric in METRICS), TEXT_FORMAT)


async def _held(broker: EnginePort) -> int | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await broker.read(lambda queries: queries.held_count())
    except Exception:  # whatever is wrong with the database: the other numbers are wanted now more than ever
        return None


def _guards(seen: MetricsView) -> list[tuple[str, Guard]]:
    """Those that are not closed first, if there are too many."""
    guards = sorted(seen.state.guards.by_handler.items(), key=lambda each: -_BREAKER[each[1].breaker.state])
    return guards[:HANDLERS_MAX]


def _ready(state: BrokerState) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for route, count, since in state.ready.standing():
        name = handler_of(route)
        key = name if name in found or len(found) < HANDLERS_MAX else THE_OTHERS
        count_before, since_before = found.get(key, (0, since))
        found[key] = (count_before + count, min(since, since_before))
    return found


def _age_s(since_ms: int, now: Now) -> float:
    return max(0, now.wall - since_ms) / 1000


# -- the text format --------------------------------------------------------------------------------------------------


def _text(metric: Metric, seen: MetricsView) -> bytes:
    found = metric.read(seen)
    lines = [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    if isinstance(found, Histogram):
        lines += _histogram(metric.name, found)
    elif isinstance(found, int | float):
        lines.append(f"{metric.name} {_number(found)}")
    elif found is not None:
        for values, value in found:
            labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in zip(metric.labels, values, strict=True))
            if isinstance(value, Histogram):
                lines += _histogram(metric.name, value, labels)
            else:
                lines.append(f"{metric.name}{{{labels}}} {_number(value)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _histogram(name: str, histogram: Histogram, labels: str = "") -> list[str]:
    """Each count holds those below it: so the format wants it."""
    lines, below = [], 0
    before, whole = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{before}le="{"+Inf" if bound is None else _number(bound)}"}} {below}')
    return [*lines, f"{name}_sum{whole} {_number(histogram.total)}", f"{name}_count{whole} {below}"]


def _number(value: Value) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# -- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    """docs/reference/metrics.md"""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics`, with a token like every route, in the text format of Prometheus. Generated from the table in",
        "`stepwire_broker/api/metrics.py` by `python -m stepwire_broker.api.reference`.",
        "",
        "Counters begin at 0 with each start of the broker. A series appears when it has something to count.",
        "",
        "| name | kind | labels | says |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    bounds = [
        "",
        "| histogram | upper bounds |",
        "|---|---|",
        *(f"| `{name}` | {', '.join(map(_number, bounds))} |" for name, bounds in _BOUNDS.items()),
    ]
    return "\n".join([*lines, *bounds, ""])


_BOUNDS: Final = {
    "stepwire_commit_duration_seconds": COMMIT_S,
    "stepwire_group_rows": GROUP_ROWS,
    "stepwire_loop_lag_seconds": LOOP_LAG_S,
    "stepwire_executor_duration_seconds": DURATION_S,
}
