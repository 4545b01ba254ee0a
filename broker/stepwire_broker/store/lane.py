"""The lane: one thread that writes groups in order, each as one transaction, until it is durable.

A write can fail in three cases. If the database refuses data, the task or submission at fault is stored with its bytes
in `parked`, and the rest of the group is written. If the database cannot write now, the same group is retried until it
is written. If the database has lost data, the lane writes and reports nothing further.

The first statement of every transaction moves the lane's sequence row from n - 1 to n. A group is therefore never
written twice, a lost outcome can be read from the database, and a broker that has lost its lane writes nothing.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

from stepwire_broker.core.model.commit_group import (
    AttentionChanged,
    AuditNew,
    Broken,
    CommitGroup,
    Committed,
    ControlChanged,
    HistoryRow,
    Key,
    LaneLost,
    LostCommits,
    OrderAnswer,
    Outcome,
    Parked,
    Rejected,
    StallCode,
    StepChanged,
    StepCompleted,
    StepDispatched,
    StepNew,
    StepOutput,
    StepStderr,
    SubmissionOutcome,
    TaskChanged,
    TaskErased,
    TaskNew,
    WorkflowNew,
    WorkflowOutcome,
)
from stepwire_broker.errors import BrokerError

from . import keys, pieces
from .stalls import Stall

Report: TypeAlias = Callable[[Outcome], object]


class Trouble(NamedTuple):
    """The meaning of a database error for the lane."""

    kind: Literal["data", "passing", "broken"]
    code: StallCode | None  # of a temporary trouble
    error: str


class Rows(NamedTuple):
    """The rows of a transaction, after the owners of its keys are decided. A row is at most once in each list."""

    tasks_new: Sequence[TaskNew]
    steps_new: Sequence[StepNew]
    steps_dispatched: Sequence[StepDispatched]
    steps_completed: Sequence[StepCompleted]
    steps_changed: Sequence[StepChanged]
    steps_output: Sequence[StepOutput]
    steps_stderr: Sequence[StepStderr]
    tasks_changed: Sequence[TaskChanged]
    history: Sequence[HistoryRow]
    attention: Sequence[AttentionChanged] = ()
    erasures: Sequence[TaskErased] = ()  # written last: they replace payloads in rows of the same transaction too


class WriteResult(NamedTuple):
    """The outcome of a group's rows inside the transaction. The COMMIT makes it durable."""

    submissions: list[SubmissionOutcome]
    workflows: list[WorkflowOutcome]
    left_out: set[int]  # tasks of these submissions that were not stored
    rejected: list[Rejected]


class StoredDigest(NamedTuple):
    id: int
    digest: str


class NotAdvanced(BrokerError):
    """The lane is not at the sequence before the group's, or it belongs to another epoch."""


class LaneWriter(Protocol):
    """The port of a lane to its database: one connection, in the database's own SQL. Every method may raise an error
    that `trouble` classifies."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...

    def abandon(self) -> None:
        """End an open transaction in any state. Never raises."""

    def advance(self, seq: int) -> None:
        """Move the lane from seq - 1 to seq. Raises NotAdvanced if the lane is at another sequence or belongs to
        another epoch. A writer that collects statements may raise it at any later call of the same transaction."""

    def position(self) -> int | None:
        """Return the lane's last committed sequence, after NotAdvanced; None when the lane belongs to another epoch."""

    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def undo(self) -> None:
        """Roll back to the savepoint, and remove it."""

    def claim_keys(self, claims: Sequence[Key]) -> int:
        """Insert the keys that are free. Returns their number."""

    def key_owners(self, claims: Sequence[Key]) -> dict[keys.Name, keys.KeyOwner]: ...
    def release_keys(self, claims: Sequence[Key]) -> None: ...
    def add_workflow(self, new: WorkflowNew) -> bool:
        """Insert the workflow unless this version exists. Returns whether it was inserted."""

    def find_workflow(self, namespace: str, name: str, version: str) -> StoredDigest: ...
    def activate(self, workflow_id: int) -> None: ...
    def set_control(self, control: ControlChanged) -> None:
        """Set or remove a row of `controls`, under a revision higher than all before."""

    def write(self, rows: Rows) -> None: ...
    def park(self, parked: Sequence[Parked]) -> None: ...
    def add_audit(self, new: Sequence[AuditNew]) -> None:
        """Append these rows to the lane's chain: see audit_chain.py."""

    def answer_orders(self, answers: Sequence[OrderAnswer]) -> None:
        """Store the answers to orders of this lane, without what was ordered. Refuses all of them as data if one of the
        orders has an answer already, or does not exist."""

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]: ...
    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve consecutive ids in one block of the lane. Returns the first and the last."""

    def return_ids(self, first: int, last: int) -> None:
        """Let the next reservation begin at `first`, unless ids after `last` were reserved meanwhile."""

    def trouble(self, error: Exception) -> Trouble: ...
    def rest(self, group: CommitGroup) -> None:
        """Do the database's housekeeping, after the outcome of a group was reported and before the next group."""

    def close(self) -> None: ...


class Upkeep(Protocol):
    """Work that can wait, in pieces so short that a group can wait for one. Called in the writer's thread."""

    def pause_s(self) -> float:
        """Return the time until the next piece of work."""

    def work(self) -> object:
        """Do one piece, completely or not at all. May raise an error that the writer's `trouble` classifies."""

    def is_hindered(self, trouble: Trouble) -> None:
        """Take note that the last piece failed with this trouble."""


class CommitsLost(BrokerError):
    """The lane ends before a group that was committed: the server is an older copy, or lost its latest commits."""


class Faults(Protocol):
    """Hooks with which a test stops or fails the writer: just before and just after COMMIT."""

    def before_commit(self, group: CommitGroup) -> None: ...
    def after_commit(self, group: CommitGroup) -> None: ...


class Lane:
    """`put` takes groups numbered without gaps. The writer's thread reports each group once it is durable. After
    LaneLost, LostCommits or Broken nothing further is written or reported."""

    def __init__(
        self,
        number: int,
        writer: LaneWriter,
        report: Report,
        faults: Faults | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._number = number
        self._writer = writer
        self._report = report
        self._faults = faults
        self._upkeep = upkeep
        self._groups: queue.SimpleQueue[CommitGroup | Callable[[], object] | Literal["look", "end"]] = (
            queue.SimpleQueue()
        )
        self._give_up = threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"stepwire-lane-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, group: CommitGroup) -> None:
        self._groups.put(group)

    def look(self) -> None:
        """Wake the upkeep, because it has something to do now."""
        self._groups.put("look")

    def aside(self, work: Callable[[], object]) -> None:
        """Run work on the database between two groups, in the writer's thread. Groups wait meanwhile."""
        self._groups.put(work)

    def end(self) -> None:
        """Let the writer end after the queued groups."""
        self._groups.put("end")

    def abandon(self) -> None:
        """Write nothing further and report nothing further, because the lane is no longer this broker's."""
        self._is_abandoned = True
        self._give_up.set()
        self.end()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, timeout_s: float) -> bool:
        """Write the queued groups, for at most `timeout_s`. False: at least one group could not be written, and its
        outcome was not reported."""
        self.end()
        self._thread.join(timeout_s)
        finished = not self._thread.is_alive()
        self._give_up.set()
        self._thread.join()
        return finished

    def _run(self) -> None:
        try:
            while (group := self._next()) is not None and not self._is_abandoned:
                outcome = self._commit(group)
                if outcome is None or self._is_abandoned:
                    break
                self._report(outcome)
                if not isinstance(outcome, Committed):
                    break
                self._aside(partial(self._writer.rest, group))
        except _IsBroken as broken:
            if not self._is_abandoned:
                self._report(Broken(self._number, broken.error))
        self._writer.close()

    def _next(self) -> CommitGroup | None:
        """Wait for the next group. Does pieces of upkeep meanwhile, at most one between two waiting groups."""
        upkeep = self._upkeep
        while True:
            pause_s = None
            if upkeep is not None:
                if upkeep.pause_s() <= 0 and (trouble := self._aside(upkeep.work)) is not None:
                    upkeep.is_hindered(trouble)
                pause_s = upkeep.pause_s()
            try:
                item = self._groups.get(timeout=pause_s)
            except queue.Empty:
                continue
            if item == "end":
                return None
            if isinstance(item, CommitGroup):
                return item
            if item != "look":
                self._aside(item)

    def _aside(self, work: Callable[[], object]) -> Trouble | None:
        """Do work that may fail without harm, and return its trouble. Raises only if the database is broken."""
        try:
            work()
        except Exception as error:
            trouble = self._writer.trouble(error)
            if trouble.kind == "broken":
                raise _IsBroken(trouble.error) from error
            return trouble
        return None

    def _commit(self, group: CommitGroup) -> Outcome | None:
        """Try until the group has a final outcome. None: the store was closed while the group could not be written."""
        writing = Writing(self._number, self._writer, group, self._faults)
        stall = Stall(self._number, group.seq)
        while isinstance(result := writing.attempt(), Trouble):
            assert result.code is not None, result
            stalled = stall.again(result.code, result.error, time.monotonic())
            if stalled is not None and not self._is_abandoned:
                self._report(stalled)
            if self._give_up.wait(stall.pause_s()):
                return None
        return result


class _IsBroken(BrokerError):
    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class Writing:
    """The writing of one group. Every attempt is one transaction. The caller, a thread or a simulation, waits between
    attempts."""

    def __init__(self, lane: int, writer: LaneWriter, group: CommitGroup, faults: Faults | None = None) -> None:
        self._number = lane
        self._writer = writer
        self._group = group
        self._faults = faults
        self._written: Committed | None = None  # the outcome of the last transaction that reached its COMMIT
        self._in_pieces = False

    def attempt(self) -> Outcome | Trouble:
        """Try once. Returns the outcome, or a temporary trouble after which the caller must try again."""
        group, writer = self._group, self._writer
        while True:
            try:
                writer.begin()
                writer.advance(group.seq)
                done = self._outcome(group, self._write_in_pieces(group) if self._in_pieces else self._write(group))
                if self._faults is not None:
                    self._faults.before_commit(group)
                self._written = done
                writer.commit()
                if self._faults is not None:
                    self._faults.after_commit(group)
                return done
            except NotAdvanced:
                return self._not_advanced()
            except Exception as error:
                trouble = writer.trouble(error)
                writer.abandon()
            if trouble.kind == "passing":
                return trouble
            if trouble.kind == "broken" or self._in_pieces:
                return Broken(self._number, trouble.error)
            self._in_pieces = True

    def _not_advanced(self) -> Outcome | Trouble:
        """Either an earlier attempt committed and its outcome was lost, or the lane is no longer ours."""
        writer = self._writer
        try:
            is_ours = writer.position() == self._group.seq
        except CommitsLost as error:
            return LostCommits(self._number, str(error))
        except Exception as error:
            trouble = writer.trouble(error)
            return trouble if trouble.kind == "passing" else Broken(self._number, trouble.error)
        finally:
            writer.abandon()
        return self._written if is_ours and self._written is not None else LaneLost(self._number)

    def _outcome(self, group: CommitGroup, written: WriteResult) -> Committed:
        if group.unused_ids is not None:
            self._writer.return_ids(*group.unused_ids)
        return Committed(
            lane=self._number,
            seq=group.seq,
            submissions=written.submissions,
            workflows=written.workflows,
            rejected=written.rejected,
            ids=self._writer.reserve_ids(group.reserve_ids) if group.reserve_ids else None,
        )

    def _write(self, group: CommitGroup) -> WriteResult:
        """Write the whole group inside the open transaction."""
        writer = self._writer
        workflows = [self._apply(new) for new in group.workflows]
        for _, workflow_id in group.activations:
            writer.activate(workflow_id)
        for control in group.controls:
            writer.set_control(control)
        submissions = group.submissions
        verdict = self._claim(group)
        left_out = verdict.left_out
        tasks_new = [task for s in submissions for task in s.tasks]
        steps_new = [step for s in submissions for step in s.steps]
        history = [row for s in submissions for row in s.history]
        history += group.history
        tasks_changed, attention = group.tasks_changed, group.attention
        if left_out:
            attention = [row for row in attention if row.task_id not in left_out]
            tasks_changed = [task for task in tasks_changed if task.id not in left_out]
            tasks_new = [task for task in tasks_new if task.id not in left_out]
            steps_new = [step for step in steps_new if step.task_id not in left_out]
            history = [row for row in history if row.task_id not in left_out]
        if group.parked:
            writer.park(group.parked)
        writer.write(
            Rows(
                tasks_new,
                steps_new,
                group.steps_dispatched,
                group.steps_completed,
                group.steps_changed,
                group.steps_output,
                group.steps_stderr,
                tasks_changed,
                history,
                attention,
                group.erasures,
            )
        )
        if group.audit:
            writer.add_audit([_with_outcome(row, workflows) for row in group.audit])
        if group.orders_answered:
            writer.answer_orders(group.orders_answered)
        return WriteResult(verdict.outcomes, workflows, left_out, [])

    def _claim(self, group: CommitGroup) -> keys.Verdict:
        claims = [key for submission in group.submissions for key in submission.keys]
        if not claims or self._writer.claim_keys(claims) == len(claims):
            return keys.all_new(group.submissions)
        verdict = keys.settle(group.submissions, self._writer.key_owners(claims))
        if verdict.release:
            self._writer.release_keys(verdict.release)
        if verdict.claim:
            claimed = self._writer.claim_keys(verdict.claim)
            assert claimed == len(verdict.claim)
        return verdict

    def _apply(self, new: WorkflowNew) -> WorkflowOutcome:
        """Store a version of a workflow. Applying an existing version changes nothing: neither its content nor the
        active version."""
        created = self._writer.add_workflow(new)
        stored = self._writer.find_workflow(new.namespace, new.name, new.version)
        if created and new.activate:
            self._writer.activate(stored.id)
        return WorkflowOutcome(new.request, stored.id, created, conflict=stored.digest != new.digest)

    # -- when the database refuses data -------------------------------------------------------------------------------

    def _write_in_pieces(self, group: CommitGroup) -> WriteResult:
        """Halve the group until each piece at fault is alone. Park these pieces and write the others, in one
        transaction."""
        writer = self._writer
        whole = WriteResult([], [], set(), [])
        parked: list[Parked] = []
        if group.parked:
            writer.park(group.parked)  # before an erasure of the same task

        def write(some: Sequence[pieces.Piece]) -> None:
            writer.savepoint()
            try:
                part = self._write(pieces.joined(group, some, whole.left_out))
                writer.release()
            except Exception as error:
                trouble = writer.trouble(error)
                if trouble.kind != "data":
                    raise
                writer.undo()
            else:
                whole.submissions.extend(part.submissions)
                whole.workflows.extend(part.workflows)
                whole.left_out.update(part.left_out)
                return
            if len(some) > 1:
                middle = len(some) // 2
                write(some[:middle])
                write(some[middle:])
                return
            (guilty,) = some
            parked.append(pieces.parked(guilty, trouble.error))
            part = _refused(guilty, trouble.error)
            whole.submissions.extend(part.submissions)
            whole.workflows.extend(part.workflows)
            whole.left_out.update(part.left_out)
            whole.rejected.extend(part.rejected)

        write(pieces.pieces(group, writer.tasks_of_steps(pieces.step_ids(group))))
        if parked:
            writer.park(parked)
        return whole


def _with_outcome(row: AuditNew, workflows: Sequence[WorkflowOutcome]) -> AuditNew:
    """Only the database knows whether a version exists, so the outcome of an application is decided here."""
    for applied in workflows:
        if row.part == ("request", applied.request):
            changed = "done" if applied.created else "unchanged"
            return row._replace(outcome="version_conflict" if applied.conflict else changed)
    return row


def _refused(piece: pieces.Piece, error: str) -> WriteResult:
    part = piece.group
    return WriteResult(
        [SubmissionOutcome(s.request, {}, None, failed=error) for s in part.submissions],
        [WorkflowOutcome(w.request, 0, created=False, conflict=False, failed=error) for w in part.workflows],
        set(piece.tasks),
        [] if part.submissions else [Rejected(task_id, error) for task_id in piece.tasks],
    )
