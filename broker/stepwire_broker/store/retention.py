"""Retention: the removal of old ended tasks and old refused input from the database.

Removal runs in the writer's thread between groups, one small piece at a time, each in its own transaction: a group
waits for at most one piece. A task may have ten thousand steps, more than fit into a piece. The same transaction then
notes the task as partly removed. From then on the task is neither shown nor loaded, and the next piece, or the next
process, continues with it.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.states import STEP_FINAL, TaskState
from stepwire_broker.errors import BrokerError

from .lane import Trouble

PIECE_S: Final = 0.002  # of work, then a commit
TRIPS: Final = 2  # a piece on a server may also take the time of this number of trips over the network
STEPS_MIN: Final = 64  # the smallest number of steps read at once
STEPS_MAX: Final = 1_024
BYTES_MAX: Final = 1024 * 1024  # of payloads in one piece
TASKS_MAX: Final = 256
HISTORY_MAX: Final = 2_048
AUDIT_MAX: Final = 256  # of one lane in one piece
SHARE: Final = 0.1  # of the writer's time
SHARE_BEHIND: Final = 0.5  # when an operator requested a run, or the oldest task is long overdue
BEHIND_MS: Final = 3_600_000
LOOK_EVERY_S: Final = 60.0
LOOK_EVERY_MIN_S: Final = 0.1
TROUBLE_PAUSE_S: Final = 10.0

PARKED_ROWS_MAX: Final = 1_000
PARKED_BYTES_MAX: Final = 64 * 1024 * 1024

LAST_RUN: Final = "pruned"  # the note of the last run that removed something, as JSON

log = structlog.get_logger("stepwire.store")


class EndedTask(NamedTuple):
    id: int
    bytes: int  # of its context
    steps: int


class EndedStep(NamedTuple):
    id: int
    bytes: int  # of its output and of its standard error
    task_id: int
    state: str


class OldAudit(NamedTuple):
    """A row of `audit`, at the beginning of its chain."""

    lane: int
    n: int
    at_ms: int
    hash: str


class ParkedInput(NamedTuple):
    id: int
    bytes: int


RowT = TypeVar("RowT", EndedTask, EndedStep, ParkedInput)


class Removed(NamedTuple):
    """The numbers of rows that were removed at once."""

    tasks: int = 0
    steps: int = 0
    history: int = 0
    keys: int = 0


class PruneStatements(Protocol):
    """The statements that retention needs. All statements between `begin` and `commit` are one transaction."""

    def remove_whole(self, before_ms: Mapping[TaskState, int], without: Collection[int], steps: int) -> Removed:
        """In a transaction of its own, which is one trip: remove tasks that ended before the time of their state, the
        earliest first, with all their rows. Leaves out tasks with an open step, and tasks that exceed this number of
        steps or BYTES_MAX. A database without a network removes nothing here."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...
    def abandon(self) -> None:
        """End an open transaction. Never raises."""

    def rest(self, rows: int) -> None:
        """Do the database's own housekeeping after a commit that removed about this number of rows."""

    def oldest_ended_ms(self, state: str) -> int | None:
        """Return the earliest end of a stored task in this final state."""

    def ended_tasks(self, state: str, before_ms: int, without: Collection[int], limit: int) -> Sequence[EndedTask]:
        """Return tasks that ended in this state before this time, the earliest first."""

    def steps_of(self, task_ids: Collection[int], limit: int) -> Sequence[EndedStep]:
        """Return any steps of these tasks."""

    def task_not_over(self, task_ids: Collection[int]) -> int | None:
        """Return one of these tasks that has a step in a state that is not final."""

    def remove_steps(self, step_ids: Collection[int]) -> int:
        """Returns the number of removed rows, as the next four methods do."""

    def remove_history(self, task_ids: Collection[int], limit: int) -> int: ...
    def remove_keys(self, task_ids: Collection[int]) -> int: ...
    def remove_tasks(self, task_ids: Collection[int]) -> int: ...
    def remove_parked(self, ids: Collection[int]) -> int: ...

    def newest_parked(self) -> int | None: ...
    def parked_until(self, last_id: int, before_ms: int, limit: int) -> Sequence[ParkedInput]:
        """Return refused inputs with an id up to `last_id` or from before this time, the oldest first."""

    def newest_parked_sizes(self, limit: int) -> Sequence[ParkedInput]:
        """Return refused inputs, the newest first."""

    def first_audit(self, limit: int) -> Sequence[OldAudit]:
        """Return the first rows of each lane's chain, by lane and number: at most `limit` of each lane."""

    def cut_audit(self, last: OldAudit) -> int:
        """Remove the rows of a chain up to this row, and keep the row's number and hash. Returns the number of removed
        rows."""

    def partly_removed(self) -> set[int]:
        """Return the tasks of which an earlier piece removed a part."""

    def note_partly_removed(self, task_ids: Collection[int]) -> None:
        """Store which tasks are partly removed. These tasks are neither shown nor loaded from now on."""

    def forbid_changes(self, task_ids: Collection[int]) -> None:
        """Make the writer refuse every change of these tasks, and of no other task, from now on."""

    def note(self, name: str, value: str) -> None: ...


class Pruned(Struct):
    """The numbers of rows that a run removed."""

    started_ms: int
    ended_ms: int = 0
    tasks: int = 0
    steps: int = 0
    history: int = 0
    keys: int = 0
    parked: int = 0
    audit: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.steps or self.history or self.parked or self.audit)


class NotOver(BrokerError):
    """A task is stored as ended but has an open step. Retention does not remove such a task."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"task {task_id} is stored as ended but has an open step")
        self.task_id = task_id


class Retention:
    """The lane's Upkeep. All methods except `ask` are called in the writer's thread."""

    def __init__(
        self,
        statements: PruneStatements,
        settings: RetentionSettings,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statements = statements
        self._kept_ms = kept_ms(settings)
        self._audit_kept_ms = settings.audit_ms
        self._wall_ms = wall_ms
        self._mono_s = mono_s
        self._look_every_s = min(max(min(self._kept_ms.values()) / 1000, LOOK_EVERY_MIN_S), LOOK_EVERY_S)
        self._next_at_s = mono_s()
        self._was_asked = False
        self._run: Pruned | None = None
        self._share = SHARE
        self._steps = 2 * STEPS_MIN  # read at once
        self._partly_removed: set[int] | None = None  # None: not yet read from the database
        self._not_over: set[int] = set()  # stored as ended, but with an open step
        self._trip_s = float("inf")  # the shortest time of a transaction that removed whole tasks
        self._parked_seen = 0  # id of the newest refused input when the bytes were last summed

    def ask(self) -> None:
        """Begin a run now. May be called from any thread."""
        self._was_asked = True

    def pause_s(self) -> float:
        """Return the time until the next piece of work."""
        if self._was_asked and self._run is None:
            return 0.0
        return max(0.0, self._next_at_s - self._mono_s())

    def work(self) -> Pruned | None:
        """Do one piece. Returns the run if this piece was its last."""
        started_s = self._mono_s()
        run = self._run or self._begin()
        try:
            is_over = self._piece(run, started_s + PIECE_S)
        except NotOver as error:
            self._not_over.add(error.task_id)
            log.error("task_is_not_over", task_id=error.task_id, hint="stepwire db check")
            is_over = False
        took_s = self._mono_s() - started_s
        if is_over:
            self._run = None
            self._next_at_s = started_s + took_s + self._look_every_s
            return run
        self._next_at_s = started_s + took_s / self._share
        return None

    @property
    def so_far(self) -> Pruned:
        return self._run or Pruned(0)

    def is_hindered(self, trouble: Trouble) -> None:
        """Try again later, because a piece failed or its outcome is unknown."""
        self._partly_removed = None
        self._next_at_s = self._mono_s() + TROUBLE_PAUSE_S
        log.warning("prune_hindered", code=trouble.code, error=trouble.error)

    def _begin(self) -> Pruned:
        now = self._wall_ms()
        late_ms = max((self._late_ms(state, now) for state in self._kept_ms), default=0)
        self._share = SHARE_BEHIND if self._was_asked or late_ms > BEHIND_MS else SHARE
        self._was_asked = False
        self._run = Pruned(started_ms=now)
        return self._run

    def _late_ms(self, state: TaskState, now: int) -> int:
        """Return the time by which the oldest task in this state is overdue."""
        oldest_ms = self._statements.oldest_ended_ms(state)
        return 0 if oldest_ms is None else now - self._kept_ms[state] - oldest_ms

    # -- a piece ------------------------------------------------------------------------------------------------------

    def _piece(self, run: Pruned, until_s: float) -> bool:
        """Run one transaction. Returns True when nothing was left to remove, and the run is noted."""
        if self._remove_whole(run):
            return False
        statements = self._statements
        done = msgspec.structs.replace(run)
        statements.begin()
        try:
            before = statements.partly_removed() if self._partly_removed is None else self._partly_removed
            chosen = before or self._choose(run.started_ms)
            left: set[int] = set()
            if chosen:
                left = self._remove(chosen, done, until_s, are_over=bool(before))
            else:
                self._remove_parked(done, run.started_ms)
                self._remove_audit(done, run.started_ms)
            is_over = not chosen and done == run
            if left != before:
                statements.note_partly_removed(left)
            if is_over and not run.is_empty:
                done.ended_ms = self._wall_ms()
                statements.note(LAST_RUN, msgspec.json.encode(done).decode())
            self._adapt(until_s, is_whole=not left)
            statements.forbid_changes(before | left)
            statements.commit()
        except BaseException:
            statements.abandon()
            raise
        statements.forbid_changes(left)
        self._partly_removed = left
        removed_rows = done.steps + done.history - run.steps - run.history
        for name in Pruned.__struct_fields__:
            setattr(run, name, getattr(done, name))
        if is_over and not run.is_empty:
            log.info(
                "pruned",
                tasks=run.tasks,
                steps=run.steps,
                history=run.history,
                keys=run.keys,
                parked=run.parked,
                audit=run.audit,
                took_ms=run.ended_ms - run.started_ms,
            )
        statements.rest(removed_rows)
        return is_over

    def _remove_whole(self, run: Pruned) -> bool:
        """Remove tasks in one trip, if none is partly removed. Returns whether there were any."""
        if self._partly_removed != set():
            return False
        began_s = self._mono_s()
        before_ms = {state: run.started_ms - ms for state, ms in self._kept_ms.items()}
        removed = self._statements.remove_whole(before_ms, self._not_over, self._steps)
        if not removed.tasks:
            return False
        for name, count in removed._asdict().items():
            setattr(run, name, getattr(run, name) + count)
        took_s = self._mono_s() - began_s
        self._trip_s = min(self._trip_s, took_s)
        most_s = PIECE_S + TRIPS * self._trip_s
        if took_s > most_s:
            self._steps = max(STEPS_MIN, self._steps // 2)
        elif took_s < self._trip_s + PIECE_S / 2:
            self._steps = min(STEPS_MAX, self._steps * 2)
        self._statements.rest(removed.steps + removed.history)
        return True

    def _adapt(self, until_s: float, *, is_whole: bool) -> None:
        """Read fewer steps at once in the next piece if this piece was too long, more if it was short."""
        left_s = until_s - self._mono_s()
        if left_s < 0 or not is_whole:
            self._steps = max(STEPS_MIN, self._steps // 2)
        elif left_s > PIECE_S / 2:
            self._steps = min(STEPS_MAX, self._steps * 2)

    def _choose(self, now_ms: int) -> set[int]:
        """Return the next tasks to remove: of one state, the earliest first, about as many as fit into a piece."""
        for state, kept_ms in self._kept_ms.items():
            limit = min(TASKS_MAX, self._steps)
            tasks = self._statements.ended_tasks(state, now_ms - kept_ms, self._not_over, limit)
            if tasks:
                return {task.id for task in self._first(tasks, lambda task: task.steps)}
        return set()

    def _remove(self, task_ids: set[int], done: Pruned, until_s: float, *, are_over: bool) -> set[int]:
        """Remove these tasks with all their rows, as far as the time allows. Returns the tasks that still have rows."""
        statements = self._statements
        while self._remove_steps(task_ids, done, are_over) or self._remove_history(task_ids, done):
            if self._mono_s() > until_s:
                if not are_over and (not_over := statements.task_not_over(task_ids)) is not None:
                    raise NotOver(not_over)  # a task may be partly removed only if all its steps have ended
                return task_ids
        done.keys += statements.remove_keys(task_ids)
        done.tasks += statements.remove_tasks(task_ids)
        return set()

    def _remove_steps(self, task_ids: set[int], done: Pruned, are_over: bool) -> bool:
        """Remove a slice of the steps. Returns whether more steps may exist."""
        steps = self._statements.steps_of(task_ids, self._steps + 1)
        if not are_over:
            for step in steps:
                if step.state not in STEP_FINAL:
                    raise NotOver(step.task_id)
        if not steps:
            return False
        some = self._first(steps, lambda _: 1)
        done.steps += self._statements.remove_steps([step.id for step in some])
        return len(some) < len(steps)

    def _remove_history(self, task_ids: set[int], done: Pruned) -> bool:
        count = self._statements.remove_history(task_ids, HISTORY_MAX)
        done.history += count
        return count == HISTORY_MAX

    # -- refused input ------------------------------------------------------------------------------------------------

    def _remove_parked(self, done: Pruned, now_ms: int) -> None:
        """Remove old refused input. It is kept as long as a failed task, up to a limit of rows and a limit of bytes."""
        last = self._statements.newest_parked()
        if last is None:
            return
        # Ids ascend, so the limit of rows is a limit of ids.
        oldest_kept_ms = now_ms - self._kept_ms[TaskState.FAILED]
        unwanted = self._statements.parked_until(last - PARKED_ROWS_MAX, oldest_kept_ms, self._steps)
        if not unwanted and last > self._parked_seen:
            unwanted = self._beyond_bytes()
            self._parked_seen = 0 if unwanted else last
        if unwanted:
            done.parked += self._statements.remove_parked([row.id for row in self._first(unwanted, lambda _: 1)])

    def _beyond_bytes(self) -> list[ParkedInput]:
        """Return the refused inputs that exceed PARKED_BYTES_MAX, the oldest first."""
        room = PARKED_BYTES_MAX
        unwanted = []
        for row in self._statements.newest_parked_sizes(PARKED_ROWS_MAX):
            room -= row.bytes
            if room < 0:
                unwanted.append(row)
        return unwanted[::-1]

    # -- the audit ----------------------------------------------------------------------------------------------------

    def _remove_audit(self, done: Pruned, now_ms: int) -> None:
        """Remove old rows from the beginning of each chain: a chain has no gap, and its cut has the last row's hash."""
        last: dict[int, OldAudit] = {}
        ended: set[int] = set()
        for row in self._statements.first_audit(AUDIT_MAX):
            if row.at_ms >= now_ms - self._audit_kept_ms:
                ended.add(row.lane)
            if row.lane not in ended:
                last[row.lane] = row
        for row in last.values():
            done.audit += self._statements.cut_audit(row)

    def _first(self, rows: Sequence[RowT], steps_of: Callable[[RowT], int]) -> list[RowT]:
        """Return the first rows that fit into a piece by bytes and steps; at least one row."""
        bytes_left, steps_left = BYTES_MAX, self._steps
        first: list[RowT] = []
        for row in rows:
            bytes_left -= row.bytes
            steps_left -= steps_of(row)
            if first and (bytes_left < 0 or steps_left < 0):
                break
            first.append(row)
        return first


def kept_ms(settings: RetentionSettings) -> dict[TaskState, int]:
    """Return the time for which an ended task is kept, by its state."""
    return {
        TaskState.COMPLETED: settings.completed_ms,
        TaskState.FAILED: settings.failed_ms,
        TaskState.CANCELLED: settings.failed_ms,
    }
