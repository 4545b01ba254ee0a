"""`/v1/workers`: the live sessions, which only the broker's memory knows."""

from typing import Final

from msgspec import Struct, structs

from stepwire_broker.core.model.answers import Quieted
from stepwire_broker.core.overview import WorkerView
from stepwire_broker.stages import requests

from .documents import rfc3339
from .http import HttpCall, Reply, encode

ORDER_BYTES_MAX: Final = 64 * 1024


class WorkerDocument(Struct, frozen=True, kw_only=True):
    """A live session, or at `level` 0 a handler that only subscribes steps. `free` is how many more steps it takes now;
    `holding` and `running` are of this broker. `stuck`: what it runs is past its time."""

    worker: str
    executor: str
    level: int
    session: str
    since: str
    heard_ms_ago: int
    handlers: list[str]
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
    pid: int


class WorkerList(Struct, frozen=True):
    broker: str
    epoch: int
    workers: list[WorkerDocument]


async def all_of_them(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    return Reply(200, encode(WorkerList(broker.broker_id, broker.epoch, [_shown(one) for one in broker.workers()])))


class WorkerDrains(Struct, frozen=True):
    worker: str
    quit: bool


async def drain(call: HttpCall) -> Reply:
    """Nothing new for this worker; with `quit`, it is told to go once it holds nothing."""
    call.query()
    body = await call.body(ORDER_BYTES_MAX)
    make = requests.drain_worker(body, call.scope["path_params"]["worker"], call.broker.settings.limits)
    done = await call.ask(make, Quieted)
    return Reply(200, encode(WorkerDrains(done.worker, done.quit)))


def _shown(worker: WorkerView) -> WorkerDocument:
    """Times are RFC 3339 here, as everywhere in the API."""
    members = structs.asdict(worker)
    return WorkerDocument(since=rfc3339(members.pop("since_ms")), **members)
