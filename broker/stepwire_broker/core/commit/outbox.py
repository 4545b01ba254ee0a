"""The open group of each lane, and the sends that may leave once it is durable.

Every send has a barrier: the last sequence enqueued, when the send was decided, on each lane whose rows it needs. Sends
without writes have a barrier too, because they may depend on rows that are not committed yet. An answer that names no
task waits for the lanes in which controls are written, and a message that names no task for every lane. Sends of one
lane leave in the order in which they were decided, and so do the sends of several lanes. A slow lane delays no send of
another lane.
"""

from collections import deque
from collections.abc import Iterator, Set
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, field
from stepwire_protocol.messages import Ack, Adopt, Cancel, Go, Steps

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import (
    AuditNew,
    CommitGroup,
    ControlChanged,
    HistoryRow,
    OrderAnswer,
    Parked,
    StallCode,
    StepChanged,
    StepCompleted,
    StepDispatched,
    StepOutput,
    StepStderr,
    Submission,
    TaskChanged,
    TaskErased,
    WorkflowNew,
)
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.level0_peer import Handout
from stepwire_broker.core.model.live import (
    DIRTY_CHANGED,
    DIRTY_COMPLETED,
    DIRTY_DISPATCHED,
    DIRTY_OUTPUT,
    DIRTY_STDERR,
    Step,
    StepBatch,
    Task,
    WorkerSession,
)

from .wants import wants_of

NEVER_MS: Final = 2**53 - 1
AT_ONCE_MS: Final = 0  # the `wake_ms` of a stored task that waits for more handlers than `wants` can name


class SendBatch(Struct, frozen=True, gc=False):
    """Steps to a worker. The time until their retransmission counts from when they leave."""

    batch: StepBatch


class SendHandout(Struct, frozen=True):
    """Steps to a level-0 peer, sent once. Their lease counts from when they leave."""

    handout: Handout
    about: tuple[Task, ...]


class SendMessage(Struct, frozen=True):
    """A message to a worker, dropped if its session is dead. The message depends on the rows of the tasks `about`."""

    session: WorkerSession
    message: Go | Cancel | Adopt | Steps
    about: tuple[Task, ...] = ()


class SendAck(Struct, frozen=True):
    """An ack of committed results. A worker receives it even if its session is dead."""

    topic: bytes
    message: Ack
    about: tuple[Task, ...] = ()


class SendAnswer(Struct, frozen=True):
    request: int
    answer: Answer
    about: Task | None = None  # the task whose rows it depends on
    awaits: bool = False  # it answers a request that waits for the end of the task
    lane: int | None = None  # without a task: the only lane whose rows it depends on; None: it depends on controls


Send: TypeAlias = SendBatch | SendHandout | SendMessage | SendAck | SendAnswer


class LaneState(Struct):
    """One lane: its open group, the group its writer has, and the sequences of both."""

    number: int
    handed: int  # the last sequence given to the writer
    committed: int
    dirty: dict[int, Task] = {}
    submissions: list[Submission] = []
    workflows: list[WorkflowNew] = []
    activations: list[tuple[int, int]] = []
    controls: list[ControlChanged] = []
    parked: list[Parked] = []
    audit: list[AuditNew] = []
    orders_answered: list[OrderAnswer] = []
    reserve_ids: int = 0
    unused_ids: tuple[int, int] | None = None
    promised: bool = False  # sends wait for the open group, so it is written even if it is empty
    bytes: int = 0
    in_flight: list[Task] = []  # tasks in the group the writer has now
    in_flight_bytes: int = 0
    handed_mono: int = 0
    group: CommitGroup | None = None  # what the writer has now
    stalled: StallCode | None = None  # its group cannot be written now: nothing of this lane is dispatched
    waiting: list[Step] = []  # ready steps that were taken out of the queue while the lane was stalled
    held: deque[tuple[int, Send]] = field(default_factory=deque)  # sends that depend on this lane alone
    barrier: int | None = None  # of the sends decided now; None: to be read

    @property
    def is_open(self) -> bool:
        return bool(
            self.dirty
            or self.submissions
            or self.workflows
            or self.activations
            or self.controls
            or self.parked
            or self.audit
            or self.orders_answered
            or self.reserve_ids
            or self.unused_ids
            or self.promised
        )

    @property
    def bytes_waiting(self) -> int:
        return self.bytes + self.in_flight_bytes

    @property
    def has_controls(self) -> bool:
        """True if controls or active versions of this lane are not durable yet."""
        group = self.group
        return bool(self.controls or self.activations) or (
            group is not None and bool(group.controls or group.activations)
        )

    @property
    def workflows_unknown(self) -> list[WorkflowNew]:
        """The applied workflows whose outcome was not reported."""
        return self.workflows if self.group is None else self.group.workflows + self.workflows

    @property
    def is_idle(self) -> bool:
        """True if the writer has no group of this lane."""
        return self.handed == self.committed


class Outbox:
    """The lanes that this broker owns: no other lane is here."""

    def __init__(self) -> None:
        self.lanes: dict[int, LaneState] = {}
        self._only: LaneState | None = None  # if there is one lane
        self._no_lane = LaneState(0, 0, 0)  # what waits for a lane that this broker owns
        self._held: deque[tuple[list[tuple[LaneState, int]], Send]] = deque()  # sends that depend on several lanes

    def add_lane(self, number: int, seq: int) -> None:
        """Own this lane from now on, after its group `seq`. Lanes are in the order of their numbers."""
        lane = LaneState(number=number, handed=seq, committed=seq)
        self.lanes = dict(sorted({**self.lanes, number: lane}.items()))
        self._only = lane if len(self.lanes) == 1 else None
        waiting, self._no_lane = self._no_lane, LaneState(0, 0, 0)
        self.keep_controls(waiting)

    def remove_lane(self, number: int) -> tuple[LaneState, list[Send]]:
        """Own this lane no longer. Returns its state, and the sends that depend on it: these never leave."""
        lane = self.lanes[number]
        self.lanes = {n: each for n, each in self.lanes.items() if n != number}
        self._only = next(iter(self.lanes.values())) if len(self.lanes) == 1 else None
        unsent = [send for _, send in lane.held]
        several, self._held = self._held, deque()
        for barriers, send in several:
            of_lane = [awaited for each, awaited in barriers if each is lane]
            is_open = any(awaited > lane.committed for awaited in of_lane)
            if number in _lanes_of(send) or (is_open and not isinstance(send, SendBatch)):
                unsent.append(send)
            else:
                self._held.append(([(each, awaited) for each, awaited in barriers if each is not lane], send))
        return lane, unsent

    def keep_controls(self, lane: LaneState) -> None:
        """Write what belongs to no task of this lane in another one. Rows that were committed already are written a
        second time: a control is absolute, and a doubled row of `audit` is better than a missing one."""
        of_writer = lane.group
        kept = self.touch_any()
        for activations, controls, audit in (
            () if of_writer is None else ((of_writer.activations, of_writer.controls, of_writer.audit),)
        ) + ((lane.activations, lane.controls, lane.audit),):
            activated = {("request", request) for request, _ in activations}
            kept.activations += activations
            kept.controls += controls
            kept.audit += [
                row for row in audit if row.part is None or row.part[0] == "control" or row.part in activated
            ]

    def touch_any(self) -> LaneState:
        """Open a group for a write that belongs to no task: of the lowest lane, or of the next one that is opened."""
        return self.touch(min(self.lanes)) if self.lanes else self._no_lane

    # -- deciding -----------------------------------------------------------------------------------------------------

    def touch(self, lane: int) -> LaneState:
        """Open the lane's group for a write: sends decided from here on wait for it."""
        state = self.lanes[lane]
        if not state.is_open:
            state.barrier = None
        return state

    def mark(self, task: Task) -> None:
        lane = self.lanes[task.lane]
        if task.id not in lane.dirty:
            if not lane.is_open:
                lane.barrier = None
            lane.dirty[task.id] = task

    def withdraw(self, task: Task) -> None:
        """Write nothing of this task in the open group, no audit of commands whose effects are withdrawn, and no answer
        to orders that had these effects."""
        lane, part = self.lanes[task.lane], ("task", task.id)
        audit = [row for row in lane.audit if row.part != part]
        orders = [row for row in lane.orders_answered if row.part != part]
        is_less = len(audit) < len(lane.audit) or len(orders) < len(lane.orders_answered)
        if lane.dirty.pop(task.id, None) is not None or is_less:
            lane.promised = True
        lane.audit, lane.orders_answered = audit, orders

    def send(self, send: Send) -> None:
        lane = self._only
        if lane is None:
            numbers = self._depends_on(send)
            if len(numbers) != 1:
                lanes = map(self.lanes.__getitem__, numbers)
                self._held.append(([(lane, lane.handed + lane.is_open) for lane in lanes], send))
                return
            lane = self.lanes[next(iter(numbers))]
        if lane.barrier is None:
            lane.barrier = lane.handed + lane.is_open
        lane.held.append((lane.barrier, send))

    def _depends_on(self, send: Send) -> Set[int]:
        """Return the lanes whose rows this send depends on."""
        numbers = _lanes_of(send)
        if isinstance(send, SendBatch):
            # The steps may depend on an offer: no other broker and no later start may take its handler for one of
            # level 0.
            return numbers | self._with_controls()
        if numbers:
            return numbers
        if isinstance(send, SendAnswer):
            # A command that belongs to no task is written in the lowest lane, and earlier ones in what was the lowest.
            return self._with_controls() | set(list(self.lanes)[:1])
        return self.lanes.keys()

    def _with_controls(self) -> set[int]:
        return {number for number, lane in self.lanes.items() if lane.has_controls}

    def is_settled(self, number: int) -> bool:
        """True if every group of this lane is durable, and every send that depends on the lane has left."""
        lane = self.lanes[number]
        if not lane.is_idle or lane.is_open or lane.held:
            return False
        return not any(each is lane for barriers, _ in self._held for each, _ in barriers)

    @property
    def stalled(self) -> StallCode | None:
        """Return why nothing can be written now. None if at least one lane can be written."""
        codes = [lane.stalled for lane in self.lanes.values()]
        return None if None in codes or not codes else codes[0]

    @property
    def bytes_waiting(self) -> int:
        return sum(lane.bytes_waiting for lane in self.lanes.values())

    # -- committing ---------------------------------------------------------------------------------------------------

    def close(self, number: int, now: Now) -> CommitGroup | None:
        """Return the lane's next transaction, if its writer is free and rows or barriers wait."""
        lane = self.lanes[number]
        if not lane.is_idle or not lane.is_open:
            return None
        group = CommitGroup(
            lane=number,
            seq=lane.handed + 1,
            submissions=lane.submissions,
            workflows=lane.workflows,
            activations=lane.activations,
            controls=lane.controls,
            parked=lane.parked,
            audit=lane.audit,
            orders_answered=lane.orders_answered,
            reserve_ids=lane.reserve_ids,
            unused_ids=lane.unused_ids,
            bytes=lane.bytes,
        )
        for task in lane.dirty.values():
            _write(group, task)
        lane.in_flight = list(lane.dirty.values())
        lane.in_flight_bytes = lane.bytes
        lane.group = group
        lane.handed += 1
        lane.handed_mono = now.mono
        lane.dirty = {}
        lane.submissions, lane.workflows, lane.activations, lane.controls, lane.parked = [], [], [], [], []
        lane.audit, lane.orders_answered = [], []
        lane.reserve_ids = lane.bytes = 0
        lane.unused_ids = None
        lane.promised = False
        lane.barrier = None
        return group

    def committed(self, number: int, seq: int) -> list[Task]:
        """Mark this group as durable. Returns the tasks that it wrote."""
        lane = self.lanes[number]
        assert seq == lane.handed == lane.committed + 1, (seq, lane.handed, lane.committed)
        lane.committed = seq
        lane.group = None
        wrote, lane.in_flight, lane.in_flight_bytes = lane.in_flight, [], 0
        return wrote

    def released(self) -> Iterator[Send]:
        """Remove and yield the sends that may leave now. The caller may add sends meanwhile."""
        is_done = False
        while not is_done:
            is_done = True
            for lane in self.lanes.values():
                held = lane.held
                while held and held[0][0] <= lane.committed:
                    is_done = False
                    yield held.popleft()[1]
            several = self._held
            while several and _is_durable(several[0][0]):
                is_done = False
                yield several.popleft()[1]
            if several and any(lane.stalled is not None for lane in self.lanes.values()):
                # The first of them may wait for a lane that cannot be written. It delays no send of other lanes.
                self._held = deque()
                for barriers, send in several:
                    if _is_durable(barriers):
                        is_done = False
                        yield send
                    else:
                        self._held.append((barriers, send))

    def __len__(self) -> int:
        return len(self._held) + sum(len(lane.held) for lane in self.lanes.values())

    def __bool__(self) -> bool:
        """Whether any send waits. Asked after each event, so it counts none of them."""
        if self._held:
            return True
        for lane in self.lanes.values():  # noqa: SIM110 - `any` with a generator takes three times as long
            if lane.held:
                return True
        return False


def _is_durable(barriers: list[tuple[LaneState, int]]) -> bool:
    return all(lane.committed >= awaited for lane, awaited in barriers)


def _lanes_of(send: Send) -> set[int]:
    """Return the lanes of the tasks that a send depends on; none if it does not name its tasks."""
    match send:
        case SendBatch():
            return {step.task.lane for step in send.batch.steps}
        case SendAnswer():
            if send.about is not None:
                return {send.about.lane}
            return set() if send.lane is None else {send.lane}
        case SendHandout() | SendMessage() | SendAck():
            return {task.lane for task in send.about}
        case _:
            assert_never(send)


def _write(group: CommitGroup, task: Task) -> None:
    """Add the task's rows as its state is now. Rows are absolute, so writing them twice does no harm."""
    if task.facts:
        group.history.append(HistoryRow(task.id, task.facts[0].at, facts.encode(task.facts)))
        task.facts = []
    if task.attention_rows is not None:
        group.attention.extend(task.attention_rows.values())
        task.attention_rows = None
    if task.erase_ms is not None:
        group.erasures.append(TaskErased(task.id, task.erase_ms))
        task.erase_ms = None
    if task.dirty:
        task.dirty = False
        group.tasks_changed.append(task_changed(task))
    if task.dirty_steps:
        for step in task.dirty_steps:
            _write_step(group, step)
        task.dirty_steps = []


def _write_step(group: CommitGroup, step: Step) -> None:
    dirty, step.dirty = step.dirty, 0
    if dirty & DIRTY_STDERR:
        _write_stderr(group, step)
        dirty &= ~DIRTY_STDERR
        if not dirty:
            return
    if dirty & DIRTY_CHANGED or dirty == DIRTY_DISPATCHED | DIRTY_COMPLETED:
        group.steps_changed.append(step_changed(step))
        if dirty & (DIRTY_COMPLETED | DIRTY_OUTPUT):
            group.steps_output.append(StepOutput(step.id, step.output, step.output_bytes))
    elif dirty & DIRTY_COMPLETED:
        assert step.output is not None
        assert step.finished_ms is not None
        group.steps_completed.append(
            StepCompleted(step.id, step.output, step.output_bytes, step.finished_ms, step.run_ms)
        )
    else:
        assert step.batch_id is not None
        assert step.worker is not None
        assert step.dispatched_ms is not None
        group.steps_dispatched.append(
            StepDispatched(step.id, step.delivery, step.batch_id, step.worker, step.ready_ms, step.dispatched_ms)
        )


def _write_stderr(group: CommitGroup, step: Step) -> None:
    """Write the text once, and drop it from memory."""
    assert step.stderr is not None
    group.steps_stderr.append(StepStderr(step.id, *step.stderr))
    step.stderr = None


def task_changed(task: Task) -> TaskChanged:
    wake_ms, wants = reload_conditions(task) if task.evicting else (None, None)
    if task.evicting and wake_ms is None and wants is None:
        wake_ms = AT_ONCE_MS
    return TaskChanged(
        id=task.id,
        state=task.state,
        attention=task.attention,
        cancelling=task.cancelling,
        finished_ms=task.finished_ms,
        deadline_ms=task.deadline_ms,
        stored=task.evicting,
        wake_ms=wake_ms,
        wants=wants,
    )


def reload_conditions(task: Task) -> tuple[int | None, str | None]:
    """Return when a task that leaves memory must be loaded again, and the handlers that it waits for."""
    times: list[int] = []
    handlers: list[str] = []
    for step in task.steps:
        if step.is_final or step.state == "waiting" or step.state == "held":
            continue  # no deadline ends these
        if task.deadline_ms is not None:
            times.append(task.deadline_ms)
        times += [t for t in (step.not_before_ms, step.deadline_ms, step.rests_until_ms) if t is not None]
        if step.state == "ready":
            if step.definition.queue_timeout_ms is not None and step.ready_ms is not None:
                times.append(step.ready_ms + step.definition.queue_timeout_ms)
            if task.state == "running" and step.rests_until_ms is None:
                handlers.append(step.definition.handler_class)
    wants = wants_of(handlers)
    if handlers and (wants is None or not times):
        return None, wants
    return (min(times) if times else NEVER_MS), wants


def step_changed(step: Step) -> StepChanged:
    earlier = step.earlier
    return StepChanged(
        id=step.id,
        state=step.state,
        attempt=step.attempt,
        delivery=step.delivery,
        accept_from=step.accept_from,
        batch_id=step.batch_id,
        worker=step.worker,
        granted=step.granted,
        lost_sessions=step.lost_sessions,
        ready_ms=step.ready_ms,
        dispatched_ms=step.dispatched_ms,
        started_ms=step.started_ms,
        not_before_ms=step.not_before_ms,
        finished_ms=step.finished_ms,
        deadline_ms=step.deadline_ms,
        run_ms=step.run_ms,
        error=step.error,
        reason=step.reason,
        key_number=step.key_number,
        earlier=facts.encode(earlier) if earlier else None,
        handle=step.handle,
    )
