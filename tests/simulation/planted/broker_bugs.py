"""Bugs of the broker: one shipped line each, done wrong."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from stepwire_broker.core import machine, timer_kinds
from stepwire_broker.core.answers.answers import TasksSubmitted
from stepwire_broker.core.commit import decision, operator_controls, outbox
from stepwire_broker.core.dispatch import placement
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.intake import commands, storing, submission
from stepwire_broker.core.loading import residency
from stepwire_broker.core.model import apply as core_apply
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import CommitGroup, Committed, Rejected, SubmissionOutcome, WorkflowOutcome
from stepwire_broker.core.model.level0_peer import Level0Peer
from stepwire_broker.core.model.states import COMPLETED, DISPATCHED, HELD, WAITING
from stepwire_broker.core.progress import deliveries, dependents, readiness, step_outcomes
from stepwire_broker.core.routing import ready_queue
from stepwire_broker.core.routing.level0_handlers import Level0Handlers, Recorded
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import batch_answers, hello, level0, loss, step_results
from stepwire_broker.store import lane
from stepwire_broker.store.lane import NotAdvanced
from stepwire_broker.store.sqlite.writer import SqliteWriter
from stepwire_protocol import messages as wire
from stepwire_protocol import topics

from tests.memory_store.writer import MemoryWriter

from .plant import Bug, Plant

# -- the outbox -------------------------------------------------------------------------------------------------------


def _at_once(kind: type, message: type | None = None) -> Callable[[Plant], None]:
    def send(original: Any, self: Any, item: Any) -> None:
        if isinstance(item, kind) and (message is None or isinstance(item.message, message)):
            self._held.appendleft(([], item))
        else:
            original(self, item)

    return lambda plant: plant.method(outbox.Outbox, "send", send)


def _one_lane(plant: Plant) -> None:
    plant.function(outbox._lanes_of, lambda original, send: set(sorted(original(send))[:1]))


def _stalled_forgotten(plant: Plant) -> None:
    plant.function(machine._go_on, lambda original, state, lane: setattr(lane, "stalled", None))


def _left_behind_skipped(plant: Plant) -> None:
    def open_lane(original: Any, self: Any, taken: Any, now: Any) -> Any:
        lane = original(self, taken, now)
        lane.left_behind = None
        return lane

    plant.method(BrokerState, "open_lane", open_lane)


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
    def fail(original: Any, state: Any, step: Any, error: Any, now: Any, **more: Any) -> None:
        step.attempt = 0
        original(state, step, error, now, **more)

    plant.function(step_outcomes.fail, fail)


def _held_is_failed(plant: Plant) -> None:
    plant.function(step_outcomes.hold, lambda _, state, step, code, now: step_outcomes.fail_for(state, step, code, now))


def _forget_earlier(plant: Plant) -> None:
    def left(original: Any, step: Any) -> None:
        original(step)
        step.earlier = None

    plant.function(core_apply._left, left)


def _not_queued(plant: Plant) -> None:
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
    last_wall: dict[str, int] = {}

    def remember(original: Any, state: Any, message: Any, now: Any) -> None:
        last_wall[message.worker] = now.wall
        original(state, message, now)

    def check(original: Any, state: Any, session: Any, now: Any) -> None:
        if not session.dead and now.wall - last_wall.get(session.worker, now.wall) > state.settings.bus.lease_ms:
            loss.bury(state, session, now)
        else:
            original(state, session, now)

    plant.function(hello.on_heartbeat, remember)
    plant.function(hello.on_hello, remember)
    plant.function(loss.check_lease, check)


def _takes_over_nothing(plant: Plant) -> None:
    def opened(original: Any, state: Any, hello: Any, k: int, before: Any, now: Any) -> Any:
        return original(state, msgspec.structs.replace(hello, holding=[]), k, before, now)

    plant.function(hello._open, opened)


def _safe_too_soon(plant: Plant) -> None:
    def open_lane(original: Any, self: Any, taken: Any, now: Any) -> Any:
        lane = original(self, taken, now)
        lane.safe_at_mono = lane.taken_mono + 50
        self.await_safety(lane.safe_at_mono)
        return lane

    plant.method(BrokerState, "open_lane", open_lane)


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
            answer = TasksSubmitted(list(undecided.ids), [True] * len(undecided.ids))
            state.decision.answers.append(decision.ToRequest(event.request, answer))

    plant.function(submission.on_submit, on_submit)


def _rest_forgotten(plant: Plant) -> None:
    def build_on(_: Any, state: Any, building: Any, now: Any) -> None:
        storing._build_slice(state, building)
        storing._put_in_group(state, building)

    plant.function(storing._build_on, build_on)


def _eviction_ignored(plant: Plant) -> None:
    def insert(original: Any, state: Any, loaded: Any, gone: Any, now: Any) -> int:
        return int(original(state, loaded, set(), now))

    plant.function(residency.insert, insert)


# -- level 0 ----------------------------------------------------------------------------------------------------------


def _offers_not_recorded(plant: Plant) -> None:
    plant.method(Level0Handlers, "record", lambda _, self, handlers, worker, at_ms: Recorded([], 0))


def _offers_not_loaded(plant: Plant) -> None:
    """The offers are forgotten when the broker starts again."""

    def begin(original: Any, self: Any, configured: Any, controls: Any) -> None:
        original(self, configured, [])

    plant.method(Level0Handlers, "__init__", begin)


def _unknown_is_a_failure(plant: Plant) -> None:
    plant.function(level0.is_unknown_handler, lambda _, error: False)


def _asked_again(plant: Plant) -> None:
    plant.method(Level0Peer, "learn_unknown", lambda _, self, handler_class: None)


# -- breakers ---------------------------------------------------------------------------------------------------------


def _once_as_probe(plant: Plant) -> None:
    def limits(original: Any, state: Any, routes: Any, now: Any) -> Any:
        barred = state.guards.barred
        as_if = {r: r._replace(is_at_most_once=False) if r.handler_class in barred else r for r in routes}
        allowances = original(state, list(as_if.values()), now)
        return {route: allowances[other] for route, other in as_if.items() if other in allowances}

    plant.function(allowance.limits, limits)


def _open_for_ever(plant: Plant) -> None:
    plant.function(allowance._set_timer, lambda _, state, guard, now: None)


# -- reports of workers -----------------------------------------------------------------------------------------------


def _progress_outlives(plant: Plant) -> None:
    def remove(original: Any, state: Any, step: Any) -> None:
        report = state.progress.get(step.id)
        original(state, step)
        if report is not None:
            state.progress[step.id] = report

    plant.function(deliveries.remove_delivery, remove)


def _message_missing(plant: Plant) -> None:
    plant.function(step_outcomes._message, lambda _, error: None)


def _duration_missing(plant: Plant) -> None:
    plant.function(step_results._run_ms, lambda _, metadata: None)


def _stderr_missing(plant: Plant) -> None:
    plant.function(step_results._keep_stderr, lambda _, state, step, delivery, text: None)


# -- the database -----------------------------------------------------------------------------------------------------


def _unknown_is_failed(plant: Plant) -> None:
    def attempt(original: Any, self: Any) -> Any:
        result = original(self)
        group = self._group
        if isinstance(result, lane.Trouble) and self._writer.position() == group.seq:
            touched = {row.task_id for row in group.history} | {row.id for row in group.tasks_changed}
            return Committed(
                group.lane,
                group.seq,
                [SubmissionOutcome(s.request, {}, None, failed="unknown") for s in group.submissions],
                [WorkflowOutcome(w.request, 1, created=False, conflict=False) for w in group.workflows],
                [Rejected(i, "unknown") for i in sorted(touched)],
            )
        return result

    plant.method(lane.Writing, "attempt", attempt)


def _applied_twice(plant: Plant) -> None:
    def advance(original: Any, self: Any, seq: int) -> None:
        try:
            original(self, seq)
        except NotAdvanced:
            if self.position() != seq:
                raise

    plant.method(MemoryWriter, "advance", advance)
    plant.method(SqliteWriter, "advance", advance)


def _used_ids_returned(plant: Plant) -> None:
    """A planned stop also returns the ids of its last tasks."""

    def return_numbers(original: Any, state: Any) -> None:
        for own in state.lanes.values():
            own.ids.next = max(1, own.ids.next - 8)
        original(state)

    plant.function(submission.return_numbers, return_numbers)


def _ids_of_another_lane(plant: Plant) -> None:
    """A submission takes its ids from a block of another lane."""

    def store(original: Any, state: Any, event: Any, workflows: Any, number: int, now: Any) -> None:
        lanes = sorted(state.lanes)
        lane, other = state.lanes[number], state.lanes[lanes[lanes.index(number) - 1]]
        own, lane.ids = lane.ids, other.ids
        original(state, event, workflows, number, now)
        lane.ids = own

    plant.function(storing.store, store)


def _listed_for_ever(plant: Plant) -> None:
    """A step that no longer needs an operator stays in the table of attention."""

    def write(original: Any, group: CommitGroup, task: Any) -> None:
        original(group, task)
        group.attention = [row for row in group.attention if row.kind is not None]

    plant.function(outbox._write, write)


def _controls_forgotten(plant: Plant) -> None:
    """The broker does not read the controls of operators at a start."""
    plant.function(operator_controls.stored, lambda original, controls, kind: [])


def _release_not_stored(plant: Plant) -> None:
    """An executor that was resumed is paused again by a restart."""
    plant.function(operator_controls.removal, lambda original, name, kind: original(f"{name}x", kind))


BUGS: Final = (
    Bug("a late failure fails the current delivery", _no_fence),
    Bug("acks sent before their commit", _at_once(outbox.SendAck)),
    Bug("the ack of a duplicate waits for no commit", _ack_duplicates),
    Bug("results of steps not in memory are acked without a lookup", _ack_unknown),
    Bug("steps resent before they were released", _retransmit_early),
    Bug("steps sent before their commit", _at_once(outbox.SendBatch)),
    Bug("go sent before its commit", _at_once(outbox.SendMessage, wire.Go)),
    Bug("a repeated go waits for no commit", _go_again_at_once),
    Bug("answers sent before their commit", _at_once(outbox.SendAnswer)),
    Bug("a send waits for one of its lanes", _one_lane),
    Bug("the steps of a stalled lane are not queued again", _stalled_forgotten),
    Bug("tasks that the former owner had in memory are not loaded", _left_behind_skipped),
    Bug("leases measured by the wall clock", _wall_clock_lease),
    Bug("leases not extended after the loop was late", _gap_ignored),
    Bug("the steps of a lost worker are not queued", _not_queued),
    Bug("a granted step dispatched again", _granted_again),
    Bug("one ended dependency is enough", _dependencies_unchecked),
    Bug("retry limit ignored", _retry_for_ever),
    Bug("an unknown outcome fails the step", _held_is_failed),
    Bug("an undelivered delivery is forgotten", _forget_earlier),
    Bug("timeout counted from the accept", _timed_from_accept),
    Bug("a cancel stops no steps", _cancel_forgotten),
    Bug("a history row is missing", _history_row_missing),
    Bug("a new session takes over no deliveries", _takes_over_nothing),
    Bug("a recovered delivery taken back before safe_at", _safe_too_soon),
    Bug("submission key ignored", _key_ignored),
    Bug("a submission is answered before its commit", _key_decided_early),
    Bug("only the first tasks of a large submission are stored", _rest_forgotten),
    Bug("a task evicted after a page was read is loaded from it", _eviction_ignored),
    Bug("level 0: handlers that workers offer are not recorded", _offers_not_recorded),
    Bug("level 0: recorded offers are not loaded", _offers_not_loaded),
    Bug("level 0: an unknown handler is a failure of the step", _unknown_is_a_failure),
    Bug("level 0: a program is asked again for an unknown handler", _asked_again),
    Bug("breaker: an at_most_once step as probe", _once_as_probe),
    Bug("breaker: no timer ends its open time", _open_for_ever),
    Bug("progress outlives its run", _progress_outlives),
    Bug("a failed attempt's error is not recorded", _message_missing),
    Bug("the duration of a run is not recorded", _duration_missing),
    Bug("the standard error of a run is not stored", _stderr_missing),
    Bug("an unknown commit treated as failed", _unknown_is_failed),
    Bug("an unknown commit applied twice", _applied_twice),
    Bug("a planned stop returns ids that are used", _used_ids_returned),
    Bug("a submission takes ids of another lane", _ids_of_another_lane),
    Bug("a step stays in the table of attention", _listed_for_ever),
    Bug("what an operator set ends with the broker's process", _controls_forgotten),
    Bug("what an operator removed is set again by a restart", _release_not_stored),
)
