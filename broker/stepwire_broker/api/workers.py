"""`/v1/workers`: the live sessions, which only the broker's memory knows."""

from msgspec import Struct, structs

from stepwire_broker.core.overview import WorkerView
from stepwire_broker.timestamps import rfc3339

from .http import HttpCall
from .replies import Reply, encode


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


async def page(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    return Reply(200, encode(WorkerList(broker.broker_id, broker.epoch, [_shown(one) for one in broker.workers()])))


def _shown(worker: WorkerView) -> WorkerDocument:
    """Times are RFC 3339 here, as everywhere in the API."""
    members = structs.asdict(worker)
    return WorkerDocument(since=rfc3339(members.pop("since_ms")), **members)
