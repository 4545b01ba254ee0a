"""Retention's statements over the tables in memory."""

from collections.abc import Callable, Collection, Mapping

from stepwire_broker.core.definitions.stored_rows import StoredStep
from stepwire_broker.core.model.states import STEP_FINAL, TaskState
from stepwire_broker.store.audit_chain import AuditHead
from stepwire_broker.store.retention import EndedStep, EndedTask, OldAudit, ParkedInput, Removed

from .tables import Tables
from .writer import MemoryWriter


class MemoryPruning:
    """The port `PruneStatements` of store/retention.py over Tables."""

    def __init__(self, tables: Tables, writer: MemoryWriter) -> None:
        self._tables = tables
        self.begin, self.commit, self.abandon = writer.begin, writer.commit, writer.abandon
        self.note = tables.notes.__setitem__
        self._undo: Callable[[Callable[[], object]], None] = writer.on_undo

    def remove_whole(self, before_ms: Mapping[TaskState, int], without: Collection[int], steps: int) -> Removed:
        """Remove nothing: a statement costs no trip here, so slices are as fast."""
        return Removed()

    def rest(self, rows: int) -> None:
        pass

    # -- tasks --------------------------------------------------------------------------------------------------------

    def oldest_ended_ms(self, state: str) -> int | None:
        ended = (t.finished_ms for t in self._tables.tasks.values() if t.state == state)
        return min((at_ms for at_ms in ended if at_ms is not None), default=None)

    def ended_tasks(self, state: str, before_ms: int, without: Collection[int], limit: int) -> list[EndedTask]:
        ended = [
            (t.finished_ms, EndedTask(t.id, t.context_bytes, len(self._tables.stored_steps(t.id))))
            for t in self._tables.tasks.values()
            if t.state == state and t.finished_ms is not None and t.finished_ms < before_ms and t.id not in without
        ]
        return [task for _, task in sorted(ended)[:limit]]

    def steps_of(self, task_ids: Collection[int], limit: int) -> list[EndedStep]:
        steps = [step for task_id in task_ids for step in self._tables.stored_steps(task_id)]
        return [EndedStep(step.id, self._bytes_of(step), step.task_id, step.state) for step in steps[:limit]]

    def _bytes_of(self, step: StoredStep) -> int:
        stderr = self._tables.stderr.get(step.id)
        return step.output_bytes + (0 if stderr is None else len(stderr.text))

    def task_not_over(self, task_ids: Collection[int]) -> int | None:
        steps = (step for task_id in task_ids for step in self._tables.stored_steps(task_id))
        return next((step.task_id for step in steps if step.state not in STEP_FINAL), None)

    def remove_steps(self, step_ids: Collection[int]) -> int:
        tables = self._tables
        for step_id in step_ids:
            row = tables.steps.pop(step_id)
            of_task = tables.steps_of[row.stored.task_id]
            self._undo(lambda t=row.stored.task_id, before=list(of_task): tables.steps_of.update({t: before}))
            self._undo(lambda i=step_id, r=row: tables.steps.update({i: r}))
            of_task.remove(step_id)
            if (stderr := tables.stderr.pop(step_id, None)) is not None:
                self._undo(lambda i=step_id, t=stderr: tables.stderr.update({i: t}))
            self._forget(step_id)
        return len(step_ids)

    def _forget(self, number: int) -> None:
        if (noticed := self._tables.attention.pop(number, None)) is not None:
            self._undo(lambda: self._tables.attention.update({number: noticed}))

    def remove_history(self, task_ids: Collection[int], limit: int) -> int:
        tables = self._tables
        removed = [row for row in tables.log if row.task_id in task_ids][:limit]
        if removed:
            self._undo(lambda log=tables.log, history=dict(tables.history): self._put_back(log, history))
            gone = set(removed)
            tables.log = [row for row in tables.log if row not in gone]
            tables.history = {i: [row for row in rows if row not in gone] for i, rows in tables.history.items()}
        return len(removed)

    def _put_back(self, log: list, history: dict) -> None:
        self._tables.log, self._tables.history = log, history

    def remove_keys(self, task_ids: Collection[int]) -> int:
        keys = self._tables.keys
        removed = {name: owner for name, owner in keys.items() if owner.task_id in task_ids}
        for name in removed:
            del keys[name]
        self._undo(lambda: keys.update(removed))
        return len(removed)

    def remove_tasks(self, task_ids: Collection[int]) -> int:
        tasks = self._tables.tasks
        for task_id in task_ids:
            self._forget(task_id)
        removed = {task_id: tasks.pop(task_id) for task_id in task_ids if task_id in tasks}
        self._undo(lambda: tasks.update(removed))
        return len(removed)

    # -- refused input ------------------------------------------------------------------------------------------------

    def newest_parked(self) -> int | None:
        return max(self._tables.parked, default=None)

    def parked_until(self, last_id: int, before_ms: int, limit: int) -> list[ParkedInput]:
        rows = sorted(self._tables.parked.items())
        return [ParkedInput(n, len(row.body)) for n, row in rows if n <= last_id or row.at_ms < before_ms][:limit]

    def newest_parked_sizes(self, limit: int) -> list[ParkedInput]:
        rows = sorted(self._tables.parked.items(), reverse=True)
        return [ParkedInput(n, len(row.body)) for n, row in rows[:limit]]

    def remove_parked(self, ids: Collection[int]) -> int:
        parked = self._tables.parked
        removed = {number: parked.pop(number) for number in ids}
        self._undo(lambda: parked.update(removed))
        return len(removed)

    # -- the audit ----------------------------------------------------------------------------------------------------

    def first_audit(self, limit: int) -> list[OldAudit]:
        by_lane = [[row for row in self._tables.audit if row.lane == lane][:limit] for lane in self._tables.seqs]
        return [OldAudit(row.lane, row.n, row.at_ms, row.hash) for rows in by_lane for row in rows]

    def cut_audit(self, last: OldAudit) -> int:
        tables, rows, cuts = self._tables, self._tables.audit, dict(self._tables.audit_cuts)
        kept = [row for row in rows if row.lane != last.lane or row.n > last.n]
        self._undo(lambda: (setattr(tables, "audit", rows), setattr(tables, "audit_cuts", cuts)))
        tables.audit, tables.audit_cuts = kept, {**cuts, last.lane: AuditHead(last.lane, last.n, last.hash)}
        return len(rows) - len(kept)

    # -- notes --------------------------------------------------------------------------------------------------------

    def partly_removed(self) -> set[int]:
        return set(self._tables.partly_removed)

    def note_partly_removed(self, task_ids: Collection[int]) -> None:
        tables, before = self._tables, self._tables.partly_removed
        tables.partly_removed = set(task_ids)
        self._undo(lambda: setattr(tables, "partly_removed", before))

    def forbid_changes(self, task_ids: Collection[int]) -> None:
        """The tables refuse changes of partly removed tasks themselves."""
