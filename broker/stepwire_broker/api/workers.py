"""`/v1/workers`: the live workers, which are in the broker's memory only."""

from msgspec import Struct, structs

from stepwire_broker.core.overview import WorkerView
from stepwire_broker.timestamps import rfc3339

from .http import HttpCall
from .replies import Reply, encode


class RunningStep(Struct, frozen=True, kw_only=True):
    """A running step that reports progress, with its latest report."""

    task_id: int
    step_id: int
    step: str
    done: float
    total: float | None
    note: str | None
    at: str


class WorkerDocument(Struct, frozen=True, kw_only=True):
    """A live session, or at `level` 0 a handler that only subscribes to steps. `free`: the number of further steps that
    the worker accepts now. `holding` and `running`: the number of steps of this broker that the worker holds and runs.
    `handlers`: the handlers that the worker offers, or at level 0 the setting `bus.level0.handlers`.
    `unknown_handlers`: of those, the handlers that it answered with `unknown_handler`, so it gets no such steps while
    it is connected. `stuck`: runs past their timeout occupy all slots, so the worker receives no steps.
    `death_provable`: if its process is killed, the operating system proves that, and its steps run again at once;
    otherwise at the end of its lease, for the reason in `death_unprovable_because`. `progress`: the latest progress
    reports of the steps that it runs, at most 20, the newest first. `principal`: the identity that its connection
    proved. `host` and `pid`: the machine and the process, as the worker identifies them.
    `disconnections`: the number of connections of this principal that the bus ended in the last ten minutes, by
    reason, as in `stepwire_bus_disconnections_total`. `brokers`: while several brokers are alive, those with which the
    worker has a session; `missing_brokers`: the other live ones, whose steps do not reach the worker."""

    worker: str
    principal: str
    disconnections: dict[str, int]
    executor: str
    level: int
    session: str
    since: str
    heard_ms_ago: int
    handlers: list[str]
    unknown_handlers: list[str]
    labels: dict[str, str]
    slots: int
    prefetch: int
    free: int
    holding: int
    running: int
    draining: bool
    stuck: bool
    completed: int
    failed: int
    lang: str
    sdk: str
    host: str
    pid: int
    death_provable: bool
    death_unprovable_because: str | None
    progress: list[RunningStep]
    brokers: list[str]
    missing_brokers: list[str]


class WorkerList(Struct, frozen=True):
    """`disconnections`: the connections that the bus ended in the last ten minutes, by principal and reason. A
    principal without a name is unknown: its connection had sent nothing."""

    broker: str
    epoch: int
    workers: list[WorkerDocument]
    disconnections: dict[str, dict[str, int]]


async def page(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    ended = broker.wire_counters.recent_disconnections()
    workers = [_shown(one, ended.get(one.principal, {})) for one in broker.workers()]
    return Reply(200, encode(WorkerList(broker.broker_id, broker.epoch, workers, ended)))


def _shown(worker: WorkerView, disconnections: dict[str, int]) -> WorkerDocument:
    """The worker with times in RFC 3339."""
    members = structs.asdict(worker)
    unprovable = members.pop("unprovable")
    members["death_provable"], members["death_unprovable_because"] = unprovable is None, unprovable
    members["progress"] = [
        RunningStep(
            task_id=report.step.task.id,
            step_id=report.step.id,
            step=report.step.definition.name,
            done=report.done,
            total=report.total,
            note=report.note,
            at=rfc3339(report.at_ms),
        )
        for report in worker.progress
    ]
    members["disconnections"] = disconnections
    return WorkerDocument(since=rfc3339(members.pop("since_ms")), **members)
