"""`/v1/executors`: the executors with their state and counts."""

from msgspec import Struct, structs

from stepwire_broker.core.overview import ExecutorView
from stepwire_broker.timestamps import rfc3339

from . import http_problems
from .http import HttpCall
from .replies import Reply, encode


class ExecutorDocument(Struct, frozen=True, kw_only=True):
    """An executor, with its counts since the broker started. `is_hosted`: the executor runs inside the broker and
    reports its own counts; for other executors the broker counts results. `active`: dispatched steps without a result.
    `total_executed` includes `total_failed`. A pause outlives a restart of the broker."""

    executor: str
    is_hosted: bool
    paused_since: str | None
    workers: int
    handlers: list[str]
    has_capacity: bool
    active: int
    max_concurrent: int
    total_executed: int
    total_failed: int
    mean_ms: float | None
    p95_ms: float | None


class ExecutorList(Struct, frozen=True):
    broker: str
    epoch: int
    executors: list[ExecutorDocument]


async def page(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    return Reply(200, encode(ExecutorList(broker.broker_id, broker.epoch, [_shown(one) for one in broker.executors()])))


async def show(call: HttpCall) -> Reply:
    call.query()
    return Reply(200, encode(_shown(named(call))))


def named(call: HttpCall) -> ExecutorView:
    key = call.scope["path_params"]["executor"]
    executors = call.broker.executors()
    executor = next((one for one in executors if one.executor == key), None)
    if executor is None:
        known = ", ".join(one.executor for one in executors)
        raise http_problems.HttpProblem(404, "not_found", f"there is no executor {key}", f"known executors: {known}")
    return executor


def _shown(executor: ExecutorView) -> ExecutorDocument:
    members = structs.asdict(executor)
    since_ms = members.pop("paused_since_ms")
    return ExecutorDocument(paused_since=None if since_ms is None else rfc3339(since_ms), **members)
