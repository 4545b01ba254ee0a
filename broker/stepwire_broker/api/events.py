"""`/v1/events`: what happened to tasks and steps, as it is committed, for whoever follows.

The history is the source, and a client is a place in it. Nothing is queued for anybody: a slow client is behind in the
database, and nothing is dropped. An event's id says what comes after it, so a client that comes back with
`Last-Event-ID`, to this start of the broker or to a later one, goes on where it was: nothing missed, nothing twice.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple, get_args

from msgspec import UNSET, Struct, UnsetType

from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import EventRow, HistoryCursor
from stepwire_broker.timestamps import rfc3339

from . import explaining, reading
from .engine_port import EnginePort
from .http import HttpCall
from .http_problems import HttpProblem
from .replies import Reply, Stream, encode
from .tap import EVENT_STREAM, KEEP_ALIVE_S

CLIENTS_MAX: Final = 64
PAGE_EVENTS: Final = 500  # of one read, and of what is on its way to one client
PAGE_ROWS: Final = 500
PAUSE_S: Final = 0.02  # between two reads of a client that is up to date: commits may be a thousand a second
LANES_MAX: Final = 64
CURSOR_CHARACTERS_MAX: Final = 4096
BEGINNING: Final = "0"

KINDS: Final[tuple[str, ...]] = tuple(str(kind.__struct_config__.tag) for kind in get_args(facts.Fact))
STREAM_QUERY: Final = ("task_id", "namespace", "workflow", "kind", "after")


class EventDocument(Struct, frozen=True, kw_only=True):
    """Something that happened. Which members there are beside the first six is its kind's affair."""

    id: str
    at: str
    kind: str
    task_id: int
    namespace: str | None  # null when the task has been removed since, as are `workflow`, `step_id` and `step`
    workflow: str | None
    step_id: int | UnsetType | None = UNSET
    step: str | UnsetType | None = UNSET
    delivery: int | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    batch_id: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    lost: bool | UnsetType = UNSET
    output_bytes: int | UnsetType = UNSET
    state: str | UnsetType = UNSET
    attention: str | UnsetType | None = UNSET
    action: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    new_key: bool | UnsetType = UNSET


class EventPage(Struct, frozen=True):
    events: list[EventDocument]
    next_cursor: str | None


class StreamPosition(NamedTuple):
    """In a lane's history: the first fact that is not told yet."""

    seq: int = 0
    position: int = 0
    fact: int = 0


Places = dict[int, StreamPosition]  # by lane


class EventFilter(NamedTuple):
    """What is None filters nothing."""

    task_id: int | None = None
    namespace: str | None = None
    workflow: str | None = None
    kinds: frozenset[str] | None = None


class EventBatch(NamedTuple):
    events: list[EventDocument]
    places: Places
    is_more: bool


class Followers:
    """All clients that follow, so that they can be counted, woken by a commit, and sent home when the broker stops."""

    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._count = 0
        self._wakes: set[asyncio.Event] = set()
        self._is_closed = False

    async def stream(self, call: HttpCall) -> Stream:
        asked = call.query(*STREAM_QUERY)
        if self._count >= CLIENTS_MAX:
            raise HttpProblem(429, "too_many_followers", f"{CLIENTS_MAX} clients follow already", retry_after_ms=5000)
        wanted = _wanted(asked)
        after = call.header(b"last-event-id") or asked.get("after")
        places = await self._broker.read(begin, after)
        if places is None:
            raise HttpProblem(
                410,
                "cursor_unknown",
                "the database has no history that leads to this event: it is another one, or was restored",
                "follow without Last-Event-ID, and read the tasks anew",
            )
        return Stream(self._events(wanted, places), EVENT_STREAM)

    def close(self) -> None:
        self._is_closed = True
        for wake in self._wakes:
            wake.set()

    async def _events(self, wanted: EventFilter, places: Places) -> AsyncIterator[bytes]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        self._count += 1
        remove = self._broker.add_commit_listener(wake.set)
        try:
            yield _comment("the events", places)  # with a place to come back to, also when nothing ever happens
            while not self._is_closed:
                wake.clear()
                told = await self._broker.read(tell, wanted, places, self._broker.workflows, PAGE_EVENTS)
                places = told.places
                if told.events:
                    yield b"".join(map(_event, told.events))
                if not told.is_more and not await _woken(wake):
                    yield _comment("still here", places)
        finally:
            remove()
            self._wakes.discard(wake)
            self._count -= 1


async def of_task(call: HttpCall) -> Reply:
    """What happened to a task, a page at a time, from its beginning."""
    task_id = call.number("task_id")
    asked = call.query("limit", "cursor")
    limit = reading.limit(asked.get("limit"))
    broker = call.broker
    places = await broker.read(begin, asked.get("cursor", BEGINNING))
    if places is None:
        raise HttpProblem(400, "bad_query", "`cursor` is not one of ours", "take next_cursor of the page before")
    if await broker.read(lambda queries: queries.task_state(task_id)) is None:
        raise explaining.no_task(task_id)
    told = await broker.read(tell, EventFilter(task_id=task_id), places, broker.workflows, limit)
    return Reply(200, encode(EventPage(told.events, cursor_of(told.places) if told.is_more else None)))


# -- in a reader's thread ---------------------------------------------------------------------------------------------


def begin(queries: Queries, after: str | None) -> Places | None:
    """Where to begin: after this event, from the first one, or with what is committed from now on. None: there is no
    such event in this database."""
    ends = {lane.id: lane.seq for lane in queries.lanes()}
    if after is None:
        return {lane_id: StreamPosition(seq + 1) for lane_id, seq in ends.items()}
    places = {} if after == BEGINNING else read_cursor(after)
    if any(lane_id not in ends or place.seq > ends[lane_id] + 1 for lane_id, place in places.items()):
        return None
    return {lane_id: places.get(lane_id, StreamPosition()) for lane_id in ends}


def tell(
    queries: Queries, wanted: EventFilter, places: Places, workflows: Mapping[int, Workflow], events_max: int
) -> EventBatch:
    """What is committed and not told yet, in the order of each lane; and the places after it."""
    events: list[EventDocument] = []
    places = {lane.id: places.get(lane.id, StreamPosition()) for lane in queries.lanes()}
    is_more = False
    for lane_id in places:
        seq, position, _ = places[lane_id]
        rows = queries.events_from(lane_id, HistoryCursor(seq, position), PAGE_ROWS, wanted.task_id)
        for row in rows:
            if len(events) >= events_max:
                break
            _tell_row(row, wanted, workflows, places, events, events_max)
        else:
            is_more = is_more or len(rows) == PAGE_ROWS
            continue
        is_more = True
    return EventBatch(events, places, is_more or len(events) >= events_max)


def _tell_row(
    row: EventRow,
    wanted: EventFilter,
    workflows: Mapping[int, Workflow],
    places: Places,
    events: list[EventDocument],
    events_max: int,
) -> None:
    """The facts of one row that are not told yet. `places` goes along, so that each event's id is right."""
    at = places[row.lane_id]
    first = at.fact if (at.seq, at.position) == (row.seq, row.position) else 0
    workflow = None if row.workflow_id is None else workflows.get(row.workflow_id)
    if not _is_of(wanted, workflow):
        places[row.lane_id] = StreamPosition(row.seq, row.position + 1)
        return
    told = facts.decode(row.facts)
    for number in range(first, len(told)):
        if len(events) >= events_max:
            places[row.lane_id] = StreamPosition(row.seq, row.position, number)
            return
        fact = told[number]
        is_last = number == len(told) - 1
        places[row.lane_id] = (
            StreamPosition(row.seq, row.position + 1) if is_last else StreamPosition(row.seq, row.position, number + 1)
        )
        if wanted.kinds is None or type(fact).__struct_config__.tag in wanted.kinds:
            events.append(_document(cursor_of(places), row, fact, workflow))
    places[row.lane_id] = StreamPosition(row.seq, row.position + 1)


def _is_of(wanted: EventFilter, workflow: Workflow | None) -> bool:
    if wanted.workflow is None and wanted.namespace is None:
        return True
    return (
        workflow is not None
        and wanted.workflow in (None, workflow.name)
        and wanted.namespace in (None, workflow.namespace)
    )


def _document(event_id: str, row: EventRow, fact: Any, workflow: Workflow | None) -> EventDocument:
    said = {name: getattr(fact, name) for name in type(fact).__struct_fields__ if name in _SHOWN}
    if "until" in said:
        said["until"] = rfc3339(said["until"])
    position = getattr(fact, "step", None)
    if position is not None:
        said["step_id"] = None if row.first_step_id is None else row.first_step_id + position
        said["step"] = workflow.steps[position].name if workflow is not None else None
    return EventDocument(
        id=event_id,
        at=rfc3339(fact.at),
        kind=str(type(fact).__struct_config__.tag),
        task_id=row.task_id,
        namespace=None if workflow is None else workflow.namespace,
        workflow=None if workflow is None else workflow.name,
        **said,
    )


_SHOWN: Final = frozenset(EventDocument.__struct_fields__) - {"id", "at", "kind", "task_id", "step", "step_id"}


# -- cursors ----------------------------------------------------------------------------------------------------------


def cursor_of(places: Places) -> str:
    """`1.4711.0.2`: lane 1, transaction 4711, its row 0, from its fact 2; several lanes with commas between."""
    return ",".join(f"{lane_id}.{seq}.{position}.{fact}" for lane_id, (seq, position, fact) in places.items())


def read_cursor(text: str) -> Places:
    "A cursor of ours, or HttpProblem."
    if len(text) > CURSOR_CHARACTERS_MAX or not _CURSOR.fullmatch(text):
        raise HttpProblem(
            400, "bad_query", f"{text[:64]!r} is not an event's id", "take the `id` of the last event as it is"
        )
    places: Places = {}
    for each in text.split(","):
        lane_id, seq, position, fact = map(int, each.split("."))
        places[lane_id] = StreamPosition(seq, position, fact)
    return places


_NUMBER: Final = r"[0-9]{1,15}"
_ONE: Final = r"\.".join([_NUMBER] * 4)
_CURSOR: Final = re.compile(rf"{_ONE}(?:,{_ONE}){{0,{LANES_MAX - 1}}}")


# -- the stream -------------------------------------------------------------------------------------------------------


def _wanted(asked: dict[str, str]) -> EventFilter:
    task_id = asked.get("task_id")
    kinds = asked.get("kind")
    if kinds is not None:
        for kind in kinds.split(","):
            reading.one_of("kind", kind, KINDS)
    return EventFilter(
        None if task_id is None else reading.number("task_id", task_id, 1, 2**53 - 1),
        asked.get("namespace"),
        asked.get("workflow"),
        None if kinds is None else frozenset(kinds.split(",")),
    )


async def _woken(wake: asyncio.Event) -> bool:
    """Something was committed, or the stream is to end; False when it was time for a sign of life."""
    try:
        async with asyncio.timeout(KEEP_ALIVE_S):
            await wake.wait()
    except TimeoutError:
        return False
    await asyncio.sleep(PAUSE_S)
    return True


def _event(event: EventDocument) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.id.encode(), encode(event))


def _comment(text: str, places: Places) -> bytes:
    """A sign of life, and where the client is: it may have passed a lot that it did not want."""
    return f": {text}\nid: {cursor_of(places)}\n\n".encode()
