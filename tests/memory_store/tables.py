"""A database in memory with the meaning of the real one: keys decided by the insert, transactions undone as a whole,
absolute rows, a sequence row, and the CHECKs of the declared tables.

The simulation and the core's tests run on it, and the simulation's checkers read it. The conformance suite of
tests/store runs the same tests on this store and on SQLite. In a seed that runs on SQLite it is a mirror: every call
goes to both, and at the end their rows are compared.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.commit import scrubbing
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask, StoredWorkflow
from stepwire_broker.core.membership.cluster_rows import BrokerRow
from stepwire_broker.core.model.commit_group import (
    AttentionChanged,
    HistoryRow,
    Parked,
    StepChanged,
    StepCompleted,
    StepDispatched,
    StepNew,
    StepStderr,
    TaskChanged,
    TaskNew,
)
from stepwire_broker.core.model.states import TASK_FINAL
from stepwire_broker.store import erasure
from stepwire_broker.store import tables as declared
from stepwire_broker.store.audit_chain import START, AuditHead, AuditRow
from stepwire_broker.store.keys import KeyOwner, Name
from stepwire_broker.store.lane import Rows
from stepwire_broker.store.ports import LANE

Undo = list[Callable[[], object]]


class DataRefused(Exception):
    """The rows can never be stored."""


class StoredRow(NamedTuple):
    """A step: what the loader reads, and the two columns that it does not."""

    stored: StoredStep
    name: str
    handler_class: str


class LoggedRow(NamedTuple):
    """A row of the history with its place in its lane."""

    lane: int
    seq: int
    position: int
    task_id: int
    at_ms: int
    facts: bytes


class BlockRow(NamedTuple):
    lane: int
    reserved: int


class LaneOwner(NamedTuple):
    """The row of a lane: who writes it. Its epoch changes with every change of its owner."""

    owner: str | None = None
    owner_epoch: int | None = None  # of the start of that broker
    epoch: int = 0


class ControlRow(NamedTuple):
    value: str | None
    position: int
    revision: int


class OrderRow(NamedTuple):
    lane: int
    asked_ms: int
    request: str
    answer: str | None


class Tables:
    def __init__(self, lanes: int = 1) -> None:
        self.tasks: dict[int, TaskNew] = {}
        self.steps: dict[int, StoredRow] = {}
        self.steps_of: dict[int, list[int]] = {}
        self.keys: dict[Name, KeyOwner] = {}
        self.workflows: dict[int, StoredWorkflow] = {}
        self.history: dict[int, list[LoggedRow]] = {}
        self.log: list[LoggedRow] = []
        self.parked: dict[int, Parked] = {}
        self.stderr: dict[int, StepStderr] = {}
        self.attention: dict[int, AttentionChanged] = {}  # by the id of the step or of the task
        self.partly_removed: set[int] = set()  # by retention
        self.notes: dict[str, str] = {}
        self.controls: dict[tuple[str, str], ControlRow] = {}  # by kind and name
        self.orders: dict[int, OrderRow] = {}  # by id
        self.now_ms: Callable[[], int] = lambda: 0  # the clock of the database
        self.true_ms: Callable[[], int] = lambda: 0  # the same, if that clock is never set
        self.audit: list[AuditRow] = []
        self.audit_cuts: dict[int, AuditHead] = {}  # by lane, where retention has removed rows
        self.deployment = ""
        self.epochs = 0  # the last one that was given to a start of a broker
        self.lease_ms = 0
        self.lanes = dict.fromkeys(range(LANE, LANE + lanes), LaneOwner())
        self.owners: dict[int, list[tuple[int, str]]] = {}  # by lane: each take, with the time
        self.brokers: dict[str, BrokerRow] = {}
        # Lanes whose transaction is between its fence and its COMMIT, with its holder and how to end the holder:
        self.locked: dict[int, object] = {}
        self.end_blocker: Callable[[int], None] = lambda lane: None
        self.seqs = dict.fromkeys(range(LANE, LANE + lanes), 0)  # by lane: of its last transaction
        self.blocks: dict[int, BlockRow] = {}  # by number, of ids

    def take(self, lane: int, owner: str, owner_epoch: int) -> None:
        """Give a lane to this start of a broker, which fences the writer of its former owner."""
        self.lanes[lane] = LaneOwner(owner, owner_epoch, self.lanes[lane].epoch + 1)
        self.owners.setdefault(lane, []).append((self.true_ms(), owner))

    def reserve_ids(self, lane: int, count: int) -> tuple[int, int]:
        number = max((n for n, block in self.blocks.items() if block.lane == lane), default=None)
        if number is None or self.blocks[number].reserved + count > IDS_PER_BLOCK:
            number = max(self.blocks, default=-1) + 1
            self.blocks[number] = BlockRow(lane, 0)
        self.blocks[number] = BlockRow(lane, self.blocks[number].reserved + count)
        last = number * IDS_PER_BLOCK + self.blocks[number].reserved
        return last - count + 1, last

    # -- writing: every change adds to `undo` how to take it back -----------------------------------------------------

    def write(self, rows: Rows, undo: Undo, lane: int = LANE) -> None:
        self._add_tasks(rows, undo)
        self._change_steps(rows, undo)
        self._change_tasks(rows, undo)
        for row in rows.history:
            self._add_history(row, undo, lane)
        for noticed in rows.attention:
            self._notice(noticed, undo)
        for task_id, at_ms in rows.erasures:
            self._erase(task_id, at_ms, undo)

    def _notice(self, row: AttentionChanged, undo: Undo) -> None:
        before = self.attention.pop(row.id, None)
        if row.kind is not None:
            self.attention[row.id] = row

        def take_back() -> None:
            self.attention.pop(row.id, None)
            if before is not None:
                self.attention[row.id] = before

        undo.append(take_back)

    def _erase(self, task_id: int, at_ms: int, undo: Undo) -> None:
        marker = erasing.marker(at_ms)
        before = self.tasks[task_id]
        self.tasks[task_id] = before._replace(key=None, labels=marker, context=marker, context_bytes=len(marker))
        undo.append(lambda: self.tasks.__setitem__(task_id, before))
        if before.key is not None:
            name = (before.namespace, before.key)
            owner = self.keys.get(name)
            if owner is not None and owner.task_id == task_id:
                del self.keys[name]
                undo.append(lambda: self.keys.__setitem__(name, owner))
        step_ids = set(self.steps_of.get(task_id, ()))
        for step_id in step_ids:
            self._erase_step(step_id, at_ms, undo)
        for number, row in list(self.parked.items()):
            is_frame = row.code in erasure.FRAME_CODES and erasure.names_a_step(row.body, step_ids)
            if row.task_id == task_id or row.step_id in step_ids or is_frame:
                self.parked[number] = row._replace(body=marker)
                undo.append(lambda n=number, b=row: self.parked.__setitem__(n, b))  # type: ignore[misc]
        self._erase_history(task_id, undo)

    def _erase_step(self, step_id: int, at_ms: int, undo: Undo) -> None:
        marker = erasing.marker(at_ms).decode()
        stored = self.steps[step_id].stored
        values: dict[str, Any] = {}
        if stored.output is not None:
            values |= {"output": marker, "output_bytes": len(marker)}
        if stored.error is not None:
            values["error"] = marker
        if stored.reason is not None:
            values["reason"] = erasing.code(stored.reason)
        self._change_step(step_id, values, undo)
        text = self.stderr.get(step_id)
        if text is not None:
            self.stderr[step_id] = text._replace(text=marker)
            undo.append(lambda: self.stderr.__setitem__(step_id, text))

    def _erase_history(self, task_id: int, undo: Undo) -> None:
        of_task = self.history.get(task_id, [])
        before, log_before = list(of_task), list(self.log)
        scrubbed = {row[:3]: row._replace(facts=scrubbing.scrubbed(row.facts)) for row in before}
        of_task[:] = scrubbed.values()
        self.log[:] = [scrubbed[row[:3]] if row.task_id == task_id else row for row in log_before]

        def take_back() -> None:
            of_task[:], self.log[:] = before, log_before

        undo.append(take_back)

    def _add_tasks(self, rows: Rows, undo: Undo) -> None:
        tasks = self.tasks
        for task in rows.tasks_new:
            if task.id in tasks:
                raise DataRefused(f"task {task.id} already exists")
            if task.workflow_id not in self.workflows:
                raise DataRefused(f"task {task.id} refers to workflow {task.workflow_id}, which does not exist")
            task.context.decode()  # text that is not UTF-8 cannot be stored
            _check_task(task)
            tasks[task.id] = task._replace(state=str(task.state))
            undo.append(lambda i=task.id: tasks.pop(i))  # type: ignore[misc]
        for new in rows.steps_new:
            self._add_step(new, undo)

    def _change_steps(self, rows: Rows, undo: Undo) -> None:
        kept = [row for row in rows.steps_output if row.output is not None]
        for row in rows.steps_dispatched:
            self._change_step(row.id, _dispatched(row), undo)
        for done in rows.steps_completed:
            self._change_step(done.id, _completed(done), undo)
        for output in kept:
            assert output.output is not None
            text = output.output.decode()
            self._change_step(output.id, {"output": text, "output_bytes": output.output_bytes}, undo)
        for changed in rows.steps_changed:
            self._change_step(changed.id, _changed(changed), undo)
        for output in rows.steps_output:
            if output.output is None:
                self._change_step(output.id, {"output": None, "output_bytes": output.output_bytes}, undo)

        for text in rows.steps_stderr:
            before = self.stderr.get(text.id)
            self.stderr[text.id] = text
            undo.append(lambda i=text.id, b=before: self._set_stderr(i, b))  # type: ignore[misc]

    def _set_stderr(self, step_id: int, text: StepStderr | None) -> None:
        if text is None:
            del self.stderr[step_id]
        else:
            self.stderr[step_id] = text

    def _change_tasks(self, rows: Rows, undo: Undo) -> None:
        tasks = self.tasks
        for changed in rows.tasks_changed:
            before = tasks.get(changed.id)
            if before is None or changed.id in self.partly_removed:
                raise DataRefused("a task was removed from the database before this change of it was written")
            values = changed._asdict()
            values["state"] = str(changed.state)
            after = before._replace(**values)
            _check_task(after)
            tasks[changed.id] = after
            undo.append(lambda i=changed.id, b=before: tasks.__setitem__(i, b))  # type: ignore[misc]

    def _add_history(self, row: HistoryRow, undo: Undo, lane: int) -> None:
        last = self.log[-1] if self.log else None
        position = last.position + 1 if last is not None and last[:2] == (lane, self.seqs[lane]) else 0
        logged = LoggedRow(lane, self.seqs[lane], position, *row)
        of_task = self.history.setdefault(row.task_id, [])
        of_task.append(logged)
        self.log.append(logged)
        undo.append(lambda: (of_task.pop(), self.log.pop()))

    def _add_step(self, new: StepNew, undo: Undo) -> None:
        if new.id in self.steps or new.task_id not in self.tasks:
            raise DataRefused(f"step {new.id} cannot be inserted")
        blank = dict.fromkeys(StoredStep._fields, None)
        blank |= dict.fromkeys(
            ("attempt", "delivery", "accept_from", "granted", "lost_sessions", "key_number", "output_bytes"), 0
        )
        blank |= {
            "id": new.id,
            "task_id": new.task_id,
            "position": new.position,
            "state": str(new.state),
            "ready_ms": new.ready_ms,
        }
        stored = StoredStep(**blank)  # type: ignore[arg-type]
        _check_step(stored)
        self.steps[new.id] = StoredRow(stored, new.name, new.handler_class)
        of_task = self.steps_of.setdefault(new.task_id, [])
        of_task.append(new.id)

        def take_back() -> None:
            del self.steps[new.id]
            of_task.pop()

        undo.append(take_back)

    def _change_step(self, step_id: int, values: dict[str, Any], undo: Undo) -> None:
        before = self.steps.get(step_id)
        if before is None:
            return
        stored = _with(before.stored, values)
        _check_step(stored)
        self.steps[step_id] = before._replace(stored=stored)
        undo.append(lambda: self.steps.__setitem__(step_id, before))

    def audit_end(self, lane: int) -> AuditHead:
        """Return the end of the lane's chain."""
        last = next((row for row in reversed(self.audit) if row.lane == lane), None)
        return self.audit_cut(lane) if last is None else AuditHead(lane, last.n, last.hash)

    def audit_cut(self, lane: int) -> AuditHead:
        return self.audit_cuts.get(lane, AuditHead(lane, 0, START))

    # -- rows as the loader brings them --------------------------------------------------------------------------------

    def stored_task(self, task_id: int, resident_bytes_max: int = 1 << 60) -> StoredTask:
        row = self.tasks[task_id]
        values = {name: getattr(row, name) for name in StoredTask._fields}
        values["cancelling"] = int(row.cancelling)
        values["stored"] = int(row.stored)
        values["context"] = None if row.context_bytes > resident_bytes_max else row.context.decode()
        values["labels"] = None if row.labels is None else row.labels.decode()
        return StoredTask(**values)

    def stored_steps(self, task_id: int) -> list[StoredStep]:
        return [self.steps[i].stored for i in self.steps_of.get(task_id, ())]

    @property
    def open_tasks(self) -> list[TaskNew]:
        return [t for t in self.tasks.values() if t.finished_ms is None]

    def is_final(self, task_id: int) -> bool:
        return self.tasks[task_id].state in TASK_FINAL


# -- rows -------------------------------------------------------------------------------------------------------------


_PLACES: Final = {name: i for i, name in enumerate(StoredStep._fields)}


def _with(row: StoredStep, values: dict[str, Any]) -> StoredStep:
    """Do what `_replace` does, in half the time."""
    changed = list(row)
    for name, value in values.items():
        changed[_PLACES[name]] = value
    return StoredStep(*changed)


def _dispatched(row: StepDispatched) -> dict[str, Any]:
    return {
        "state": "dispatched",
        "delivery": row.delivery,
        "batch_id": row.batch_id,
        "worker": row.worker,
        "ready_ms": row.ready_ms,
        "dispatched_ms": row.dispatched_ms,
    }


def _completed(row: StepCompleted) -> dict[str, Any]:
    return {
        "state": "completed",
        "output": row.output.decode(),
        "output_bytes": row.output_bytes,
        "finished_ms": row.finished_ms,
        "run_ms": row.run_ms,
        "batch_id": None,
        "not_before_ms": None,
        "reason": None,
        "earlier": None,
    }


def _changed(row: StepChanged) -> dict[str, Any]:
    values = row._asdict()
    values["state"] = str(row.state)
    values["granted"] = int(row.granted)
    values["error"] = None if row.error is None else row.error.decode()
    values["earlier"] = None if row.earlier is None else row.earlier.decode()
    return values


def _compiled(case: str) -> dict[str, Callable[[Any], bool]]:
    """The declared CHECK of a table as one Python expression a state: which columns must be filled, which must not."""
    checks = {}
    for state, condition in re.findall(r"WHEN '(\w+)' THEN (.*?)(?=\n? WHEN|\n? ELSE)", case, re.DOTALL):
        text = re.sub(r"(\w+) IS NOT NULL", r"row.\1 is not None", " ".join(condition.split()))
        text = re.sub(r"(\w+) IS NULL", r"row.\1 is None", text)
        text = re.sub(r"\b(delivery|stored) ([=>])", lambda m: f"row.{m[1]} {'==' if m[2] == '=' else m[2]}", text)
        checks[state] = eval(f"lambda row: {text.replace('AND', 'and')}")  # noqa: S307
    return checks


_STEP_CHECKS: Final = _compiled(declared.STEP_STATES)
_TASK_CHECKS: Final = _compiled(declared.TASK_STATES)


def _check_step(row: StoredStep) -> None:
    check = _STEP_CHECKS.get(row.state)
    if check is None or not check(row):
        raise DataRefused(f"CHECK constraint failed: step {row}")


def _check_task(row: TaskNew | TaskChanged) -> None:
    check = _TASK_CHECKS.get(row.state)
    is_found = not row.stored or row.wake_ms is not None or row.wants is not None
    if check is None or not check(row) or not is_found:
        raise DataRefused(f"CHECK constraint failed: task {row}")
