"""`/v1/events`: the events of tasks and steps, streamed as they are committed.

The events are read from the stored history, and each client has a position in it. There is no queue per client, so a
slow client only lags behind, and no event is dropped. An event's `id` is its place in its lane, the same for every
reader. The line `id:` of the stream is the client's position in all lanes. A client that reconnects with it as
`Last-Event-ID`, also to another broker or after a restart, misses no event and receives none twice.

Progress reports are the exception: they come from memory, only for clients whose filter names the kind `progress`, and
are never sent again. Such an event has the id of the place that the client has reached in the lane of its task.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.live import StepProgress
from stepwire_broker.errors import BrokerError
from stepwire_broker.store.definitions import Definitions
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import EventRow, HistoryCursor
from stepwire_broker.timestamps import rfc3339

from . import core_views, explaining, reading
from .engine_port import EnginePort
from .enumerations import PROGRESS, STREAM_KINDS, Attention, EventKind, TaskState
from .http import HttpCall
from .http_problems import HttpProblem
from .progress_feed import ProgressFeed, ProgressReader
from .replies import Reply, Stream, encode
from .tap import EVENT_STREAM, KEEP_ALIVE_S

CLIENTS_MAX: Final = 64
PAGE_EVENTS: Final = 500  # of one read, and in memory for one client
PAGE_ROWS: Final = 500
LOOK_S: Final = 0.05  # between looks at the lanes of other brokers
PAUSE_S: Final = 0.02  # between reads for a client that is up to date, because there can be 1,000 commits a second
LANES_MAX: Final = 64
CURSOR_CHARACTERS_MAX: Final = 4096
BEGINNING: Final = "0"

STREAM_QUERY: Final = ("task_id", "namespace", "workflow", "kind", "after")


class EventDocument(Struct, frozen=True, kw_only=True):
    """An event of a task or a step. The first six members are always present; the others depend on `kind`.

    `id` is the place of the event in its lane, the same in every answer of every broker. To continue after an event,
    send the line `id:` of the stream, which also has the positions in other lanes. With one lane, both are equal.

    `run_ms` is the duration of the run that ended, as its worker measured it. `message` is the error of the attempt,
    `<code>: <text>`, of at most 200 characters. `by` is the name of the operator's token, or the beginning of its
    digest. `done`, `total` and `note` are members of `progress`, which is sent only to streams whose `kind` names it,
    is not stored and is not replayed."""

    id: str
    at: str
    kind: EventKind
    task_id: int
    namespace: str | None  # null if the task was removed meanwhile; so are `workflow`, `step_id` and `step`
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
    state: TaskState | UnsetType = UNSET
    attention: Attention | UnsetType | None = UNSET
    action: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    new_key: bool | UnsetType = UNSET
    run_ms: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    by: str | UnsetType = UNSET
    done: float | UnsetType = UNSET
    total: float | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class EventPage(Struct, frozen=True):
    events: list[EventDocument]
    next_cursor: str | None


class StreamPosition(NamedTuple):
    """The first fact in a lane's history that was not sent yet."""

    seq: int = 0
    position: int = 0
    fact: int = 0


Positions = dict[int, StreamPosition]  # by lane


class EventFilter(NamedTuple):
    """A member that is None matches everything."""

    task_id: int | None = None
    namespace: str | None = None
    workflow: str | None = None
    kinds: frozenset[str] | None = None
    sees: Callable[[str], bool] | None = None  # the namespaces that the token may see


class FoundEvent(NamedTuple):
    cursor: str  # the client's position after the event
    document: EventDocument


class EventBatch(NamedTuple):
    events: list[FoundEvent]
    positions: Positions
    is_more: bool


class Followers:
    """All clients of the stream: counted, woken by commits, and ended when the broker stops."""

    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._progress = ProgressFeed(broker)
        self._count = 0
        self._wakes: set[asyncio.Event] = set()
        self._is_closed = False
        self._watching: asyncio.Task[None] | None = None

    async def stream(self, call: HttpCall) -> Stream:
        query = call.query(*STREAM_QUERY)
        if self._count >= CLIENTS_MAX:
            raise HttpProblem(
                429, "too_many_followers", f"{CLIENTS_MAX} clients follow the events already", retry_after_ms=5000
            )
        filters = _filters(query)._replace(sees=None if call.namespaces is None else call.sees)
        call.open_request.stream()
        after = call.header(b"last-event-id") or query.get("after")
        positions = await self._broker.read(begin, after)
        if positions is None:
            raise HttpProblem(
                410,
                "cursor_unknown",
                "the event is not in the history: the database is another one, or was restored",
                "follow without Last-Event-ID, and read the tasks again",
            )
        return Stream(self._events(filters, positions), EVENT_STREAM)

    async def _watch_lanes(self) -> None:
        """Wake the followers when a lane of another broker has a commit. Own commits wake them at once."""
        before: dict[int, int] = {}
        while self._wakes:
            ends = await self._lane_ends()
            if ends is not None and ends != before:
                before = ends
                for wake in self._wakes:
                    wake.set()
            await asyncio.sleep(LOOK_S)
        self._watching = None

    async def _lane_ends(self) -> dict[int, int] | None:
        """The last sequence of each lane. None if the database does not answer now."""
        try:
            return {lane.id: lane.seq for lane in await self._broker.read(lambda queries: queries.lanes())}
        except BrokerError:
            return None

    def close(self) -> None:
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        for wake in self._wakes:
            wake.set()

    async def _events(self, filters: EventFilter, positions: Positions) -> AsyncIterator[bytes]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        self._count += 1
        if core_views.is_shared(self._broker) and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch_lanes())
        remove = self._broker.add_commit_listener(wake.set)
        wants_progress = filters.kinds is not None and PROGRESS in filters.kinds
        progress = self._progress.open(wake.set) if wants_progress else None
        try:
            yield _comment("the events", positions)  # a position to reconnect with, also before the first event
            while not self._is_closed:
                wake.clear()
                batch = await self._broker.read(read_events, filters, positions, self._broker.workflows, PAGE_EVENTS)
                positions = batch.positions
                if batch.events:
                    yield b"".join(map(_event, batch.events))
                if progress is not None and (reports := _progress_events(progress, filters, positions)):
                    yield b"".join(map(_event, reports))
                if not batch.is_more and not await _woken(wake):
                    yield _comment("keep-alive", positions)
        finally:
            remove()
            if progress is not None:
                self._progress.close(progress)
            self._wakes.discard(wake)
            self._count -= 1


async def of_task(call: HttpCall) -> Reply:
    """A page of a task's events, the oldest first."""
    task_id = call.number("task_id")
    query = call.query("limit", "cursor")
    limit = reading.limit(query.get("limit"))
    broker = call.broker
    positions = await broker.read(begin, query.get("cursor", BEGINNING))
    if positions is None:
        raise HttpProblem(
            400, "bad_query", "`cursor` was not issued by this broker", "use `next_cursor` of the previous page"
        )
    if await broker.read(lambda queries: queries.task_state(task_id)) is None:
        raise await explaining.no_task(call.broker, task_id)
    batch = await broker.read(read_events, EventFilter(task_id=task_id), positions, broker.workflows, limit)
    documents = [found.document for found in batch.events]
    return Reply(200, encode(EventPage(documents, cursor_of(batch.positions) if batch.is_more else None)))


# -- in a reader's thread ---------------------------------------------------------------------------------------------


def begin(queries: Queries, after: str | None) -> Positions | None:
    """The positions after this event; `BEGINNING`: at the first event; None: after the last event. Returns None if the
    event is not in this database."""
    ends = {lane.id: lane.seq for lane in queries.lanes()}
    if after is None:
        return {lane_id: StreamPosition(seq + 1) for lane_id, seq in ends.items()}
    positions = {} if after == BEGINNING else read_cursor(after)
    if any(lane_id not in ends or position.seq > ends[lane_id] + 1 for lane_id, position in positions.items()):
        return None
    return {lane_id: positions.get(lane_id, StreamPosition()) for lane_id in ends}


def read_events(
    queries: Queries, filters: EventFilter, positions: Positions, workflows: Mapping[int, Workflow], events_max: int
) -> EventBatch:
    """Read events from these positions on, in the order of each lane. Returns the positions after the events, too."""
    events: list[FoundEvent] = []
    definitions = Definitions(queries, workflows)
    positions = {lane.id: positions.get(lane.id, StreamPosition()) for lane in queries.lanes()}
    is_more = False
    for lane_id in positions:
        seq, position, _ = positions[lane_id]
        rows = queries.events_from(lane_id, HistoryCursor(seq, position), PAGE_ROWS, filters.task_id)
        for row in rows:
            if len(events) >= events_max:
                break
            _append_events(row, filters, definitions, positions, events, events_max)
        else:
            is_more = is_more or len(rows) == PAGE_ROWS
            continue
        is_more = True
    return EventBatch(events, positions, is_more or len(events) >= events_max)


def _append_events(
    row: EventRow,
    filters: EventFilter,
    workflows: Mapping[int, Workflow],
    positions: Positions,
    events: list[FoundEvent],
    events_max: int,
) -> None:
    """Append an event for each fact of the row that was not sent. Advances `positions` with each fact."""
    at = positions[row.lane_id]
    first = at.fact if (at.seq, at.position) == (row.seq, row.position) else 0
    workflow = None if row.workflow_id is None else workflows.get(row.workflow_id)
    if not _is_of(filters, workflow):
        positions[row.lane_id] = StreamPosition(row.seq, row.position + 1)
        return
    row_facts = facts.decode(row.facts)
    for number in range(first, len(row_facts)):
        if len(events) >= events_max:
            positions[row.lane_id] = StreamPosition(row.seq, row.position, number)
            return
        fact = row_facts[number]
        is_last = number == len(row_facts) - 1
        positions[row.lane_id] = (
            StreamPosition(row.seq, row.position + 1) if is_last else StreamPosition(row.seq, row.position, number + 1)
        )
        if filters.kinds is None or type(fact).__struct_config__.tag in filters.kinds:
            events.append(
                FoundEvent(cursor_of(positions), _document(place_of(positions, row.lane_id), row, fact, workflow))
            )
    positions[row.lane_id] = StreamPosition(row.seq, row.position + 1)


def _is_of(filters: EventFilter, workflow: Workflow | None) -> bool:
    if filters.workflow is None and filters.namespace is None and filters.sees is None:
        return True
    return (
        workflow is not None
        and (filters.sees is None or filters.sees(workflow.namespace))
        and filters.workflow in (None, workflow.name)
        and filters.namespace in (None, workflow.namespace)
    )


def _document(event_id: str, row: EventRow, fact: Any, workflow: Workflow | None) -> EventDocument:
    members = {name: getattr(fact, name) for name in type(fact).__struct_fields__ if name in _SHOWN}
    for name in _OPTIONAL:
        if name in members and members[name] is None:
            del members[name]
    if "until" in members:
        members["until"] = rfc3339(members["until"])
    position = getattr(fact, "step", None)
    if position is not None:
        members["step_id"] = None if row.first_step_id is None else row.first_step_id + position
        members["step"] = workflow.steps[position].name if workflow is not None else None
    return EventDocument(
        id=event_id,
        at=rfc3339(fact.at),
        kind=str(type(fact).__struct_config__.tag),
        task_id=row.task_id,
        namespace=None if workflow is None else workflow.namespace,
        workflow=None if workflow is None else workflow.name,
        **members,
    )


_OPTIONAL: Final = ("run_ms", "message", "by")  # members that a fact may lack
_SHOWN: Final = frozenset(EventDocument.__struct_fields__) - {"id", "at", "kind", "task_id", "step", "step_id"}


# -- cursors ----------------------------------------------------------------------------------------------------------


def cursor_of(positions: Positions) -> str:
    """`1.4711.0.2`: lane 1, transaction 4711, row 0, from fact 2. Lanes are separated by commas."""
    return ",".join(f"{lane_id}.{seq}.{position}.{fact}" for lane_id, (seq, position, fact) in positions.items())


def place_of(positions: Positions, lane_id: int) -> str:
    """The id of the event that ends at this position of its lane."""
    return cursor_of({lane_id: positions[lane_id]})


def read_cursor(text: str) -> Positions:
    """The positions of a cursor. Raises HttpProblem."""
    if len(text) > CURSOR_CHARACTERS_MAX or not _CURSOR.fullmatch(text):
        raise HttpProblem(
            400, "bad_query", f"{text[:64]!r} is not an event's id", "use the `id` of the last event unchanged"
        )
    positions: Positions = {}
    for each in text.split(","):
        lane_id, seq, position, fact = map(int, each.split("."))
        positions[lane_id] = StreamPosition(seq, position, fact)
    return positions


_NUMBER: Final = r"[0-9]{1,15}"
_ONE: Final = r"\.".join([_NUMBER] * 4)
_CURSOR: Final = re.compile(rf"{_ONE}(?:,{_ONE}){{0,{LANES_MAX - 1}}}")


# -- the stream -------------------------------------------------------------------------------------------------------


def _filters(query: dict[str, str]) -> EventFilter:
    task_id = query.get("task_id")
    kinds = query.get("kind")
    if kinds is not None:
        for kind in kinds.split(","):
            reading.one_of("kind", kind, STREAM_KINDS)
    return EventFilter(
        None if task_id is None else reading.number("task_id", task_id, 1, 2**53 - 1),
        query.get("namespace"),
        query.get("workflow"),
        None if kinds is None else frozenset(kinds.split(",")),
    )


def _progress_events(progress: ProgressReader, filters: EventFilter, positions: Positions) -> list[FoundEvent]:
    """The waiting reports that the client's filter matches."""
    cursor = cursor_of(positions)
    return [
        FoundEvent(cursor, _progress_document(place_of(positions, report.step.task.lane), report))
        for report in progress.take()
        if _matches(filters, report)
    ]


def _matches(filters: EventFilter, report: StepProgress) -> bool:
    task = report.step.task
    return filters.task_id in (None, task.id) and _is_of(filters, task.workflow)


def _progress_document(event_id: str, report: StepProgress) -> EventDocument:
    step, task = report.step, report.step.task
    return EventDocument(
        id=event_id,
        at=rfc3339(report.at_ms),
        kind=PROGRESS,
        task_id=task.id,
        namespace=task.namespace,
        workflow=task.workflow.name,
        step_id=step.id,
        step=step.definition.name,
        delivery=report.delivery,
        done=report.done,
        total=report.total,
        note=report.note,
    )


async def _woken(wake: asyncio.Event) -> bool:
    """Wait for a commit or the end of the stream. False after KEEP_ALIVE_S: a comment must keep the connection open."""
    try:
        async with asyncio.timeout(KEEP_ALIVE_S):
            await wake.wait()
    except TimeoutError:
        return False
    await asyncio.sleep(PAUSE_S)
    return True


def _event(found: FoundEvent) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (found.cursor.encode(), encode(found.document))


def _comment(text: str, positions: Positions) -> bytes:
    """A comment with the client's position, which may be far after the last event that its filter matched."""
    return f": {text}\nid: {cursor_of(positions)}\n\n".encode()
