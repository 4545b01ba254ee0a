"""A database in memory with the meaning of the real one: keys decided by the insert, all or nothing, absolute rows, a
sequence row, and the checks of its tables. It is a Writer of the shipped lane and it answers the shipped claims stage.

The checkers read it too. In a seed that runs on SQLite it is a mirror, written with what SQLite committed, and compared
with it at the end.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads, StoredStep, StoredTask, StoredWorkflow
from stepwire_broker.core.model.commit_group import (
    CommitGroup,
    HistoryRow,
    Key,
    Parked,
    StepChanged,
    StepCompleted,
    StepDispatched,
    StepNew,
    TaskChanged,
    TaskNew,
    WorkflowNew,
)
from stepwire_broker.core.model.states import TASK_FINAL
from stepwire_broker.store import tables as declared
from stepwire_broker.store.keys import KeyOwner, Name
from stepwire_broker.store.lane import Rows, StoredDigest, Trouble
from stepwire_broker.store.rows import TaskOfStep

ID_BLOCK: Final = 10_000


class DataRefused(Exception):
    """What this says can never be stored."""


class CannotWriteNow(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SyncFailed(Exception):
    """Nobody knows what is on the disk."""


class StepRow(NamedTuple):
    """StoredStep, and the two columns that the loader does not ask for."""

    stored: StoredStep
    name: str
    handler_class: str


class Tables:
    def __init__(self) -> None:
        self.tasks: dict[int, TaskNew] = {}
        self.steps: dict[int, StepRow] = {}
        self.steps_of: dict[int, list[int]] = {}
        self.keys: dict[Name, KeyOwner] = {}
        self.workflows: dict[int, StoredWorkflow] = {}
        self.history: dict[int, list[HistoryRow]] = {}
        self.log: list[HistoryRow] = []
        self.parked: list[Parked] = []
        self.kept: dict[str, str] = {}
        self.deployment = ""
        self.epoch = 0
        self.lease_ms = 0
        self.seq = 0
        self.next_id = 1

    # -- writing: every change leaves behind how to take it back ------------------------------------------------------

    def write(self, rows: Rows, undo: list[Callable[[], object]]) -> None:
        tasks = self.tasks
        for task in rows.tasks_new:
            if task.id in tasks:
                raise DataRefused(f"task {task.id} is there already")
            _check_task(task)
            tasks[task.id] = task._replace(state=str(task.state))
            undo.append(lambda i=task.id: tasks.pop(i))  # type: ignore[misc]
        for new in rows.steps_new:
            self._add_step(new, undo)
        kept = [row for row in rows.steps_output if row.output is not None]
        for row in rows.steps_dispatched:
            self._change_step(row.id, _dispatched(row), undo, is_checked=True)
        for done in rows.steps_completed:
            self._change_step(done.id, _completed(done), undo, is_checked=True)
        for output in kept:
            assert output.output is not None
            text = output.output.decode()
            self._change_step(output.id, {"output": text, "output_bytes": output.output_bytes}, undo)
        for changed in rows.steps_changed:
            self._change_step(changed.id, _changed(changed), undo, is_checked=True)
        for output in rows.steps_output:
            if output.output is None:
                self._change_step(output.id, {"output": None, "output_bytes": output.output_bytes}, undo)
        for moved in rows.tasks_changed:
            before = tasks.get(moved.id)
            if before is not None:
                values = moved._asdict()
                values["state"] = str(moved.state)
                after = before._replace(**values)
                _check_task(after)
                tasks[moved.id] = after
                undo.append(lambda i=moved.id, b=before: tasks.__setitem__(i, b))  # type: ignore[misc]
        for told in rows.history:
            self.history.setdefault(told.task_id, []).append(told)
            self.log.append(told)
            undo.append(lambda i=told.task_id: (self.history[i].pop(), self.log.pop()))  # type: ignore[misc]

    def _add_step(self, new: StepNew, undo: list[Callable[[], object]]) -> None:
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
        self.steps[new.id] = StepRow(stored, new.name, new.handler_class)
        of_task = self.steps_of.setdefault(new.task_id, [])
        of_task.append(new.id)

        def take_back() -> None:
            del self.steps[new.id]
            of_task.pop()

        undo.append(take_back)

    def _change_step(
        self, step_id: int, values: dict[str, Any], undo: list[Callable[[], object]], *, is_checked: bool = True
    ) -> None:
        before = self.steps.get(step_id)
        if before is None:
            return
        stored = _with(before.stored, values)
        if is_checked:
            _check_step(stored)
        self.steps[step_id] = before._replace(stored=stored)
        undo.append(lambda: self.steps.__setitem__(step_id, before))

    # -- reading, as the queries do -----------------------------------------------------------------------------------

    def load_page(self, limit: int, epoch: int, wants: Sequence[str], now_ms: int, resident_bytes_max: int) -> Loaded:
        stored = [t for t in self.tasks.values() if t.finished_ms is None and t.owner_epoch != epoch]
        due = [
            t
            for t in stored
            if (t.wake_ms is not None and t.wake_ms <= now_ms)
            or (t.wants is not None and t.wants in wants)
            or (t.wake_ms is None and t.wants is None)
        ]
        due.sort(key=lambda t: (-t.priority, t.id))
        loaded = self._load([t.id for t in due[:limit]], resident_bytes_max)
        return loaded._replace(wants=tuple(sorted({t.wants for t in stored if t.wants is not None})))

    def load_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
        return self._load(sorted({i for i in task_ids if i in self.tasks}), resident_bytes_max)

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, TaskOfStep]:
        found = {}
        for step_id in step_ids:
            row = self.steps.get(step_id)
            if row is not None:
                task = self.tasks[row.stored.task_id]
                found[step_id] = TaskOfStep(task.id, task.state)
        return found

    def load_payloads(self, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
        contexts = {i: self.tasks[i].context for i in task_ids if i in self.tasks}
        outputs = {i: self.steps[i].stored.output for i in step_ids if i in self.steps}
        return Payloads(contexts, {i: o.encode() for i, o in outputs.items() if o is not None})

    def _load(self, task_ids: Iterable[int], resident_bytes_max: int) -> Loaded:
        tasks: list[StoredTask] = []
        steps: list[StoredStep] = []
        for task_id in task_ids:
            tasks.append(self.stored_task(task_id, resident_bytes_max))
            for stored in self.stored_steps(task_id):
                large = stored.output_bytes > resident_bytes_max
                steps.append(stored._replace(output=None) if large else stored)
        return Loaded(tasks, steps)

    def stored_task(self, task_id: int, resident_bytes_max: int = 1 << 60) -> StoredTask:
        row = self.tasks[task_id]
        values = {name: getattr(row, name) for name in StoredTask._fields}
        values["cancelling"] = int(row.cancelling)
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


class MemoryWriter:
    """The Writer of a lane over Tables. `refuses` may raise DataRefused for rows that are to be unstorable."""

    def __init__(self, tables: Tables, epoch: int, refuses: Callable[[Rows], None] | None = None) -> None:
        self._tables = tables
        self._epoch = epoch
        self._refuses = refuses
        self._undo: list[Callable[[], object]] = []
        self._marks: list[int] = []

    def begin(self) -> None:
        assert not self._undo

    def commit(self) -> None:
        self._undo.clear()
        self._marks.clear()

    def abandon(self) -> None:
        self._back_to(0)
        self._marks.clear()

    def _back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()

    def advance(self, seq: int) -> bool:
        tables = self._tables
        if tables.epoch != self._epoch or tables.seq != seq - 1:
            return False
        self._set("seq", seq)
        return True

    def _set(self, name: str, value: int) -> None:
        before = getattr(self._tables, name)
        setattr(self._tables, name, value)
        self._undo.append(lambda: setattr(self._tables, name, before))

    def position(self) -> int | None:
        return self._tables.seq if self._tables.epoch == self._epoch else None

    def savepoint(self) -> None:
        self._marks.append(len(self._undo))

    def release(self) -> None:
        self._marks.pop()

    def undo(self) -> None:
        self._back_to(self._marks.pop())

    def claim_keys(self, claims: Sequence[Key]) -> int:
        keys = self._tables.keys
        claimed = 0
        for key in claims:
            name = (key.namespace, key.key)
            if name not in keys:
                keys[name] = KeyOwner(key.digest, key.task_id)
                self._undo.append(lambda n=name: keys.pop(n))  # type: ignore[misc]
                claimed += 1
        return claimed

    def key_owners(self, claims: Sequence[Key]) -> dict[Name, KeyOwner]:
        return {(key.namespace, key.key): self._tables.keys[key.namespace, key.key] for key in claims}

    def release_keys(self, claims: Sequence[Key]) -> None:
        keys = self._tables.keys
        for key in claims:
            name = (key.namespace, key.key)
            if name in keys and keys[name].task_id == key.task_id:
                owner = keys.pop(name)
                self._undo.append(lambda n=name, o=owner: keys.__setitem__(n, o))  # type: ignore[misc]

    def add_workflow(self, new: WorkflowNew) -> bool:
        workflows = self._tables.workflows
        if self._find(new.namespace, new.name, new.version) is not None:
            return False
        number = len(workflows) + 1
        workflows[number] = StoredWorkflow(
            number, new.namespace, new.name, new.version, new.digest, new.document.decode(), new.created_ms, 0
        )
        self._undo.append(lambda: workflows.pop(number))
        return True

    def _find(self, namespace: str, name: str, version: str) -> StoredWorkflow | None:
        for row in self._tables.workflows.values():
            if (row.namespace, row.name, row.version) == (namespace, name, version):
                return row
        return None

    def find_workflow(self, namespace: str, name: str, version: str) -> StoredDigest:
        row = self._find(namespace, name, version)
        assert row is not None
        return StoredDigest(row.id, row.digest)

    def activate(self, workflow_id: int) -> None:
        workflows = self._tables.workflows
        wanted = workflows[workflow_id]
        for row in list(workflows.values()):
            if (row.namespace, row.name) == (wanted.namespace, wanted.name):
                workflows[row.id] = row._replace(active=int(row.id == workflow_id))
                self._undo.append(lambda r=row: workflows.__setitem__(r.id, r))  # type: ignore[misc]

    def keep(self, name: str, value: str) -> None:
        kept, before = self._tables.kept, dict(self._tables.kept)
        kept[name] = value

        def undo() -> None:
            kept.clear()
            kept.update(before)

        self._undo.append(undo)

    def write(self, rows: Rows) -> None:
        if self._refuses is not None:
            self._refuses(rows)
        self._tables.write(rows, self._undo)

    def park(self, parked: Sequence[Parked]) -> None:
        for row in parked:
            self._tables.parked.append(row)
            self._undo.append(self._tables.parked.pop)

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]:
        steps = self._tables.steps
        return {i: steps[i].stored.task_id for i in step_ids if i in steps}

    def reserve_ids(self, count: int) -> tuple[int, int]:
        first = self._tables.next_id
        self._set("next_id", first + count)
        return first, first + count - 1

    def trouble(self, error: Exception) -> Trouble:
        return trouble(error)

    def rest(self, group: CommitGroup) -> None:
        pass

    def close(self) -> None:
        pass


def trouble(error: Exception) -> Trouble:
    match error:
        case DataRefused():
            return Trouble("data", "", str(error))
        case CannotWriteNow():
            return Trouble("passing", error.code, str(error))
        case SyncFailed():
            return Trouble("broken", "", str(error))
        case _:
            raise error


# -- rows -------------------------------------------------------------------------------------------------------------


_PLACES: Final = {name: i for i, name in enumerate(StoredStep._fields)}


def _with(row: StoredStep, values: dict[str, Any]) -> StoredStep:
    """What `_replace` does, which takes twice as long."""
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
    """The CHECK of a table, as it is declared, one expression a state: what must be filled and what must not."""
    found = {}
    for state, condition in re.findall(r"WHEN '(\w+)' THEN (.*?)(?=\n? WHEN|\n? ELSE)", case, re.DOTALL):
        text = re.sub(r"(\w+) IS NOT NULL", r"row.\1 is not None", " ".join(condition.split()))
        text = re.sub(r"(\w+) IS NULL", r"row.\1 is None", text)
        text = re.sub(r"\b(delivery|owner_epoch) ([=>])", lambda m: f"row.{m[1]} {'==' if m[2] == '=' else m[2]}", text)
        found[state] = eval(f"lambda row: {text.replace('AND', 'and')}")  # noqa: S307
    return found


_STEP_CHECKS: Final = _compiled(declared.STEP_STATES)
_TASK_CHECKS: Final = _compiled(declared.TASK_STATES)


def _check_step(row: StoredStep) -> None:
    if not _STEP_CHECKS[row.state](row):
        raise DataRefused(f"CHECK constraint failed: step {row}")


def _check_task(row: TaskNew | TaskChanged) -> None:
    if not _TASK_CHECKS[row.state](row):
        raise DataRefused(f"CHECK constraint failed: task {row}")
