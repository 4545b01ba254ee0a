"""The observer: the world reports every event here, and the observer updates the books and runs the checks."""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire.actions import Log
from stepwire_broker.core.answers.answers import TasksSubmitted
from stepwire_broker.core.model import events
from stepwire_broker.core.model.commit_group import AuditNew, HistoryRow
from stepwire_broker.core.shadows.shadow import FIRST
from stepwire_broker.core.workers.level0 import peer_name
from stepwire_broker.store.lane import Rows
from stepwire_protocol import messages as wire

from tests.memory_store.tables import LaneOwner
from tests.simulation.broker_node import BrokerNode
from tests.simulation.peer_node import PeerNode, RunningAtLevel0
from tests.simulation.worker_node import Running, WorkerNode

from . import (
    at_most_once,
    audit,
    commands,
    controls,
    counts,
    credit,
    deliveries,
    dependencies,
    erasure,
    history,
    lanes,
    level0,
    owners,
    quotas,
    recovery,
    reports,
    results,
    retries,
    server_keys,
    submissions,
    worker_duties,
)
from .books import Books, Dispatch, Dispatched, Run, StepBook, TaskBook, json

if TYPE_CHECKING:
    from tests.simulation.people import Submission
    from tests.simulation.world import World

RECOUNT_EVERY: Final = 16

_results: Final = msgspec.json.Decoder(wire.Results).decode
_steps: Final = msgspec.json.Decoder(wire.Steps).decode
_ack: Final = msgspec.json.Decoder(wire.Ack).decode
_refuse: Final = msgspec.json.Decoder(wire.Refuse).decode
_heartbeat: Final = msgspec.json.Decoder(wire.Heartbeat).decode
_steps_level0: Final = msgspec.json.Decoder(wire.StepsLevel0).decode
_go: Final = msgspec.json.Decoder(wire.Go).decode
_greeting: Final = msgspec.json.Decoder(wire.Welcome | wire.HeartbeatAck).decode
_cancel: Final = msgspec.json.Decoder(wire.Cancel).decode
_adopted: Final = msgspec.json.Decoder(wire.Adopted).decode

_AFTER: Final = {
    "readied": "ready",
    "dispatched": "dispatched",
    "undelivered": "ready",
    "completed": "completed",
    "backed_off": "retry_wait",
    "failed": "failed",
    "held": "held",
    "skipped": "skipped",
    "cancelled": "cancelled",
    "reopened": "waiting",
    "restored": "held",
}
_TASK_FACTS: Final = frozenset(
    {
        "submitted",
        "activated",
        "paused",
        "resumed",
        "cancel_asked",
        "task_reopened",
        "operated",
        "noticed",
        "erased",
        "ended",
    }
)


class _Batch(msgspec.Struct):
    batch_id: str = ""


class Checks:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.books = Books(world)
        self.is_over = False  # the database has lost commits, so its rows contradict the books
        self._events = 0

    # -- commits ------------------------------------------------------------------------------------------------------

    def committed(self, lane: int, owner: LaneOwner, parts: list[Rows], audit_rows: list[AuditNew]) -> None:
        """The rows are durable now, and `world.tables` shows them."""
        if self.is_over:
            return
        books = self.books
        owners.check_commit(books, lane, owner)
        audit.check_transaction(books, parts, audit_rows)
        for rows in parts:
            for new in rows.tasks_new:
                books.tasks[new.id] = TaskBook()
                books.tasks[new.id].state = str(new.state)
                books.open_tasks.add(new.id)
            for step in rows.steps_new:
                books.steps[step.id] = StepBook()
            for new in rows.tasks_new:
                submissions.check_ids(books, new, self.world.tables.steps_of[new.id])
            dispatched: list[Dispatched] = []
            for task_id, fact in [(row.task_id, fact) for row in rows.history for fact in json(row.facts)]:
                self._read_fact(task_id, fact, dispatched)
            for each in dispatched:
                dependencies.check_dispatch(books, each)
            for changed in rows.tasks_changed:
                if changed.finished_ms is None:
                    books.open_tasks.add(changed.id)
                else:
                    books.open_tasks.discard(changed.id)
                history.check_task_row(books, changed.id, str(changed.state))
            for text in rows.steps_stderr:
                reports.check_stderr(books, text.id, text.delivery, text.text)
            for done in rows.steps_completed:
                results.check_output(books, done.id, done.output)
                reports.check_stderr_kept(books, done.id, books.steps[done.id].completed_delivery)
            for output in rows.steps_output:
                if output.output is not None:
                    results.check_output(books, output.id, output.output)
                    reports.check_stderr_kept(books, output.id, books.steps[output.id].completed_delivery)
            history.check_attention(books, rows)
            erasure.check_committed(books, {row.task_id for row in rows.history})

    def _read_fact(self, task_id: int, fact: list[Any], dispatched: list[Dispatched]) -> None:
        kind = fact[0]
        self.world.counts["fact", kind] += 1
        self.books.tasks[task_id].facts[kind] += 1
        if kind in _TASK_FACTS:
            self._read_task_fact(task_id, fact)
            return
        step_id = task_id + 1 + fact[2]
        book = self.books.steps[step_id]
        before = book.state
        after = _AFTER.get(kind, before)
        self.world.counts["step", f"{kind}: {before} → {after}"] += 1
        results.check_step_fact(self.books, task_id, step_id, fact)
        book.state = after
        if kind == "dispatched":
            dispatched.append(self._read_dispatched(task_id, step_id, book, fact))
        else:
            self._read_step_fact(task_id, step_id, book, fact, before)
        if after == "held":
            self.books.held.add(step_id)
        elif before == "held":
            self.books.held.discard(step_id)

    def _read_dispatched(self, task_id: int, step_id: int, book: StepBook, fact: list[Any]) -> Dispatched:
        books = self.books
        deliveries.check_number(books, book, step_id, fact[3])
        book.delivery = fact[3]
        book.held_as = None
        book.dispatched[fact[3]] = Dispatch(fact[4], fact[5], self.world.now)
        broker = books.owner_of(task_id)
        books.dispatched_ms[broker.id] = self.world.now
        definition = books.definition(task_id, fact[2])
        is_once = definition.delivery_mode == "at_most_once"
        self.world.breakers.dispatched(broker, definition.handler_class, is_once, fact)
        commands.check_dispatch(books, books.tasks[task_id], step_id)
        return Dispatched(
            task_id, fact, step_id, {i: books.steps[task_id + 1 + i].state for i in definition.depends_on}
        )

    def _read_step_fact(self, task_id: int, step_id: int, book: StepBook, fact: list[Any], before: str) -> None:
        books = self.books
        if fact[0] in ("backed_off", "failed", "held"):
            reports.check_ended(books, step_id, fact)
        match fact[0]:
            case "readied":
                retries.note_readied(books, task_id, book, fact)
            case "granted":
                at_most_once.check_grant(books, step_id, book, fact)
                book.granted.add(fact[3])
            case "completed":
                book.completed_delivery = fact[3]
                reports.check_completed(books, step_id, fact)
            case "backed_off":
                at_most_once.check_stopped(books, step_id, book, fact, before)
                level0.check_failure(books, step_id, book, fact)
                book.backed_off += 1
                retries.check_timeout(books, step_id, book, fact)
                retries.check_retries(books, step_id, book, fact)
            case "failed":
                results.check_blamed(books, step_id, fact)
                at_most_once.check_unstorable(books, step_id, book, fact, before)
                at_most_once.check_stopped(books, step_id, book, fact, before)
                level0.check_failure(books, step_id, book, fact)
                retries.check_timeout(books, step_id, book, fact)
                at_most_once.check_failed(books, step_id, book, fact)
            case "undelivered":
                self._read_undelivered(task_id, step_id, book, fact)
            case "held":
                at_most_once.check_held(books, step_id, book, fact)
            case "reopened":
                book.held_as = None
                book.reopened += 1
                book.reopened_ms = self.world.now
                book.reopened_delivery = book.delivery
                book.backed_off = book.lost = 0
                book.readied = None
                at_most_once.check_reopened(books, step_id, fact)

    def _read_undelivered(self, task_id: int, step_id: int, book: StepBook, fact: list[Any]) -> None:
        book.taken_back.add(fact[3])
        level0.note_undelivered(self.books, task_id, step_id, book, fact)
        deliveries.check_taken_back(self.books, step_id, book, fact)
        if fact[4] == "session_lost":
            recovery.check_lost(self.books, step_id, book.dispatched[fact[3]].worker, fact)
        book.lost += bool(fact[5])
        retries.check_lost_sessions(self.books, step_id, book)
        at_most_once.check_undelivered(self.books, step_id, book, fact)

    def _read_task_fact(self, task_id: int, fact: list[Any]) -> None:
        kind = fact[0]
        task = self.books.tasks[task_id]
        before = task.state
        results.check_task_fact(self.books, task_id, fact)
        match kind:
            case "paused":
                task.paused = True
                task.state = "paused"
            case "resumed":
                task.paused = False
                task.state = "running"
            case "cancel_asked":
                task.cancel_asked = True
            case "activated":
                task.state = "running"
            case "task_reopened":
                task.cancel_asked = task.paused = False
                task.state = "running"
            case "operated":
                task.operated[fact[2]] += 1
                if fact[3] is not None:
                    self.books.steps[task_id + 1 + fact[3]].held_as = None
                if fact[2] == "resolve_completed":
                    self.books.resolved_outputs.add(task_id + 1 + fact[3])
            case "erased":
                erasure.note_erased(self.books, task_id, fact)
            case "ended":
                task.state = fact[2]
                dependencies.check_ended(self.books, task_id)
        self.world.counts["task", f"{kind}: {before} → {task.state}"] += 1

    def rows_refused(self, rows: HistoryRow) -> None:
        results.note_refused(self.books, rows)

    def tasks_loaded(self, page: events.LoadedTasks) -> None:
        retries.forget_readied(self.books, page)

    # -- messages of the broker ---------------------------------------------------------------------------------------

    def sent(self, broker: BrokerNode, worker: str, body: bytes) -> None:
        """A message to a worker leaves a broker."""
        lanes.check_sent(self.books, broker, body)
        owners.check_speaks(self.books, broker, body)
        kind = body[9:13]
        if kind == b"step":
            self._sent_steps(broker, worker, _steps(body))
        elif kind == b'ack"':
            results.check_ack(self.books, worker, _ack(body))
        elif kind == b'go",':
            at_most_once.check_go(self.books, worker, _go(body))
        elif kind == b"canc":
            at_most_once.note_cancel(self.books, _cancel(body))

    def _sent_steps(self, broker: BrokerNode, worker: str, message: wire.Steps) -> None:
        books = self.books
        if message.batch_id in books.seen_batches:
            books.numbers["retransmitted"] += 1
            erasure.check_sent(books, (step.task_id for step in message.steps))
            deliveries.check_resent(books, message)
            return
        books.seen_batches.add(message.batch_id)
        level0.note_sent_to_worker(books, broker, message)
        erasure.check_sent(books, (step.task_id for step in message.steps))
        for step in message.steps:
            if step.step_id >= FIRST:
                dependencies.check_shadow(books, step)
                continue
            book = dependencies.check_sent(books, worker, message.batch_id, step)
            retries.check_deadline(books, broker, book, step)

    def sent_level0(self, broker: BrokerNode, to: str, body: bytes) -> None:
        """A batch to a level-0 handler leaves a broker."""
        books = self.books
        message = _steps_level0(body)
        erasure.check_sent(books, (step.task_id for step in message.steps))
        deliveries.check_level0_batch(books, to, message)
        level0.check_batch(books, broker, message)
        books.seen_batches.add(message.batch_id)
        worker = peer_name(to, books.world.network.granted[to].worker.principal)
        for step in message.steps:
            delivery = books.delivery_of(step.step_id, worker, message.batch_id)
            definition = books.definition(step.task_id, step.step_id - step.task_id - 1)
            if definition.delivery_mode == "at_most_once":
                at_most_once.check_granted(books, books.steps[step.step_id], delivery, f"step {step.step_id} to {to}")

    def answered(self, broker: BrokerNode, command: Any, answer: Any) -> None:
        self.world.counts["answer", f"{type(command).__name__}: {getattr(answer, 'code', type(answer).__name__)}"] += 1
        submissions.check_answer(self.books, command, answer)
        controls.answered(self.books, broker, command, answer)

    def asked(self, broker: BrokerNode, command: Any) -> None:
        """A broker begins to handle a command."""
        controls.asked(self.books, broker, command)

    def acknowledged(self, submission: "Submission", answer: TasksSubmitted) -> None:
        submissions.check_acknowledged(self.books, submission, answer)

    def conflicted(self, submission: "Submission") -> None:
        submissions.check_conflict(self.books, submission)

    # -- handlers and workers -----------------------------------------------------------------------------------------

    def handler_entered(self, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode) -> None:
        books, step = self.books, running.run.step
        step_id, delivery = running.run.item
        if isinstance(worker, WorkerNode):
            worker_duties.check_slots(books, worker)
            worker_duties.check_lease(books, worker, running.run.item)
        if step_id >= FIRST:
            return  # a shadow is no step of the store
        book = dependencies.check_entered(books, running, worker)
        deliveries.check_entered(books, book, running, worker)
        dependencies.check_inputs(books, book, step, delivery)
        is_once = books.definition_of(running).delivery_mode == "at_most_once"
        if is_once:
            at_most_once.check_granted(books, book, delivery, f"{running.run.item} at {worker.id}")
        # The broker cannot inform a level-0 handler that its lease has ended.
        is_stale = worker.at_level0 and delivery in book.taken_back and not is_once
        for before in [] if is_stale else book.runs:
            deliveries.check_overlap(books, book, before, running, worker)
            if delivery > book.reopened_delivery and before.reopened == book.reopened:
                if is_once:
                    at_most_once.check_started_once(books, before, running)
                else:
                    retries.check_run_again(books, book, before, running)
        retries.check_attempt(books, step)
        # A delivery from before an operator's last retry belongs to the time before it, whenever it starts.
        era = book.reopened if delivery > book.reopened_delivery else book.reopened - 1
        book.runs.append(Run(running, worker, self.world.now, era))
        books.numbers["runs"] += 1

    def handler_ended(self, running: Running | RunningAtLevel0, result: wire.Result | None) -> None:
        if not running.entered or running.run.item[0] >= FIRST:
            return
        for run in self.books.steps[running.run.item[0]].runs:
            if run.running is running:
                run.ended_ms = self.world.now
                run.result = result

    def level0_returned(self, step_id: int, delivery: int, output: bytes) -> None:
        self.books.outputs.setdefault((step_id, delivery), set()).add(output)

    def stop_requested(self, running: Running, reason: str) -> None:
        book = self.books.steps.get(running.run.item[0])
        for run in book.runs if book is not None else ():
            if run.running is running and reason != "lease_lost":
                run.was_stopped = True

    def worker_sent(self, node: WorkerNode, body: bytes) -> None:
        """A message leaves a worker, whether it arrives or not."""
        books, worker = self.books, node.id
        if len(self.world.brokers) > 1 and b'"free":' in body:
            credit.note_sent(books, node, body)
        if body.startswith(b'{"type":"heartbeat"'):
            heartbeat = _heartbeat(body)
            worker_duties.check_waiting(books, node, heartbeat)
            worker_duties.check_credit(books, node, heartbeat)
        elif body.startswith(b'{"type":"refuse"'):
            worker_duties.count_returned(books, node, _refuse(body))
        if books.unanswered and b'"batch_id"' in body[:400]:
            books.unanswered.pop((worker, msgspec.json.decode(body, type=_Batch).batch_id), None)
        if body.startswith(b'{"type":"adopted"'):
            unknown = [item for item in _adopted(body).items if item[2] == "unknown"]
            books.disowned_items.update((worker, step_id, delivery) for step_id, delivery, _, _ in unknown)
        if body.startswith(b'{"type":"results"'):
            message = _results(body)
            books.result_numbers[worker].add(message.n)
            books.results.setdefault((worker, message.rid), message)
            reports.note_sent(books, message)
            for result in message.results:
                if result.status == "completed":
                    output = bytes(result.output)
                    books.outputs.setdefault((result.step_id, int(result.delivery)), set()).add(output)  # type: ignore[arg-type]

    def worker_received(self, worker: WorkerNode, body: bytes) -> None:
        if body.startswith(b'{"type":"cancel"'):
            worker_duties.note_cancelled(self.books, worker, _cancel(body))
        elif body.startswith(b'{"type":"steps"'):
            steps = _steps(body)
            worker_duties.expect_answer(self.books, worker, steps)
            if len(self.world.brokers) > 1:
                credit.note_steps(self.books, worker, steps.broker, len(steps.steps))

    def worker_handled(self, worker: WorkerNode, body: bytes) -> None:
        """The session has handled this message."""
        if len(self.world.brokers) > 1 and worker.is_alive:
            if body.startswith(b'{"type":"steps"'):
                credit.check_held(self.books, worker)
            elif body.startswith((b'{"type":"welcome"', b'{"type":"heartbeat_ack"')):
                greeting = _greeting(body)
                credit.note_read(self.books, worker, greeting.broker, greeting.n)
        if self.world.server_keys.is_on and body.startswith((b'{"type":"welcome"', b'{"type":"heartbeat_ack"')):
            server_keys.note_listed(worker, _greeting(body))

    def worker_logged(self, worker: str, action: Log) -> None:
        self.world.counts["log", action.event] += 1
        if action.event == "session_dropped":
            server_keys.check_dropped(self.books, worker)
            self.books.dropped_ms[action.facts.get("broker", "b1"), worker] = self.world.now
            self.books.numbers["sessions dropped"] += 1
            credit.note_dropped(self.books, worker, action.facts.get("broker", "b1"))
        elif action.event == "message_refused":
            self.world.counts["refused", str(action.facts["code"])] += 1

    def drain_over(self, worker: WorkerNode) -> None:
        worker_duties.check_drained(self.books, worker)

    def worker_died(self, worker: WorkerNode) -> None:
        recovery.note_death(self.books, worker)
        self.world.breakers.died()

    # -- the brokers themselves ---------------------------------------------------------------------------------------

    def broker_received(self, broker: BrokerNode, frame: bytes) -> None:
        recovery.note_alive(self.books, broker, frame)
        reports.note_received(self.books, broker, frame)

    def broker_started(self, broker: BrokerNode) -> None:
        controls.check_start(self.books, broker)
        recovery.watch_restart(self.books, broker)

    def broker_died(self, broker: BrokerNode) -> None:
        counts.add_counters(self.books, broker)
        self.books.succeeded[broker.id].clear()

    def event_handled(self, broker: BrokerNode) -> None:
        self._events += 1
        if self._events % RECOUNT_EVERY == 0:
            counts.check_recount(self.books, broker)
            quotas.check_open_steps(self.books, broker)
            owners.check_memory(self.books, broker)
            lanes.check_counts(self.books, broker)

    def lane_lost(self, broker: BrokerNode, lane: int, writer_of: LaneOwner) -> None:
        owners.check_gone(self.books, broker, lane, writer_of)

    def lane_may_go(self, broker: BrokerNode, lane: int) -> None:
        owners.check_release(self.books, broker, lane)

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail_stuck(self) -> None:
        recovery.fail_stuck(self.books)

    def fail_unsettled(self) -> None:
        counts.fail_unsettled(self.books)

    def check_end(self) -> None:
        for broker in self.world.brokers:
            counts.add_counters(self.books, broker)
            counts.check_recount(self.books, broker)
            counts.check_released(self.books, broker)
        submissions.check_kept(self.books)
        erasure.check_all(self.books)
        audit.check_chain(self.books)
        history.check_replays(self.books)
