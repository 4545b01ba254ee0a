"""Bugs to be found: each is a line of the shipped code done wrong, for as long as a `with` lasts, in this process only.

They are put in from outside, by name; no shipped line knows of them. The second list is of bugs that were real: the
simulation found them, they were mended, and here they are put back.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from stepwire.session import deliveries, intake, leases, slots, tombstones
from stepwire.session import outbox as sdk_outbox
from stepwire.session import outgoing as sdk_outgoing
from stepwire_broker.core import machine, timer_kinds
from stepwire_broker.core.commit import decision, outbox
from stepwire_broker.core.dispatch import placement, requests, transmission
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.intake import commands, submission
from stepwire_broker.core.loading import eviction, residency
from stepwire_broker.core.model import apply as core_apply
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.answers import TasksSubmitted
from stepwire_broker.core.model.commit_group import CommitGroup, Committed, Rejected, SubmissionOutcome, WorkflowOutcome
from stepwire_broker.core.model.states import COMPLETED, DISPATCHED, HELD, STEP_FINAL, WAITING
from stepwire_broker.core.progress import dependents, readiness, step_outcomes
from stepwire_broker.core.routing import ready_queue
from stepwire_broker.core.workers import batch_answers, hello, loss, step_results, time_limits
from stepwire_broker.store import lane
from stepwire_broker.store.rows import OpenCounts
from stepwire_broker.store.sqlite.writer import SqliteWriter
from stepwire_protocol import messages as wire
from stepwire_protocol import topics

from tests.memory_store.queries import MemoryQueries
from tests.memory_store.writer import MemoryWriter

from .world import World

SEEDS_MAX: Final = 20_000
NOTED: Final = Path(__file__).with_name("planted.json")  # by bug: the seed that found it when it was last noted


class Plant:
    """Puts things in the place of others, everywhere they are known, and back again."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def function(self, original: Any, instead: Callable[..., Any]) -> None:
        """`instead(original, …)` is called wherever `original(…)` was."""
        new = partial(instead, original)
        for module in list(sys.modules.values()):
            if module.__name__.split(".")[0] in ("stepwire", "stepwire_broker"):
                for name, value in list(vars(module).items()):
                    if value is original:
                        self._set(partial(setattr, module, name), new, original)
                    elif isinstance(value, dict):
                        for key, each in list(value.items()):
                            if each is original:
                                self._set(partial(value.__setitem__, key), new, original)

    def method(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def new(self: Any, *args: Any, **kwargs: Any) -> Any:
            return instead(original, self, *args, **kwargs)

        self._set(partial(setattr, owner, name), new, original)

    def value(self, owner: Any, name: str, new: Any) -> None:
        self._set(partial(setattr, owner, name), new, getattr(owner, name))

    def _set(self, put: Callable[[Any], None], new: Any, original: Any) -> None:
        put(new)
        self._undo.append(lambda: put(original))

    def take_out(self) -> None:
        for undo in reversed(self._undo):
            undo()


# -- the outbox -------------------------------------------------------------------------------------------------------


def _at_once(kind: type, message: type | None = None) -> Callable[[Plant], None]:
    def send(original: Any, self: Any, item: Any) -> None:
        if isinstance(item, kind) and (message is None or isinstance(item.message, message)):
            self._held.appendleft((tuple(0 for _ in self.lanes), item))
        else:
            original(self, item)

    return lambda plant: plant.method(outbox.Outbox, "send", send)


def _ack_duplicates(plant: Plant) -> None:
    def on_results(original: Any, state: Any, message: Any, now: Any, absent: Any = frozenset()) -> None:
        steps = [state.steps.get(r.step_id) for r in message.results]
        if message.deployment == state.identity.deployment and all(s is not None and s.is_final for s in steps):
            ack = wire.Ack(v="2.0", broker=state.identity.broker, epoch=state.identity.epoch, rids=[message.rid])
            state.decision.sends.append(decision.ToWorker(topics.to_worker(message.worker), ack))
            return
        original(state, message, now, absent)

    plant.function(step_results.on_results, on_results)


def _ack_unknown(plant: Plant) -> None:
    def look_up(_: Any, state: Any, message: Any, unknown: Any) -> None:
        ack = wire.Ack(v="2.0", broker=state.identity.broker, epoch=state.identity.epoch, rids=[message.rid])
        state.decision.sends.append(decision.ToWorker(topics.to_worker(message.worker), ack))

    plant.function(step_results.look_up, look_up)


def _retransmit_early(plant: Plant) -> None:
    def send(original: Any, state: Any, session: Any, steps: Any, requests: Any, now: Any) -> None:
        original(state, session, steps, requests, now)
        batch = steps[0].batch
        batch.released_mono = now.mono
        state.timers.set(now.mono + batch.pause_ms, timer_kinds.RetransmitDue(batch))

    plant.function(placement._send_batch, send)


def _go_again_at_once(plant: Plant) -> None:
    def on_start(original: Any, state: Any, message: Any, now: Any) -> None:
        session = state.sessions.get(message.worker)
        steps = [None if session is None else session.deliveries.get(step_id) for step_id, _ in message.items]
        if session is not None and session.id == message.session and all(s is not None and s.granted for s in steps):
            header = {"v": "2.0", "broker": state.identity.broker, "epoch": state.identity.epoch}
            go = wire.Go(**header, session=session.id, items=message.items)  # type: ignore[arg-type]
            state.decision.sends.append(decision.ToWorker(session.topic, go))
            return
        original(state, message, now)

    plant.function(batch_answers.on_start, on_start)


# -- results and steps ------------------------------------------------------------------------------------------------


def _no_fence(plant: Plant) -> None:
    def apply(original: Any, state: Any, step: Any, result: Any, now: Any, session: Any) -> None:
        if result.status != "completed" and result.delivery != step.delivery and step.state is DISPATCHED:
            result = msgspec.structs.replace(result, delivery=step.delivery)
        original(state, step, result, now, session)

    plant.function(step_results.apply_result, apply)


def _granted_again(plant: Plant) -> None:
    def unknown_outcome(original: Any, state: Any, step: Any, code: str, now: Any) -> None:
        if step.at_most_once and step.granted and step.state is not HELD:
            step_outcomes.undeliver(state, step, code, now)
        else:
            original(state, step, code, now)

    plant.function(step_outcomes.unknown_outcome, unknown_outcome)


def _dependencies_unchecked(plant: Plant) -> None:
    def after(original: Any, state: Any, step: Any, now: Any) -> None:
        for index in step.definition.dependents:
            later = step.task.steps[index]
            if step.state is COMPLETED and later.state is WAITING and later.definition.trigger_rule is None:
                readiness.make_ready(state, later, now)
        original(state, step, now)

    plant.function(dependents.advance, after)


def _retry_for_ever(plant: Plant) -> None:
    def fail(original: Any, state: Any, step: Any, error: Any, now: Any, **said: Any) -> None:
        step.attempt = 0
        original(state, step, error, now, **said)

    plant.function(step_outcomes.fail, fail)


def _held_is_failed(plant: Plant) -> None:
    plant.function(step_outcomes.hold, lambda _, state, step, code, now: step_outcomes.fail_for(state, step, code, now))


def _forget_earlier(plant: Plant) -> None:
    def left(original: Any, step: Any) -> None:
        original(step)
        step.earlier = None

    plant.function(core_apply._left, left)


def _lost_wake_up(plant: Plant) -> None:
    def put(original: Any, self: Any, step: Any) -> None:
        if step.reason != "session_lost":
            original(self, step)

    plant.method(ready_queue.ReadyQueue, "put", put)


def _timed_from_accept(plant: Plant) -> None:
    def on_accept(original: Any, state: Any, message: Any, now: Any) -> None:
        session = state.sessions.get(message.worker)
        batch = None if session is None else session.unanswered_batches.get(message.batch_id)
        original(state, message, now)
        for step in () if batch is None else batch.steps:
            due = now.mono + step.definition.timeout_ms
            state.timers.set(due, timer_kinds.RunLimit(step, step.delivery, due))

    plant.function(batch_answers.on_accept, on_accept)


def _cancel_forgotten(plant: Plant) -> None:
    plant.function(commands._stop_all, lambda _, *args: None)


def _history_row_missing(plant: Plant) -> None:
    def write(original: Any, group: CommitGroup, task: Any, owner: Any) -> None:
        if len(task.facts) == 1 and isinstance(task.facts[0], facts.Started):
            task.facts = []
        original(group, task, owner)

    plant.function(outbox._write, write)


# -- sessions ---------------------------------------------------------------------------------------------------------


def _wall_clock_lease(plant: Plant) -> None:
    heard: dict[str, int] = {}

    def remember(original: Any, state: Any, message: Any, now: Any) -> None:
        heard[message.worker] = now.wall
        original(state, message, now)

    def check(original: Any, state: Any, session: Any, now: Any) -> None:
        if not session.dead and now.wall - heard.get(session.worker, now.wall) > state.settings.bus.lease_ms:
            loss.bury(state, session, now)
        else:
            original(state, session, now)

    plant.function(hello.on_heartbeat, remember)
    plant.function(hello.on_hello, remember)
    plant.function(loss.check_lease, check)


def _moves_nothing(plant: Plant) -> None:
    def opened(original: Any, state: Any, hello: Any, k: int, before: Any, now: Any) -> Any:
        return original(state, msgspec.structs.replace(hello, holding=[]), k, before, now)

    plant.function(hello._open, opened)


def _too_soon_safe(plant: Plant) -> None:
    def begin(original: Any, self: Any, state: Any, workflows: Any) -> None:
        state.safe_at_mono = state.level0.started_mono + 50
        original(self, state, workflows)

    plant.method(machine.Machine, "__init__", begin)


def _gap_ignored(plant: Plant) -> None:
    plant.function(loss.on_loop_was_late, lambda _, state, event, now: None)


# -- submissions and loading ------------------------------------------------------------------------------------------


def _key_ignored(plant: Plant) -> None:
    def on_submit(original: Any, state: Any, event: Any, now: Any) -> None:
        tasks = [new._replace(key=None) for new in event.tasks]
        original(state, msgspec.structs.replace(event, tasks=tasks), now)

    plant.function(submission.on_submit, on_submit)


def _key_decided_early(plant: Plant) -> None:
    def on_submit(original: Any, state: Any, event: Any, now: Any) -> None:
        original(state, event, now)
        undecided = state.undecided.get(event.request)
        if undecided is not None and not undecided.admitted:
            said = TasksSubmitted(list(undecided.ids), [True] * len(undecided.ids))
            state.decision.answers.append(decision.ToRequest(event.request, said))

    plant.function(submission.on_submit, on_submit)


def _gone_ignored(plant: Plant) -> None:
    def insert(original: Any, state: Any, loaded: Any, gone: Any, now: Any) -> int:
        return int(original(state, loaded, set(), now))

    plant.function(residency.insert, insert)


# -- breakers ---------------------------------------------------------------------------------------------------------


def _tried_with_once(plant: Plant) -> None:
    def limits(original: Any, state: Any, routes: Any, now: Any) -> Any:
        barred = state.guards.barred
        as_if = {r: r._replace(is_at_most_once=False) if r.handler_class in barred else r for r in routes}
        found = original(state, list(as_if.values()), now)
        return {route: found[other] for route, other in as_if.items() if other in found}

    plant.function(allowance.limits, limits)


def _open_for_ever(plant: Plant) -> None:
    plant.function(allowance._set_timer, lambda _, state, guard, now: None)


# -- the database -----------------------------------------------------------------------------------------------------


def _unknown_is_failed(plant: Plant) -> None:
    def attempt(original: Any, self: Any) -> Any:
        found = original(self)
        group = self._group
        if isinstance(found, lane.Trouble) and self._writer.position() == group.seq:
            touched = {row.task_id for row in group.history} | {row.id for row in group.tasks_changed}
            return Committed(
                group.lane,
                group.seq,
                [SubmissionOutcome(s.request, {}, None, failed="unknown") for s in group.submissions],
                [WorkflowOutcome(w.request, 1, created=False, conflict=False) for w in group.workflows],
                [Rejected(i, "unknown") for i in sorted(touched)],
            )
        return found

    plant.method(lane.Writing, "attempt", attempt)


def _applied_twice(plant: Plant) -> None:
    def advance(original: Any, self: Any, seq: int) -> bool:
        return bool(original(self, seq)) or self.position() == seq

    plant.method(MemoryWriter, "advance", advance)
    plant.method(SqliteWriter, "advance", advance)


# -- the worker -------------------------------------------------------------------------------------------------------


def _lease_from_arrival(plant: Plant) -> None:
    def extend(original: Any, self: Any, peer: Any, until_ms: float, now_ms: float) -> None:
        original(self, peer, now_ms + peer.lease_ms, now_ms)

    plant.method(leases.Leases, "_extend", extend)


def _not_resent(plant: Plant) -> None:
    def again(original: Any, self: Any, now_ms: float) -> None:
        self.resend_at_ms = sdk_outgoing.NEVER

    def hear(original: Any, self: Any, peer: Any, held: Any, refused: Any, now_ms: float) -> bool:
        return bool(held.message is None and original(self, peer, held, refused, now_ms))

    plant.method(sdk_outbox.Outbox, "resend", again)
    plant.method(intake.Intake, "_answer_again", hear)


def _silent_tombstone(plant: Plant) -> None:
    def refuse(original: Any, self: Any, peer: Any, batch_id: str, items: Any, code: str, now_ms: float) -> None:
        if code != "stale":
            original(self, peer, batch_id, items, code, now_ms)

    plant.method(intake.Intake, "refuse", refuse)


def _no_disowning(plant: Plant) -> None:
    plant.method(tombstones.Tombstones, "disown", lambda _, self, item, peer, now_ms: None)


def _lease_unchecked(plant: Plant) -> None:
    plant.method(leases.Leases, "check", lambda _, self, now_ms: None)


def _drop_keeps_queued(plant: Plant) -> None:
    def drop(original: Any, self: Any, *args: Any) -> None:
        held = self._holdings
        bury = held.bury
        held.bury = lambda one, now_ms: None if one.state == deliveries.QUEUED else bury(one, now_ms)
        try:
            original(self, *args)
        finally:
            del held.bury

    plant.method(leases.Leases, "_drop", drop)


def _granted_by_nobody(plant: Plant) -> None:
    """An at_most_once step starts without asking."""

    def take_next(original: Any, self: Any) -> Any:
        for held in self.queued:
            held.is_at_most_once = False
        return original(self)

    plant.method(slots.Slots, "take_next", take_next)


# -- what was real ----------------------------------------------------------------------------------------------------


def _decision_shared(plant: Plant) -> None:
    def decided(original: Any, self: Any, now: Any) -> Any:
        found = original(self, now)
        return self.state.decision if found is machine.NOTHING else found

    plant.method(machine.Machine, "_decided", decided)


def _final_steps_counted(plant: Plant) -> None:
    def open_counts(original: Any, self: MemoryQueries) -> OpenCounts:
        tables = self._tables
        steps = sum(len(tables.steps_of.get(task.id, ())) for task in tables.open_tasks)
        return OpenCounts(original(self).tasks, steps)

    plant.method(MemoryQueries, "open_counts", open_counts)


def _fence_not_restored(plant: Plant) -> None:
    def restored(original: Any, task: Any, row: Any) -> Any:
        step = original(task, row)
        if row.state == "waiting" and not row.delivery:
            step.accept_from = 0
        return step

    plant.function(residency._restored_step, restored)


def _ack_about_nothing(plant: Plant) -> None:
    """The ack of a result that came twice does not rest on the rows of the first."""

    def on_results(original: Any, state: Any, message: Any, now: Any, absent: Any = frozenset()) -> None:
        final = all((s := state.steps.get(r.step_id)) is not None and s.state in STEP_FINAL for r in message.results)
        count = len(state.outbox)
        original(state, message, now, absent)
        if final and len(state.outbox) > count:
            barrier, send = state.outbox._held[-1]
            if isinstance(send, outbox.SendAck):
                state.outbox._held[-1] = (barrier, msgspec.structs.replace(send, about=()))

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
        found = original(group, tasks_of_steps)
        apart = []
        for piece in found:
            if piece.group.submissions and piece.group.history:
                new = CommitGroup(lane=group.lane, seq=group.seq)
                new.submissions = piece.group.submissions
                apart.append(lane.Piece(new, piece.tasks, piece.at_ms))
                for task_id in piece.tasks:
                    rest = CommitGroup(lane=group.lane, seq=group.seq)
                    rest.history = [row for row in piece.group.history if row.task_id == task_id]
                    apart.append(lane.Piece(rest, (task_id,), piece.at_ms))
            else:
                apart.append(piece)
        return apart

    plant.function(lane._pieces, pieces)


def _late_is_too_late(plant: Plant) -> None:
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


def _old_word_is_news(plant: Plant) -> None:
    def on_hello(original: Any, state: Any, hello: Any, now: Any) -> None:
        session = state.sessions.get(hello.worker)
        if session is not None:
            session.reported_n = -1
        original(state, hello, now)

    plant.function(hello.on_hello, on_hello)


def _hello_of_the_dead_believed(plant: Plant) -> None:
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


def _stopped_report_overturns_a_hold(plant: Plant) -> None:
    """A failure that a worker resends after a cancel is taken as a verdict on the step that it had put on hold."""
    plant.function(step_results._is_open_for_failure, lambda _, step: step.state in (DISPATCHED, HELD))


class Bug(NamedTuple):
    name: str
    plant: Callable[[Plant], None]
    was_real: bool = False


BUGS: Final = (
    Bug("results of an old delivery fail the current one", _no_fence),
    Bug("ack before commit", _at_once(outbox.SendAck)),
    Bug("a duplicate's ack waits for nothing", _ack_duplicates),
    Bug("ack for a step that is not in memory", _ack_unknown),
    Bug("steps retransmitted before they were released", _retransmit_early),
    Bug("steps leave before their commit", _at_once(outbox.SendBatch)),
    Bug("go before its commit", _at_once(outbox.SendMessage, wire.Go)),
    Bug("a repeated go waits for nothing", _go_again_at_once),
    Bug("answers leave before their commit", _at_once(outbox.SendAnswer)),
    Bug("lease by the wall clock", _wall_clock_lease),
    Bug("lease not extended after the loop stood still", _gap_ignored),
    Bug("lost wake-up", _lost_wake_up),
    Bug("granted step handed out again", _granted_again),
    Bug("dependencies not all awaited", _dependencies_unchecked),
    Bug("retry limit ignored", _retry_for_ever),
    Bug("held treated as failed", _held_is_failed),
    Bug("an undelivered delivery is forgotten", _forget_earlier),
    Bug("time-out counts from accept", _timed_from_accept),
    Bug("cancel forgotten", _cancel_forgotten),
    Bug("history row missing", _history_row_missing),
    Bug("new session moves nothing", _moves_nothing),
    Bug("recovered delivery taken back before safe_at", _too_soon_safe),
    Bug("key ignored", _key_ignored),
    Bug("key decided before its commit", _key_decided_early),
    Bug("a page is older than what left memory", _gone_ignored),
    Bug("breaker: an at_most_once step as probe", _tried_with_once),
    Bug("breaker: nothing wakes it at the end of its open time", _open_for_ever),
    Bug("unknown commit taken for failed", _unknown_is_failed),
    Bug("unknown commit applied twice", _applied_twice),
    Bug("worker: lease counted from the answer's arrival", _lease_from_arrival),
    Bug("worker: results not sent again", _not_resent),
    Bug("worker: silent tombstone", _silent_tombstone),
    Bug("worker: what it disowns it may still run", _no_disowning),
    Bug("worker: session not dropped at the lease's end", _lease_unchecked),
    Bug("worker: a dropped session's queue is kept", _drop_keeps_queued),
    Bug("worker: at_most_once starts unasked", _granted_by_nobody),
    Bug("one decision acted on twice", _decision_shared, True),
    Bug("final steps counted as open after a restart", _final_steps_counted, True),
    Bug("the fence of a step never handed out is not loaded", _fence_not_restored, True),
    Bug("a duplicate's ack rests on no rows", _ack_about_nothing, True),
    Bug("a task is evicted while its rule is being decided", _evicts_undecided, True),
    Bug("a new task and what happened to it in two pieces", _pieces_apart, True),
    Bug("a result that is late is a time-out", _late_is_too_late, True),
    Bug("a deadline is sent by the wall clock", _deadline_by_the_wall, True),
    Bug("a new task's times count from its commit", _timed_from_commit, True),
    Bug("tasks that fill the memory with bytes make no room", _bytes_make_no_room, True),
    Bug("a late copy of a hello is a worker's word", _old_word_is_news, True),
    Bug("what was taken back is sent again", _taken_back_sent_again, True),
    Bug("a hello of before a death opens a session", _hello_of_the_dead_believed, True),
    Bug("a resent failure overturns a hold", _stopped_report_overturns_a_hold, True),
    Bug("worker: a new session keeps the longer lease of the one before", _longer_lease_kept, True),
)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    plant = Plant()
    try:
        bug.plant(plant)
        yield
    finally:
        plant.take_out()


class Found(NamedTuple):
    name: str
    was_real: bool
    seed: int | None
    tried: int
    violation: str
    seconds: float


def hunt(bug: Bug, first: int, seeds: int) -> Found:
    """The first seed that finds it."""
    began = time.monotonic()
    with planted(bug):
        for seed in range(first, first + seeds):
            report = World(seed).run()
            if report.violation is not None:
                took = time.monotonic() - began
                return Found(bug.name, bug.was_real, seed, seed - first + 1, report.violation, took)
    return Found(bug.name, bug.was_real, None, seeds, "", time.monotonic() - began)


def hunt_again(bug: Bug, seeds: int) -> Found:
    """By the seed that is noted first: as long as nothing moved in that seed's story, it finds it at once."""
    noted = json.loads(NOTED.read_text()).get(bug.name)
    if noted is not None and (found := hunt(bug, noted, 1)).seed is not None:
        return found
    return hunt(bug, 0, seeds)


def hunt_all(first: int, seeds: int, jobs: int, only: str | None = None) -> Iterator[Found]:
    """From this seed on."""
    yield from _on_processes(_hunt_numbered, [(i, first, seeds) for i in _numbers(only)], jobs)


def hunt_all_again(seeds: int, jobs: int) -> Iterator[Found]:
    """By the seeds that are noted."""
    yield from _on_processes(_hunt_numbered_again, [(i, 0, seeds) for i in _numbers(None)], jobs)


def _numbers(only: str | None) -> list[int]:
    return [i for i, bug in enumerate(BUGS) if only is None or only in bug.name]


def _hunt_numbered(task: tuple[int, int, int]) -> Found:
    number, first, seeds = task
    return hunt(BUGS[number], first, seeds)


def _hunt_numbered_again(task: tuple[int, int, int]) -> Found:
    number, _, seeds = task
    return hunt_again(BUGS[number], seeds)


def _on_processes(
    hunter: Callable[[tuple[int, int, int]], Found], tasks: list[tuple[int, int, int]], jobs: int
) -> Iterator[Found]:
    if jobs == 1:
        yield from map(hunter, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(hunter, tasks)


def report(first: int, seeds: int, jobs: int, only: str | None = None, notes: bool = False) -> int:
    """Prints the table, and notes the seeds for the tests. 1 if one of them was not found."""
    hunted = missed = 0
    noted = json.loads(NOTED.read_text()) if NOTED.exists() else {}
    print("| planted bug | found by seed no. | as |\n|---|---|---|")
    for each in hunt_all(first, seeds, jobs, only):
        hunted += 1
        missed += each.seed is None
        noted |= {each.name: each.seed} if each.seed is not None else {}
        number = f"not in {each.tried}" if each.seed is None else str(each.tried)
        real = " (was real)" if each.was_real else ""
        print(f"| {each.name}{real} | {number} | {each.violation.partition(':')[0]} |", flush=True)
    print(f"\n{hunted - missed} of {hunted} found")
    if notes:
        kept = {bug.name: noted[bug.name] for bug in BUGS if bug.name in noted}
        NOTED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return 1 if missed else 0
