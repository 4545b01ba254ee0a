"""`/v1/backlog`: how much work waits for workers of a kind, and how many of them it needs."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.backlog.demand import STORED_MAX, StoredLoad, WorkerKind
from stepwire_broker.core.commit.wants import handlers_in
from stepwire_broker.store.queries import Queries

from . import core_views
from .http import HttpCall
from .http_problems import HttpProblem
from .reading import number
from .replies import Reply, encode

HANDLERS_MAX: Final = 64
SLOTS_MAX: Final = 10_000
_LABEL: Final = re.compile(r"[^=,]+=[^,]*")


class BacklogDocument(Struct, frozen=True, kw_only=True):
    """The steps of the whole deployment that workers with these handlers and labels can take. `waiting`: ready steps
    and steps that wait at a worker for a slot. `stored`: those of them whose tasks are only in the database, where a
    task counts as one step; at most 100,000 are counted. `running`: steps that occupy a slot. `workers` and `slots`:
    the connected workers of this kind that take new steps, and their slots. `slots_per_worker`: the member of the
    query, or the mean of the connected workers. `oldest_wait_ms`: for how long the oldest waiting step has waited;
    null if no step waits. `wanted_workers`: the number of workers with which every step has a slot. `unfit`: waiting
    steps of the same handlers that such workers do not get. `because`: sentences that explain why waiting steps do not
    raise `wanted_workers`."""

    broker: str
    epoch: int
    waiting: int
    running: int
    stored: int
    oldest_wait_ms: int | None
    workers: int
    slots: int
    slots_per_worker: int
    wanted_workers: int
    unfit: int
    because: list[str]


async def show(call: HttpCall) -> Reply:
    kind = _kind(call.query("handler_class", "labels", "slots"))
    broker = call.broker
    wants = [each for each in await broker.read(lambda queries: queries.stored_wants()) if _waits_for(each, kind)]
    stored: list[StoredLoad] = []
    oldest_ms: int | None = None
    if wants:
        mixed = [each for each in wants if core_views.is_split(broker, kind, each)]
        stored, oldest_ms = await broker.scan(_stored, [each for each in wants if each not in mixed], mixed)
    seen = core_views.backlog(broker, kind, stored, oldest_ms)
    return Reply(
        200,
        encode(
            BacklogDocument(
                broker=broker.broker_id,
                epoch=broker.epoch,
                waiting=seen.waiting,
                running=seen.running,
                stored=seen.stored,
                oldest_wait_ms=None if seen.oldest_ms is None else max(0, broker.now().wall - seen.oldest_ms),
                workers=seen.workers,
                slots=seen.slots,
                slots_per_worker=seen.slots_per_worker,
                wanted_workers=seen.wanted_workers,
                unfit=seen.unfit,
                because=seen.because,
            )
        ),
    )


def _kind(query: dict[str, str]) -> WorkerKind:
    handlers = [name.strip() for name in query.get("handler_class", patterns.ANY).split(",")]
    if not all(handlers) or len(handlers) > HANDLERS_MAX:
        raise HttpProblem(
            400,
            "bad_query",
            f"`handler_class` must name 1 to {HANDLERS_MAX} handlers or patterns, separated by commas",
            "send for example handler_class=Billing::Charge,Billing::Refund",
        )
    labels = {}
    for part in filter(None, query.get("labels", "").split(",")):
        if not _LABEL.fullmatch(part):
            raise HttpProblem(
                400, "bad_query", f"`labels` has {part[:64]!r}", "send for example labels=gpu=true,region=eu"
            )
        key, _, value = part.partition("=")
        labels[key.strip()] = value.strip()
    slots = number("slots", query["slots"], 1, SLOTS_MAX) if "slots" in query else None
    return WorkerKind(tuple(handlers), patterns.any_of(handlers), labels, slots)


def _waits_for(wants: str, kind: WorkerKind) -> bool:
    return any(map(kind.offers, handlers_in(wants)))


def _stored(queries: Queries, plain: Sequence[str], mixed: Sequence[str]) -> tuple[list[StoredLoad], int | None]:
    """Count tasks by what they wait for; by workflow only where the labels fit some of them."""
    counts = queries.stored_counts(plain, STORED_MAX) if plain else {}
    loads = [StoredLoad(wants, None, tasks) for wants, tasks in counts.items()]
    left = STORED_MAX - sum(counts.values())
    if mixed and left > 0:
        by_workflow = queries.stored_counts_by_workflow(mixed, left)
        loads += [StoredLoad(wants, workflow_id, tasks) for (wants, workflow_id), tasks in by_workflow.items()]
    return loads, queries.oldest_stored_ms([*plain, *mixed])
