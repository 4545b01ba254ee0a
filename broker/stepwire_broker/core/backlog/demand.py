"""The steps that a kind of workers could take, over the whole deployment, and the number of workers that they need.

A kind of workers is a set of handlers and labels: programs that join the bus with them. The steps in the memory of the
other brokers are counted by those brokers, in the rows of their beats. The tasks in the database are counted by its
index of the handlers that tasks wait for, where a task counts as one step of each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from stepwire_broker.core import takers
from stepwire_broker.core.commit.wants import handlers_in
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.guards.breaker import BreakerPhase
from stepwire_broker.core.membership.cluster_rows import RouteLoad
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.model.targets import BUS, Selector, Target
from stepwire_broker.core.phrases import counted, named
from stepwire_broker.core.pools.scaling import needed_for
from stepwire_broker.core.state import BrokerState

from .counting import Count, Key, in_memory

STORED_MAX: Final = 100_000  # stored tasks that are counted
SENTENCES_MAX: Final = 5


class WorkerKind(Struct, frozen=True):
    """Workers of the bus that offer these handlers and have these labels. `slots`: of one of them; None: as many as
    those have that are connected."""

    handlers: tuple[str, ...]  # as written, for sentences
    offers: Callable[[str], bool]
    labels: Mapping[str, str]
    slots: int | None = None

    @property
    def executor(self) -> str:
        return BUS

    @property
    def joins_bus(self) -> bool:
        return False


class StoredLoad(NamedTuple):
    """Tasks in the database that wait for the same handlers."""

    wants: str
    workflow_id: int | None  # None: of every workflow
    tasks: int


class Backlog(Struct, frozen=True):
    """`waiting` and `running`: steps that this kind of workers can take. `slots`: of the connected workers of the kind
    that take steps. `unfit`: steps of the same handlers that such workers do not get. `because`: why the backlog does
    not ask for more workers, where one could think that it does."""

    waiting: int
    running: int
    stored: int  # of `waiting`: only in the database
    oldest_ms: int | None
    workers: int
    slots: int
    slots_per_worker: int
    wanted_workers: int
    unfit: int
    because: list[str]


# -- the backlog of a kind --------------------------------------------------------------------------------------------


def is_split(state: BrokerState, kind: WorkerKind, wants: str) -> bool:
    """True if tasks that wait for these handlers must be counted by workflow, because workers of this kind take the
    steps of some workflows only."""
    return len({_takes_stored(state, kind, wants, workflow) for workflow in _workflows_of(state, wants)}) > 1


def backlog(
    state: BrokerState, kind: WorkerKind, stored: Iterable[StoredLoad], oldest_stored_ms: int | None
) -> Backlog:
    """Return the backlog of the whole deployment for this kind of workers."""
    total = Count()
    unfit: dict[Key, int] = {}
    barred: dict[str, int] = {}
    for load in _in_all_memories(state):
        if not kind.offers(load.handler_class):
            continue
        target = Target(load.executor, load.selector, load.without)
        if not (target.is_executor_of(kind) and target.labels_match(kind)):
            key = (load.handler_class, load.executor, load.selector, load.without)
            unfit[key] = unfit.get(key, 0) + load.waiting
            continue
        total.add(load.waiting, load.oldest_ms if load.waiting else None)
        total.running += load.running
        if _is_barred(state, load.handler_class):
            barred[load.handler_class] = barred.get(load.handler_class, 0) + load.waiting
    in_database = _count_stored(state, kind, stored, unfit, barred)
    total.add(in_database, oldest_stored_ms if in_database else None)
    held_back = sum(barred.values())
    workers = [session for session in state.sessions.values() if _is_of_kind(session, kind)]
    slots = sum(session.slots for session in workers)
    per_worker = kind.slots or max(1, round(slots / len(workers)) if workers else 1)
    return Backlog(
        waiting=total.waiting,
        running=total.running,
        stored=in_database,
        oldest_ms=total.oldest_ms,
        workers=len(workers),
        slots=slots,
        slots_per_worker=per_worker,
        wanted_workers=needed_for((total.waiting - held_back + total.running) / per_worker, 1.0),
        unfit=sum(unfit.values()),
        because=[*_barred_texts(barred), *_unfit_texts(kind, unfit)][:SENTENCES_MAX],
    )


def _in_all_memories(state: BrokerState) -> Iterator[RouteLoad]:
    yield from in_memory(state)
    if state.members is not None:
        for row in state.members.live:
            yield from row.backlog


def _count_stored(
    state: BrokerState, kind: WorkerKind, stored: Iterable[StoredLoad], unfit: dict[Key, int], barred: dict[str, int]
) -> int:
    """Count the stored tasks that workers of this kind can take. Add those that they cannot take to `unfit`."""
    taken = 0
    for load in stored:
        workflows = _workflows_of(state, load.wants)
        of = state.workflows.get(load.workflow_id) if load.workflow_id is not None else next(iter(workflows), None)
        if of is None or _takes_stored(state, kind, load.wants, of):
            taken += load.tasks
            names = [name for name in handlers_in(load.wants) if kind.offers(name)]
            if names and all(_is_barred(state, name) for name in names):
                barred[names[0]] = barred.get(names[0], 0) + load.tasks
        else:
            target = next(iter(_targets(state, kind, load.wants, of)))
            name = next(name for name in handlers_in(load.wants) if kind.offers(name))
            key = (name, target.executor, target.selector, target.without)
            unfit[key] = unfit.get(key, 0) + load.tasks
    return taken


def _takes_stored(state: BrokerState, kind: WorkerKind, wants: str, workflow: Workflow) -> bool:
    return any(t.is_executor_of(kind) and t.labels_match(kind) for t in _targets(state, kind, wants, workflow))


def _targets(state: BrokerState, kind: WorkerKind, wants: str, workflow: Workflow) -> Iterator[Target]:
    """Yield where the rules send the steps of these handlers, and where they send those of a canary."""
    names = {name for name in handlers_in(wants) if kind.offers(name)}
    for definition in workflow.steps:
        if definition.handler_class in names:
            destination = state.router.destination(workflow, definition.index)
            yield destination.target
            if destination.canary is not None:
                yield destination.canary


def _workflows_of(state: BrokerState, wants: str) -> Iterator[Workflow]:
    """Yield the workflows that have steps of all these handlers."""
    names = set(handlers_in(wants))
    for workflow in state.workflows.values():
        if names <= {definition.handler_class for definition in workflow.steps}:
            yield workflow


def _is_of_kind(session: WorkerSession, kind: WorkerKind) -> bool:
    """True if this worker takes steps that the kind takes. Its other labels may exclude it from some."""
    if session.draining or session.stuck or session.dead or session.expired or session.rights is None:
        return False
    has_labels = all(session.labels.get(key) == value for key, value in kind.labels.items())
    is_of_executor = session.executor == BUS or session.joins_bus
    return is_of_executor and has_labels and _offers_any(session, kind)


def _offers_any(session: WorkerSession, kind: WorkerKind) -> bool:
    """True if the worker offers one of the handlers. Two patterns are compared as texts."""
    return any(takers.knows_handler(session, name) for name in kind.handlers) or any(map(kind.offers, session.handlers))


def _is_barred(state: BrokerState, handler_class: str) -> bool:
    """True if a breaker lets no step of this handler start, however many workers there are."""
    guard = state.guards.barred.get(handler_class)
    return guard is not None and (guard.breaker.is_forced or guard.breaker.state is BreakerPhase.OPEN)


def _barred_texts(barred: Mapping[str, int]) -> Iterator[str]:
    for handler_class, steps in barred.items():
        if steps:
            yield f"the breaker for `{handler_class}` is open: {counted(steps, 'step')} wait until it closes"


def _unfit_texts(kind: WorkerKind, unfit: Mapping[Key, int]) -> Iterator[str]:
    for (handler_class, executor, selector, without), steps in unfit.items():
        if not steps:
            continue
        what = f"{counted(steps, 'step')} of `{handler_class}`"
        if executor != BUS:
            yield f"{what} go to the executor `{executor}`, not to workers of the bus"
            continue
        has = named(f"{key}={value}" for key, value in kind.labels.items()) or "no labels"
        if any(kind.labels.get(key) != value for key, value in selector):
            yield f"{what} need the labels {_labels(selector)}, and these workers have {has}"
        else:
            yield f"{what} go to workers without the canary's labels {_labels(without)}, and these workers have {has}"


def _labels(selector: Selector) -> str:
    return named(f"{key}={value}" for key, value in selector)
