"""A database in memory for the core's tests: groups are applied to plain rows, and what the core asks to read is read
from them. What the store promises (absolute rows, keys decided by the insert) is said here once more, in few words."""

from collections.abc import Iterable

from stepwire_broker.core.commit import history
from stepwire_broker.core.commit.decision import FetchPayloads, LoadById, LoadBySteps, LoadPage, Read
from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads, StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.commit_group import (
    CommitGroup,
    Committed,
    HistoryRow,
    Parked,
    Rejected,
    Submission,
    SubmissionOutcome,
    TaskNew,
    WorkflowOutcome,
)
from stepwire_broker.core.model.events import LoadedPayloads, LoadedTasks
from stepwire_broker.core.model.states import STEP_FINAL, TASK_FINAL


class Rows:
    def __init__(self) -> None:
        self.tasks: dict[int, TaskNew] = {}
        self.steps: dict[int, StoredStep] = {}
        self.history: dict[int, list[HistoryRow]] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.parked: list[Parked] = []
        self.kept: dict[str, str] = {}
        self.workflow_ids: dict[tuple[str, str, str], tuple[int, str]] = {}
        self.active: set[int] = set()
        self.next_id = 1 << 30
        self.refuses: set[int] = set()  # tasks whose changes are data errors
        self.refuses_submissions = False

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, group: CommitGroup) -> Committed:
        submissions = [self._submit(s) for s in group.submissions]
        rejected = [Rejected(i, "refused for the test") for i in sorted(self._touched(group) & self.refuses)]
        left_out = {r.task_id for r in rejected} | {i for s in submissions for i in s.existing}
        left_out |= {
            t.id for s, o in zip(group.submissions, submissions, strict=True) if o.conflict or o.failed for t in s.tasks
        }
        self._change(group, left_out)
        for row in group.history:
            if row.task_id not in left_out:
                self.history.setdefault(row.task_id, []).append(row)
        self.parked += group.parked
        self.kept.update(group.kept)
        workflows = []
        for new in group.workflows:
            name = (new.namespace, new.name, new.version)
            created = name not in self.workflow_ids
            number, digest = self.workflow_ids.setdefault(name, (len(self.workflow_ids) + 1, new.digest))
            workflows.append(WorkflowOutcome(new.request, number, created, digest != new.digest))
        self.active.update(number for _, number in group.activations)
        ids = None
        if group.reserve_ids:
            ids = (self.next_id, self.next_id + group.reserve_ids - 1)
            self.next_id += group.reserve_ids
        return Committed(group.lane, group.seq, submissions, workflows, rejected, ids)

    def again(self, group: CommitGroup) -> None:
        """The absolute rows of a group once more, as after a commit whose outcome nobody knew."""
        self._change(group, set())

    def _touched(self, group: CommitGroup) -> set[int]:
        steps = (*group.steps_dispatched, *group.steps_completed, *group.steps_changed, *group.steps_output)
        touched = {self.steps[row.id].task_id for row in steps if row.id in self.steps}
        return touched | {row.id for row in group.tasks_changed} | {row.task_id for row in group.history}

    def _submit(self, submission: Submission) -> SubmissionOutcome:
        if self.refuses_submissions:
            return SubmissionOutcome(submission.request, {}, None, failed="refused for the test")
        existing: dict[int, int] = {}
        taken: dict[tuple[str, str], tuple[bytes, int]] = {}
        for key in submission.keys:
            name = (key.namespace, key.key)
            digest, task_id = self.keys.get(name) or taken.setdefault(name, (key.digest, key.task_id))
            if digest != key.digest:
                return SubmissionOutcome(submission.request, {}, key.key)
            if task_id != key.task_id:
                existing[key.task_id] = task_id
        self.keys.update(taken)
        for task in submission.tasks:
            if task.id not in existing:
                assert task.id not in self.tasks
                self.tasks[task.id] = task
        for step in submission.steps:
            if step.task_id not in existing:
                self.steps[step.id] = StoredStep(
                    step.id,
                    step.task_id,
                    step.position,
                    step.state,
                    *(0, 0, 0, None, None, 0, 0, step.ready_ms),
                    *(None,) * 7,
                    *(0, None, None, 0),
                )
        for row in submission.history:
            if row.task_id not in existing:
                self.history.setdefault(row.task_id, []).append(row)
        return SubmissionOutcome(submission.request, existing, None)

    def _change(self, group: CommitGroup, left_out: set[int]) -> None:
        steps = self.steps
        outputs = {row.id: row for row in group.steps_output}
        # One step stands in one list of changes at most: no order among the lists is to be known.
        changed = [
            row.id for rows in (group.steps_dispatched, group.steps_completed, group.steps_changed) for row in rows
        ]
        assert len(changed) == len(set(changed))
        assert len(outputs) == len(group.steps_output)

        def put(step_id: int, **columns: object) -> None:
            if step_id in steps and steps[step_id].task_id not in left_out:
                steps[step_id] = steps[step_id]._replace(**columns)

        for d in group.steps_dispatched:
            put(d.id, state="dispatched", **{k: v for k, v in d._asdict().items() if k != "id"})
        for c in group.steps_completed:
            put(
                c.id,
                state="completed",
                output=c.output.decode(),
                output_bytes=c.output_bytes,
                finished_ms=c.finished_ms,
                batch_id=None,
                not_before_ms=None,
                reason=None,
                earlier=None,
            )
        for s in group.steps_changed:
            columns = {k: v for k, v in s._asdict().items() if k != "id"}
            columns |= {k: None if columns[k] is None else columns[k].decode() for k in ("error", "earlier")}
            columns |= {"granted": int(s.granted), "state": str(s.state)}
            put(s.id, **columns)
        for o in group.steps_output:
            put(o.id, output=None if o.output is None else o.output.decode(), output_bytes=o.output_bytes)
        for t in group.tasks_changed:
            if t.id in self.tasks and t.id not in left_out:
                self.tasks[t.id] = self.tasks[t.id]._replace(**{k: v for k, v in t._asdict().items() if k != "id"})

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, read: Read, epoch: int, now_ms: int, resident_bytes_max: int) -> LoadedTasks | LoadedPayloads:
        match read:
            case LoadPage(request, limit, wants):
                stored = [t for t in self.tasks.values() if t.finished_ms is None and t.owner_epoch != epoch]
                due = [
                    t
                    for t in stored
                    if (t.wake_ms is None and t.wants is None)
                    or (t.wake_ms is not None and t.wake_ms <= now_ms)
                    or t.wants in wants
                ]
                due.sort(key=lambda t: (-t.priority, t.id))
                loaded = self._load([t.id for t in due[:limit]], resident_bytes_max)
                all_wants = tuple(sorted({t.wants for t in stored if t.wants is not None}))
                return LoadedTasks(loaded._replace(wants=all_wants), request)
            case LoadById(request, task_ids):
                return LoadedTasks(self._load(task_ids, resident_bytes_max), request)
            case LoadBySteps(request, step_ids, any_state):
                found = {self.steps[i].task_id for i in step_ids if i in self.steps}
                wanted = {i for i in found if any_state or self.tasks[i].state not in TASK_FINAL}
                loaded = self._load(sorted(wanted), resident_bytes_max)
                return LoadedTasks(loaded, request, frozenset(step_ids) - {s.id for s in loaded.steps})
            case FetchPayloads(request, task_ids, step_ids):
                outputs = {i: self.steps[i].output for i in step_ids if i in self.steps}
                return LoadedPayloads(
                    Payloads(
                        {i: self.tasks[i].context for i in task_ids if i in self.tasks},
                        {i: output.encode() for i, output in outputs.items() if output is not None},
                    ),
                    request,
                )

    def _load(self, task_ids: Iterable[int], resident_bytes_max: int) -> Loaded:
        tasks = [self.task(i, resident_bytes_max) for i in task_ids if i in self.tasks]
        steps = [
            s._replace(output=None) if s.output is not None and s.output_bytes > resident_bytes_max else s
            for t in tasks
            for s in self.steps_of(t.id)
        ]
        return Loaded(tasks, steps)

    def task(self, task_id: int, resident_bytes_max: int = 1 << 40) -> StoredTask:
        row = self.tasks[task_id]
        columns = {k: v for k, v in row._asdict().items() if k in StoredTask._fields}
        columns["state"], columns["cancelling"] = str(row.state), int(row.cancelling)
        columns["context"] = None if row.context_bytes > resident_bytes_max else row.context.decode()
        columns["labels"] = None if row.labels is None else row.labels.decode()
        return StoredTask(**columns)

    def steps_of(self, task_id: int) -> list[StoredStep]:
        return [s for s in self.steps.values() if s.task_id == task_id]

    @property
    def open_tasks(self) -> int:
        return sum(t.finished_ms is None for t in self.tasks.values())

    @property
    def open_steps(self) -> int:
        return sum(s.state not in STEP_FINAL and self.tasks[s.task_id].finished_ms is None for s in self.steps.values())

    # -- the history --------------------------------------------------------------------------------------------------

    def differences(self, task_id: int, workflow: Workflow) -> list[history.ReplayDifference]:
        """What this task's rows say, and its history does not."""
        replayed = history.replay(task_id, workflow, [row.facts for row in self.history[task_id]])
        return history.differences(replayed, self.task(task_id), self.steps_of(task_id))
