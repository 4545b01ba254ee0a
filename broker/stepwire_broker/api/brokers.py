"""`/v1/brokers` and `/v1/lanes`: the brokers of the deployment, and the lanes that each owns."""

from msgspec import Struct

from . import core_views
from .http import HttpCall
from .metrics import VERSION
from .replies import Reply, encode


class BrokerDocument(Struct, frozen=True, kw_only=True):
    """A broker, as its row described it at this broker's last look. `is_answering`: the broker that sends this answer.
    `beat_age_ms`: for how long that broker has seen no new beat of it; null on SQLite, where nothing beats. `is_alive`:
    false after a whole lease without a beat. `open_steps` are those of its own lanes. `workers`: sessions and level-0
    handlers. `config_differs`: its digest of the configuration is another one than that of the broker that answers,
    although routing and commands must be the same everywhere. `controls_revision`: the last change of rules, breakers,
    paused executors, drained workers and workflows that it uses."""

    broker: str
    epoch: int
    version: str
    is_answering: bool
    is_alive: bool
    beat_age_ms: int | None
    draining: bool
    lanes: list[int]
    open_steps: int
    workers: int
    http: str | None
    config_digest: str | None
    config_differs: bool
    controls_revision: int


class BrokerList(Struct, frozen=True):
    """`controls_revision`: the last change that is stored. Every broker uses it within moments."""

    broker: str
    epoch: int
    controls_revision: int
    brokers: list[BrokerDocument]


class LaneDocument(Struct, frozen=True, kw_only=True):
    """A lane: a fixed part of the database with one owner. `broker`: its owner, null if it has none now. `commits`: the
    number of its last transaction. `open_steps` and `stalled` are known of own lanes of the broker that answers."""

    lane: int
    broker: str | None
    epoch: int
    commits: int
    open_steps: int | None
    stalled: str | None


class LaneList(Struct, frozen=True):
    broker: str
    epoch: int
    lanes: list[LaneDocument]


async def page(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    owned: dict[str, list[int]] = {}
    for lane in await broker.read(lambda queries: queries.lanes()):
        if lane.owner is not None:
            owned.setdefault(lane.owner, []).append(lane.id)
    found = core_views.brokers(broker, VERSION)
    digest = next(each.config_digest for each in found if each.is_answering)
    revision = await broker.read(lambda queries: queries.controls_revision())
    shown = [_shown(each, owned.get(each.id, []), digest) for each in found]
    return Reply(200, encode(BrokerList(broker.broker_id, broker.epoch, revision, shown)))


async def lanes(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    own = core_views.own_lanes(broker)
    shown = [
        LaneDocument(
            lane=lane.id,
            broker=lane.owner,
            epoch=lane.epoch,
            commits=lane.seq,
            open_steps=own[lane.id].open_steps if lane.id in own else None,
            stalled=own[lane.id].stalled if lane.id in own else None,
        )
        for lane in await broker.read(lambda queries: queries.lanes())
    ]
    return Reply(200, encode(LaneList(broker.broker_id, broker.epoch, shown)))


def _shown(view: core_views.BrokerView, lanes: list[int], digest: str | None) -> BrokerDocument:
    return BrokerDocument(
        broker=view.id,
        epoch=view.epoch,
        version=view.version,
        is_answering=view.is_answering,
        is_alive=view.is_alive,
        beat_age_ms=view.beat_age_ms,
        draining=view.is_draining,
        lanes=lanes,
        open_steps=view.open_steps,
        workers=view.workers,
        http=view.http,
        config_digest=view.config_digest,
        config_differs=digest is not None and view.config_digest not in (None, digest),
        controls_revision=view.controls_revision,
    )
