"""Bugs that were real: a seed found them, they were fixed, and each is put back here."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from stepwire.session import leases
from stepwire_broker.core import machine, timer_kinds
from stepwire_broker.core.commit import outbox
from stepwire_broker.core.dispatch import requests, transmission
from stepwire_broker.core.intake import submission
from stepwire_broker.core.loading import eviction, residency
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.states import DISPATCHED, HELD, STEP_FINAL, WAITING
from stepwire_broker.core.progress import discard, step_outcomes
from stepwire_broker.core.workers import hello, step_results, time_limits
from stepwire_broker.store import pieces as shipped_pieces
from stepwire_broker.store.rows import OpenCounts

from tests.memory_store.queries import MemoryQueries

from .plant import Bug, Plant


def _decision_shared(plant: Plant) -> None:
    def decided(original: Any, self: Any, now: Any) -> Any:
        result = original(self, now)
        return self.state.decision if result is machine.NOTHING else result

    plant.method(machine.Machine, "_decided", decided)


def _final_steps_counted(plant: Plant) -> None:
    def open_counts(original: Any, self: MemoryQueries) -> dict[int, OpenCounts]:
        tables = self._tables
        steps: dict[int, Counter[str]] = {}
        for task in tables.open_tasks:
            steps.setdefault(task.lane, Counter())[task.namespace] += len(tables.steps_of.get(task.id, ()))
        return {lane: OpenCounts(counts.tasks, dict(steps[lane])) for lane, counts in original(self).items()}

    plant.method(MemoryQueries, "open_counts", open_counts)


def _fence_not_restored(plant: Plant) -> None:
    def restored(original: Any, task: Any, row: Any) -> Any:
        step = original(task, row)
        if row.state == "waiting" and not row.delivery:
            step.accept_from = 0
        return step

    plant.function(residency._restored_step, restored)


def _ack_without_rows(plant: Plant) -> None:
    """The ack of a repeated result does not depend on the rows of the first."""

    def on_results(original: Any, state: Any, message: Any, now: Any, absent: Any = frozenset()) -> None:
        final = all((s := state.steps.get(r.step_id)) is not None and s.state in STEP_FINAL for r in message.results)
        count = len(state.outbox)
        original(state, message, now, absent)
        if final and len(state.outbox) > count:
            queues = [state.outbox._held, *(lane.held for lane in state.outbox.lanes.values())]
            for queue in filter(None, queues):
                barrier, send = queue[-1]
                if isinstance(send, outbox.SendAck) and send.message.rids == [message.rid]:
                    queue[-1] = (barrier, msgspec.structs.replace(send, about=()))

    plant.function(step_results.on_results, on_results)


def _evicts_undecided(plant: Plant) -> None:
    def is_idle(original: Any, state: Any, task: Any, now: Any) -> bool:
        waits = [(s, s.waits) for s in task.steps if s.state is WAITING and not s.waits]
        for step, _ in waits:
            step.waits = 1
        try:
            return bool(original(state, task, now))
        finally:
            for step, before in waits:
                step.waits = before

    plant.function(eviction._is_idle, is_idle)


def _pieces_apart(plant: Plant) -> None:
    def pieces(original: Any, group: CommitGroup, tasks_of_steps: Any) -> Any:
        result = original(group, tasks_of_steps)
        apart = []
        for piece in result:
            if piece.group.submissions and piece.group.history:
                new = CommitGroup(lane=group.lane, seq=group.seq)
                new.submissions = piece.group.submissions
                apart.append(shipped_pieces.Piece(new, piece.tasks, piece.at_ms))
                for task_id in piece.tasks:
                    rest = CommitGroup(lane=group.lane, seq=group.seq)
                    rest.history = [row for row in piece.group.history if row.task_id == task_id]
                    apart.append(shipped_pieces.Piece(rest, (task_id,), piece.at_ms))
            else:
                apart.append(piece)
        return apart

    plant.function(shipped_pieces.pieces, pieces)


def _late_is_timeout(plant: Plant) -> None:
    def expire(original: Any, state: Any, run: Any, now: Any) -> None:
        due_mono = run.due_mono - state.settings.bus.lease_ms
        original(state, timer_kinds.RunLimit(run.step, run.delivery, due_mono), now)

    plant.function(time_limits.expire_run, expire)


def _deadline_by_the_wall(plant: Plant) -> None:
    def request(original: Any, step: Any, now: Any, **has: Any) -> Any:
        made = original(step, now, **has)
        if made is None or step.deadline_ms is None:
            return made
        left_ms = max(0, step.deadline_ms - now.wall)
        metadata = msgspec.structs.replace(made[0].metadata, deadline_ms=left_ms)
        return msgspec.structs.replace(made[0], metadata=metadata), made[1]

    plant.function(requests.request_of, request)


def _timed_from_commit(plant: Plant) -> None:
    def on_decided(original: Any, state: Any, outcome: Any, now: Any) -> None:
        state.undecided[outcome.request].at = now
        original(state, outcome, now)

    plant.function(submission.on_decided, on_decided)


def _bytes_make_no_room(plant: Plant) -> None:
    def make_room(original: Any, state: Any, now: Any) -> None:
        if eviction.room(state) <= 0:
            original(state, now)

    plant.function(eviction.make_room, make_room)


def _longer_lease_kept(plant: Plant) -> None:
    def on_welcome(original: Any, self: Any, peer: Any, message: Any, now_ms: float) -> bool:
        before_ms = peer.lease.until_ms
        is_good = bool(original(self, peer, message, now_ms))
        if peer.lease.until_ms:
            peer.lease.until_ms = max(before_ms, peer.lease.until_ms)
        return is_good

    plant.method(leases.Leases, "on_welcome", on_welcome)


def _old_hello_opens(plant: Plant) -> None:
    def open_session(original: Any, state: Any, *args: Any) -> Any:
        watches = state.decision.watches
        before = len(watches)
        session = original(state, *args)
        del watches[before:]
        return session

    plant.function(hello._open, open_session)


def _taken_back_sent_again(plant: Plant) -> None:
    def resend(_: Any, state: Any, batch: Any) -> bool:
        state.decision.batches.append(batch)
        return True

    plant.function(transmission.resend, resend)


def _resent_failure_overturns_hold(plant: Plant) -> None:
    """A failure that a worker resends after a cancel decides the step that it had put on hold."""
    plant.function(step_results._is_open_for_failure, lambda _, step: step.state in (DISPATCHED, HELD))


def _stderr_of_held_not_queued(plant: Plant) -> None:
    """The standard error of a repeated result of a held step changes the step, and its task is not written."""

    def keep(original: Any, state: Any, *args: Any) -> None:
        original(SimpleNamespace(outbox=state.outbox, write=lambda task: None), *args)

    plant.function(step_results._keep_stderr, keep)


def _late_failure_overturns_hold(plant: Plant) -> None:
    """A failure that is reported after a deadline or a timeout decides the step that was held then."""

    def lost_outcome(_: Any, state: Any, step: Any, now: Any, *, is_stopped: bool = False) -> None:
        step_outcomes.unknown_outcome(state, step, "outcome_unknown", now)

    plant.function(step_outcomes.lost_outcome, lost_outcome)


def _refused_command_blamed(plant: Plant) -> None:
    """A step that a command ended counts as the cause of a refusal, like a step that a result ended."""

    def rejected(original: Any, state: Any, task_id: int, *args: Any) -> None:
        task = state.tasks.get(task_id)
        for step in task.steps if task is not None else ():
            step.ended_by_command = False
        original(state, task_id, *args)

    plant.function(machine._on_rejected, rejected)


def _next_group_blamed(plant: Plant) -> None:
    def steps_to_blame(original: Any, task: Any) -> frozenset[int]:
        return frozenset(step.id for step in task.steps if step.is_final and not step.ended_by_command)

    plant.function(discard.steps_to_blame, steps_to_blame)


BUGS: Final = (
    Bug("one decision executed twice", _decision_shared, True),
    Bug("final steps counted as open after a restart", _final_steps_counted, True),
    Bug("the fence of an undispatched step is not loaded", _fence_not_restored, True),
    Bug("the ack of a duplicate depends on no rows", _ack_without_rows, True),
    Bug("a task is evicted while its trigger rule is evaluated", _evicts_undecided, True),
    Bug("a new task and its changes stored apart", _pieces_apart, True),
    Bug("a late result is a timeout", _late_is_timeout, True),
    Bug("a deadline is sent by the wall clock", _deadline_by_the_wall, True),
    Bug("a new task's times count from its commit", _timed_from_commit, True),
    Bug("memory full of bytes makes no room", _bytes_make_no_room, True),
    Bug("deliveries that were taken back are resent", _taken_back_sent_again, True),
    Bug("a hello sent before a death opens a session", _old_hello_opens, True),
    Bug("a resent failure overturns a hold", _resent_failure_overturns_hold, True),
    Bug("a held step's standard error is not queued for writing", _stderr_of_held_not_queued, True),
    Bug("a failure after a time limit overturns a hold", _late_failure_overturns_hold, True),
    Bug("a refused command fails the held step that it resolved", _refused_command_blamed, True),
    Bug("a refused group fails a step that ended after it", _next_group_blamed, True),
    Bug("worker: a new session keeps the previous longer lease", _longer_lease_kept, True),
)
