"""The promises, in executable form. Each check is named for the promise (of the README) that it would falsify.

The checkers stand outside: they see what is committed, at the instant it is; what leaves the broker, at the instant it
leaves; and what handlers do. They keep books of their own, of those three, and never ask the core what it thinks.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire.actions import Log
from stepwire_broker.core.commit import history
from stepwire_broker.core.definitions.stored_rows import StoredStep
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import events
from stepwire_broker.core.model.answers import Applied, CommandRefused, Done, TasksSubmitted
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.live import LEVEL0, WorkerSession
from stepwire_broker.core.shadows.shadow import FIRST
from stepwire_broker.store.lane import Rows
from stepwire_protocol import limits
from stepwire_protocol import messages as wire

from . import recount
from .faults import DEATH_KINDS, RESTART_KINDS
from .peer_node import PeerNode, RunningAtLevel0
from .worker_node import Running, WorkerNode

if TYPE_CHECKING:
    from .people import Submission
    from .world import World

FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
TASK_FINAL: Final = frozenset({"completed", "failed", "cancelled"})
RECOUNT_EVERY: Final = 16
ANSWER_MS: Final = 300.0
PROVEN_MS: Final = 2_000.0
SILENT_MARGIN_MS: Final = 1_000.0
RESTARTED_MS: Final = 3_000.0
HEARD_LATELY: Final = 0.97
FAR_OFF_MS: Final = 5_000  # who waits longer than this is to make room
LEVEL0_GRACE_MS: Final = 5_000

_json: Final = msgspec.json.decode
_results: Final = msgspec.json.Decoder(wire.Results).decode
_steps: Final = msgspec.json.Decoder(wire.Steps).decode
_ack: Final = msgspec.json.Decoder(wire.Ack).decode
_steps_level0: Final = msgspec.json.Decoder(wire.StepsLevel0).decode
_go: Final = msgspec.json.Decoder(wire.Go).decode
_cancel: Final = msgspec.json.Decoder(wire.Cancel).decode
_adopted: Final = msgspec.json.Decoder(wire.Adopted).decode


class Violation(Exception):
    """A promise was broken."""


class _Batch(msgspec.Struct):
    batch_id: str = ""


class _Alive(msgspec.Struct):
    worker: str
    sessions: dict[str, str] = {}
    next: dict[str, int] = {}
    n: int = 0


class StepBook:
    """What is known of one step, from what was committed and from what its handlers did."""

    __slots__ = (
        "backed_off",
        "completed_delivery",
        "delivery",
        "dispatched",
        "expected",
        "granted",
        "held",
        "held_as",
        "lost",
        "readied",
        "reopened",
        "reopened_delivery",
        "reopened_ms",
        "runs",
        "state",
        "taken_back",
    )

    def __init__(self) -> None:
        self.state = "waiting"
        self.taken_back: set[int] = set()
        self.delivery = 0
        self.dispatched: dict[int, tuple[str, str, float]] = {}  # delivery → worker, batch, when it was durable
        self.granted: set[int] = set()
        self.expected: dict[int, dict[str, str | None]] = {}  # delivery → outputs of what it depends on
        self.runs: list[Run] = []
        self.reopened = 0
        self.reopened_delivery = 0
        self.reopened_ms = -1.0
        self.readied: tuple[int, float] | None = None  # in which life of the broker, when; None: it was loaded since
        self.backed_off = 0
        self.lost = 0
        self.held = 0
        self.held_as: str | None = None  # the reason of the current hold, until an operator resolves it
        self.completed_delivery = 0


class Run:
    """A handler was entered."""

    __slots__ = (
        "at_ms",
        "delivery",
        "ended_ms",
        "life",
        "reopened",
        "result",
        "running",
        "timeout_ms",
        "was_stopped",
        "worker",
    )

    def __init__(
        self, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode, at_ms: float, reopened: int
    ) -> None:
        self.running = running
        self.worker = worker
        self.life = worker.life
        self.delivery = running.run.item[1]
        self.timeout_ms = running.run.step.metadata.timeout_ms
        self.at_ms = at_ms
        self.ended_ms: float | None = None
        self.reopened = reopened
        self.result: wire.Result | None = None
        self.was_stopped = False


class TaskBook:
    __slots__ = ("cancel_asked", "facts", "operated", "paused", "state")

    def __init__(self) -> None:
        self.state = "running"
        self.paused = False
        self.cancel_asked = False
        self.operated: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()


class Checks:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_closing = False
        self.steps: dict[int, StepBook] = {}
        self.tasks: dict[int, TaskBook] = {}
        self.open_tasks: set[int] = set()
        self.held: set[int] = set()
        self.acked_keys: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.acked_tasks: dict[int, Any] = {}
        self.acked_orders: Counter[tuple[int, str]] = Counter()
        self.entered_items: set[tuple[str, int, int]] = set()
        self.disowned_items: set[tuple[str, int, int]] = set()  # a process was told, or has said, that it will not run
        self.results: dict[tuple[str, int], wire.Results] = {}
        self.outputs: dict[tuple[int, int], set[bytes]] = {}
        self.resolved_outputs: set[int] = set()
        self.seen_batches: set[str] = set()
        self.dropped_ms: dict[str, float] = {}  # by worker: when it last lost a session
        self.told_n: dict[str, int] = {}
        self.reached_ms: dict[str, float] = {}  # by worker: when the broker last had its word that it lives
        self.muted: set[str] = set()
        self.died_ms: dict[str, float] = {}
        self.dispatched_ms = -1.0
        self.provable: set[str] = set()
        self.unanswered: dict[tuple[str, str], int] = {}
        self.numbers: Counter[str] = Counter()
        self._events = 0

    def fail(self, promise: str, text: str) -> None:
        raise Violation(f"{promise}: {text}")

    # -- commits ------------------------------------------------------------------------------------------------------

    def handed(self, group: CommitGroup) -> None:
        self.world.choose_refused(group)

    def committed(self, parts: list[Rows]) -> None:
        """These rows are durable now, and `world.tables` shows them."""
        for rows in parts:
            for new in rows.tasks_new:
                self.tasks[new.id] = TaskBook()
                self.tasks[new.id].state = str(new.state)
                self.open_tasks.add(new.id)
            for step in rows.steps_new:
                self.steps[step.id] = StepBook()
            told: list[tuple[int, list[Any]]] = []
            for row in rows.history:
                told += [(row.task_id, fact) for fact in _json(row.facts)]
            dispatched: list[HandedOut] = []
            for task_id, fact in told:
                self._fact(task_id, fact, dispatched)
            for handed_out in dispatched:
                self._dispatched(*handed_out)
            for changed in rows.tasks_changed:
                if changed.finished_ms is None:
                    self.open_tasks.add(changed.id)
                else:
                    self.open_tasks.discard(changed.id)
                if self.tasks[changed.id].state != str(changed.state):
                    told_state = self.tasks[changed.id].state
                    self.fail("P10 the history replays", f"task {changed.id} is {changed.state}, told as {told_state}")
            for done in rows.steps_completed:
                self._output(done.id, done.output)
            for output in rows.steps_output:
                if output.output is not None:
                    self._output(output.id, output.output)

    def _fact(self, task_id: int, fact: list[Any], dispatched: list["HandedOut"]) -> None:
        kind = fact[0]
        self.world.counts["fact", kind] += 1
        task = self.tasks[task_id]
        task.facts[kind] += 1
        if kind in _TASK_FACTS:
            self._task_fact(task_id, task, fact)
            return
        step_id = task_id + 1 + fact[2]
        book = self.steps[step_id]
        before = book.state
        after = _AFTER.get(kind, before)
        self.world.counts["step", f"{kind}: {before} → {after}"] += 1
        if before in FINAL and kind != "reopened":
            self.fail("P3/G20 terminal is final", f"step {step_id} was {before}, and then {fact}")
        if task.state in TASK_FINAL:
            self.fail("P3/G20 terminal is final", f"task {task_id} was {task.state}, and then {fact}")
        book.state = after
        match kind:
            case "readied":
                if self._definition(task_id, fact[2]).deadline_ms is not None and book.readied is None:
                    decided_ms = self.world.broker.clock.true_of_wall(fact[1], self.world.now)
                    if not book.delivery and not book.backed_off and not book.reopened:
                        book.readied = self.world.broker.life, decided_ms
            case "dispatched":
                if fact[3] <= book.delivery:
                    self.fail("P4 the fence rises", f"step {step_id} has delivery {fact[3]} after {book.delivery}")
                book.delivery = fact[3]
                book.dispatched[fact[3]] = (fact[4], fact[5], self.world.now)
                self.dispatched_ms = self.world.now
                before_it = self._definition(task_id, fact[2]).depends_on
                definition = self._definition(task_id, fact[2])
                is_once = definition.delivery_mode == "at_most_once"
                self.world.breakers.dispatched(definition.handler_class, is_once, fact)
                dispatched.append((task_id, fact, step_id, {i: self.steps[task_id + 1 + i].state for i in before_it}))
                if task.paused:
                    self.fail("G18 a paused task hands nothing out", f"step {step_id}")
                if task.cancel_asked:
                    self.fail("G18 a cancelled task hands nothing out", f"step {step_id}")
            case "granted":
                if fact[3] != book.delivery:
                    self.fail("P5 a grant is of the current delivery", f"step {step_id}: {fact}, {book.delivery}")
                book.granted.add(fact[3])
            case "completed":
                book.completed_delivery = fact[3]
            case "backed_off":
                self._stopped_is_no_verdict(step_id, book, fact)
                book.backed_off += 1
                self._timed_out(step_id, book, fact)
                limit = self._definition(task_id, fact[2]).retry_limit
                if book.backed_off > limit:
                    self.fail("P6 retries are bounded", f"step {step_id}: {book.backed_off} retries, limit {limit}")
            case "failed":
                self._stopped_is_no_verdict(step_id, book, fact)
                self._timed_out(step_id, book, fact)
                if fact[4] == "outcome_unknown" and self._definition(task_id, fact[2]).on_unknown != "fail":
                    self._unknown_is_no_verdict(step_id, book, fact)
            case "undelivered":
                self._undelivered(step_id, book, fact)
                book.lost += bool(fact[5])
                if book.lost > self.world.settings.bus.lost_sessions_max:
                    self.fail("P6 lost sessions are bounded", f"step {step_id} has lost {book.lost}")
                if fact[4] == "unsent":
                    if book.dispatched[fact[3]][1] in self.seen_batches:
                        self.fail("P5 what was sent is not unsent", f"step {step_id}: {fact}")
                elif fact[3] in book.granted and fact[4] not in _SAID_BY_ITS_WORKER:
                    self.fail("P5 a granted delivery is not handed out again", f"step {step_id}: {fact}")
            case "held":
                self._held(step_id, book, fact)
            case "reopened":
                book.held_as = None
                book.reopened += 1
                book.reopened_ms = self.world.now
                book.reopened_delivery = book.delivery
                book.backed_off = book.lost = 0
                book.readied = None
                if not any(task.operated.values()):
                    self.fail("P5/G20 only an operator opens a step again", f"step {step_id}: {fact}")
        if after == "held":
            self.held.add(step_id)
        elif before == "held":
            self.held.discard(step_id)

    def _timed_out(self, step_id: int, book: StepBook, fact: list[Any]) -> None:
        """Its handler took too long, or nobody could hear the worker that ran it."""
        delivery = fact[3]
        if fact[4] != "timeout" or delivery not in book.dispatched:
            return
        worker, _, since_ms = book.dispatched[delivery]
        if self._is_cut_off(worker, since_ms) or self._has_deadline(step_id, fact[2]):
            return
        runs = [run for run in book.runs if run.delivery == delivery]
        if not any(run.was_stopped or self._is_overdue(run) or self._is_given_up(run) for run in runs):
            self.fail("P6 a time-out has a cause", f"step {step_id}, delivery {delivery} at {worker}: {fact}")

    def _has_deadline(self, step_id: int, index: int) -> bool:
        task_id = step_id - 1 - index
        definition = self._definition(task_id, index)
        return definition.deadline_ms is not None or self.world.tables.tasks[task_id].deadline_ms is not None

    def _unknown_is_no_verdict(self, step_id: int, book: StepBook, fact: list[Any]) -> None:
        if fact[3] in book.granted:
            self.fail("P5 an unknown outcome is held", f"step {step_id}: {fact}")

    def _stopped_is_no_verdict(self, step_id: int, book: StepBook, fact: list[Any]) -> None:
        """A failure that a worker reported after a cancel holds the step, however often the worker resends it."""
        if book.held_as == "stopped":
            self.fail("P5 a stopped step stays held", f"step {step_id}: {fact}")

    def _undelivered(self, step_id: int, book: StepBook, fact: list[Any]) -> None:
        """The broker takes a delivery back: then nothing of it may start any more, and nobody may have it."""
        delivery, code = fact[3], fact[4]
        worker_id = book.dispatched[delivery][0]
        book.taken_back.add(delivery)
        has_answered = any(run.delivery == delivery and run.result is not None for run in book.runs)
        if code == "unanswered" and not self._had_its_time(book, delivery, fact) and not has_answered:
            # If it has answered, and the database refused that, nobody is at it any more.
            self.fail("P4 a level-0 handler has its time", f"step {step_id} at {worker_id}: {fact}")
        worker = next((w for w in self.world.workers if w.is_alive and w.id == worker_id), None)
        if worker is None:
            if code == "session_lost":
                self._found_dead(step_id, worker_id, fact[1])
            return
        if code == "session_lost":
            lease_ms = self.world.broker.settings.bus.lease_ms
            decided_ms = min(self.world.now, self.world.broker.clock.true_of_wall(fact[1], self.world.now))
            heard_ms = self.reached_ms.get(worker_id, -1e12)
            if decided_ms - lease_ms * HEARD_LATELY < heard_ms <= decided_ms and worker_id not in self.muted:
                self.fail("P8 a worker that is heard is not lost", f"step {step_id} at {worker_id}: {fact}")
        elif code in _SAID_BY_ITS_WORKER and code != "unstorable":
            held = worker.session.holdings.get((step_id, delivery))
            if held is not None and held.state is not None:
                self.fail("P4 what a worker holds is not handed to another", f"step {step_id} at {worker_id}: {fact}")

    def _had_its_time(self, book: StepBook, delivery: int, fact: list[Any]) -> bool:
        """Between the clocks' rates and the time of a commit: nearly a lease."""
        return self.world.now - book.dispatched[delivery][2] >= 0.97 * (1_000 + LEVEL0_GRACE_MS)

    def died(self, worker: WorkerNode) -> None:
        if worker.is_provable:
            self.provable.add(worker.id)
        self.died_ms[worker.id] = self.world.now
        self.world.breakers.died()

    def _found_dead(self, step_id: int, worker_id: str, wall_ms: int) -> None:
        """Where only workers die, each death is known in time."""
        if self.world.faults.on <= DEATH_KINDS:
            took_ms = self.world.broker.clock.true_of_wall(wall_ms, self.world.now) - self.died_ms[worker_id]
            bound_ms = (
                PROVEN_MS
                if worker_id in self.provable
                else self.world.broker.settings.bus.lease_ms * 1.03 + SILENT_MARGIN_MS
            )
            self.numbers["deaths timed"] += 1
            if took_ms > bound_ms:
                self.fail("P7 a dead worker's steps are free in time", f"step {step_id} after {took_ms:.0f} ms")

    def reached(self, frame: bytes) -> None:
        """A message has reached the broker's process, which may stand still: who said that it lives?"""
        is_beat = frame.startswith(b'workers {"type":"heartbeat"')
        if not is_beat and not frame.startswith(b'workers {"type":"hello"'):
            return
        said = msgspec.json.decode(frame[8:], type=_Alive)
        is_old = said.n <= self.told_n.get(said.worker, -1)
        self.told_n[said.worker] = max(said.n, self.told_n.get(said.worker, -1))
        session = self.world.broker.state.sessions.get(said.worker)
        if session is None:
            return
        if session.muted:
            self.muted.add(said.worker)
        if is_old:
            return  # it is late, or came twice, and says nothing of now
        if said.sessions.get("b1") == session.id if is_beat else said.next.get("b1", 0) >= session.k:
            self.reached_ms[said.worker] = self.world.now

    def _task_fact(self, task_id: int, task: TaskBook, fact: list[Any]) -> None:
        kind = fact[0]
        before = task.state
        if before in TASK_FINAL and kind not in ("task_reopened", "operated"):
            self.fail("P3/G20 terminal is final", f"task {task_id} was {before}, and then {fact}")
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
                    self.steps[task_id + 1 + fact[3]].held_as = None
                if fact[2] == "resolve_completed":
                    self.resolved_outputs.add(task_id + 1 + fact[3])
            case "ended":
                task.state = fact[2]
                open_steps = [i for i in self.world.tables.steps_of[task_id] if self.steps[i].state not in FINAL]
                if open_steps:
                    self.fail("P2 a task ends with its steps", f"task {task_id} ended while {open_steps} were open")
        self.world.counts["task", f"{kind}: {before} → {task.state}"] += 1

    def _dispatched(self, task_id: int, fact: list[Any], step_id: int, states: dict[int, str]) -> None:
        """What it depends on is durable with this very commit, or before it. The same commit may hold what came later,
        and what it depended on may be open again by then."""
        tables = self.world.tables
        definition = self._definition(task_id, fact[2])
        expected: dict[str, str | None] = {}
        workflow = self.workflow_of(task_id)
        for index, state in states.items():
            before = tables.steps[task_id + 1 + index].stored
            if state == "completed" and before.state == state:
                expected[workflow.steps[index].name] = before.output
            elif state == "completed":
                return  # nobody outside knows any more what it had returned
            elif definition.trigger_rule is None or state not in FINAL:
                self.fail("P2 dependencies first", f"step {step_id} was handed out while {before.id} is {state}")
        self.steps[step_id].expected[fact[3]] = expected

    def _held(self, step_id: int, book: StepBook, fact: list[Any]) -> None:
        """Somebody must not have known. The worker died, fell silent, was too slow, or said so itself."""
        book.held += 1
        book.held_as = fact[4]
        self.numbers["held"] += 1
        delivery = fact[3]
        worker, _, since_ms = book.dispatched[delivery]
        if delivery not in book.granted:
            self.fail("P5 only a granted step is held", f"step {step_id}: {fact}")
        if worker.startswith(LEVEL0):
            if self._had_its_time(book, delivery, fact):
                return
        elif self._is_cut_off(worker, since_ms):
            return
        for run in book.runs:
            if run.delivery == delivery and (run.was_stopped or self._is_overdue(run) or _is_unknown(run.result)):
                return
            if run.delivery == delivery and self._is_given_up(run):
                return
        task_id = step_id - 1 - fact[2]
        if self._has_deadline(step_id, fact[2]):
            return
        if self.tasks[task_id].cancel_asked:
            return  # a failure that was reported after that is no verdict
        self.fail("P5 held has a cause", f"step {step_id}, delivery {delivery} at {worker}: {fact}")

    def _output(self, step_id: int, output: bytes) -> None:
        """What is stored as a step's output is what a handler of that step returned, for that delivery."""
        book = self.steps[step_id]
        known = self.outputs.get((step_id, book.completed_delivery), set())
        if output not in known and step_id not in self.resolved_outputs:
            self.fail("P3 a result is of its step", f"step {step_id} is stored with {output!r}")

    # -- what leaves the broker ---------------------------------------------------------------------------------------

    def said(self, worker: str, body: bytes) -> None:
        kind = body[9:13]
        if kind == b"step":
            self._said_steps(worker, body)
        elif kind == b'ack"':
            self._said_ack(worker, _ack(body))
        elif kind == b'go",':
            for step_id, delivery in _go(body).items:
                if delivery not in self.steps[step_id].granted:
                    self.fail("P5 go after the grant is durable", f"step {step_id}, delivery {delivery} to {worker}")

    def said_level0(self, to: str, body: bytes) -> None:
        """Once, and what must not start twice with its grant."""
        message = _steps_level0(body)
        if message.to != to or message.batch_id in self.seen_batches:
            self.fail("P4 a level-0 batch is sent once, to one", f"{message.batch_id} to {to}")
        self.seen_batches.add(message.batch_id)
        for step in message.steps:
            delivery = self.delivery_of(step.step_id, LEVEL0 + to, message.batch_id)
            definition = self._definition(step.task_id, step.step_id - step.task_id - 1)
            if definition.delivery_mode == "at_most_once" and delivery not in self.steps[step.step_id].granted:
                self.fail("P5 no start without a durable grant", f"step {step.step_id} to {to}")

    def delivery_of(self, step_id: int, worker: str, batch_id: str) -> int:
        for delivery, known in self.steps[step_id].dispatched.items():
            if known[:2] == (worker, batch_id):
                return delivery
        raise Violation(f"P2/P4 steps leave after their dispatch is durable: step {step_id}, {batch_id} to {worker}")

    def returned(self, step_id: int, delivery: int, output: bytes) -> None:
        self.outputs.setdefault((step_id, delivery), set()).add(output)

    def _said_steps(self, worker: str, body: bytes) -> None:
        message = _steps(body)
        if message.batch_id in self.seen_batches:
            self.numbers["retransmitted"] += 1
            self._is_still_so(message)
            return
        self.seen_batches.add(message.batch_id)
        for step in message.steps:
            if step.step_id >= FIRST:
                self._is_a_copy(step)
                continue
            book = self.steps.get(step.step_id)
            known = None if book is None else book.dispatched.get(step.delivery)
            if known is None or known[:2] != (worker, message.batch_id):
                self.fail(
                    "P2/P4 steps leave after their dispatch is durable",
                    f"step {step.step_id}, delivery {step.delivery} to {worker}: {known}",
                )
                return
            self._has_its_time(book, step)

    def _is_a_copy(self, step: wire.StepRequest) -> None:
        """A shadow says that it is one, has a key of its own, needs nobody's word to start, and is of a step that is
        durably handed out."""
        self.numbers["shadows"] += 1
        book = self.steps.get(step.task_id + 1 + self.workflow_of(step.task_id).by_name[step.step_name])
        is_copy = step.metadata.shadow and step.metadata.idempotency_key.endswith("/shadow")
        if not is_copy or step.delivery_mode != "at_least_once" or book is None or not book.delivery:
            self.fail("P2 a shadow is a copy of what is handed out", f"{step.step_id} of task {step.task_id}")

    def _is_still_so(self, message: wire.Steps) -> None:
        """What is said again has not been taken back, and is not over."""
        for step in message.steps:
            book = self.steps[step.step_id]
            if book.delivery != step.delivery or book.state != "dispatched":
                self.fail(
                    "P4 what was taken back is not sent again",
                    f"step {step.step_id}, delivery {step.delivery}: it is {book.state}, delivery {book.delivery}",
                )

    def loaded(self, found: events.LoadedTasks) -> None:
        """From the database a deadline comes by the wall clock, which may be wrong."""
        for row in found.loaded.steps:
            book = self.steps.get(row.id)
            if book is not None:
                book.readied = None

    def _has_its_time(self, book: StepBook, step: wire.StepRequest) -> None:
        """While a step stays in memory its deadline is a length of time, whatever is done to the clock on the wall."""
        left_ms = step.metadata.deadline_ms
        if left_ms is None or book.readied is None or book.readied[0] != self.world.broker.life:
            return
        deadline_ms = self._definition(step.task_id, step.step_id - step.task_id - 1).deadline_ms
        gone_ms = self.world.now - book.readied[1]
        # The message may have been made long before it leaves.
        if not deadline_ms - 1.02 * gone_ms - 50.0 <= left_ms <= deadline_ms:
            self.fail("P6 a deadline is a length of time", f"step {step.step_id}: {left_ms} left after {gone_ms:.0f}")

    def _said_ack(self, worker: str, ack: wire.Ack) -> None:
        """At this very instant the store holds the result, or holds what makes it too late."""
        for rid in ack.rids:
            message = self.results.get((worker, rid))
            if message is None:
                self.fail("P3 an ack is of a result", f"{worker} was sent an ack of {rid}")
                return
            for result in message.results:
                row = self.world.tables.steps.get(result.step_id)
                if row is not None and _would_apply(
                    self.steps[result.step_id], row.stored, result, message.batch_id, worker
                ):
                    self.fail(
                        "P3 the ack leaves after the commit",
                        f"{worker} was sent the ack of {rid}, and the store has {row.stored}",
                    )

    def answered(self, command: Any, answer: Any) -> None:
        """An answer leaves: what it says is durable."""
        self.world.counts["answer", f"{type(command).__name__}: {getattr(answer, 'code', type(answer).__name__)}"] += 1
        tables = self.world.tables
        match answer:
            case TasksSubmitted():
                self._submitted(command, answer)
            case Applied():
                if answer.workflow_id not in tables.workflows:
                    self.fail("P1 an applied workflow is stored", str(answer))
            case Done():
                book = self.tasks.get(answer.task_id)
                if book is None:
                    self.fail("P1 an order is of a stored task", str(answer))
                    return
                kind = type(command).__name__
                self.acked_orders[answer.task_id, kind] += 1
                acked = self.acked_orders[answer.task_id, kind]
                done = {
                    "CancelTask": book.facts["cancel_asked"] > 0,
                    "PauseTask": book.facts["paused"] > 0,
                    "ResumeTask": True,  # it may not have been paused when that was decided
                    "RetryTask": book.operated["retry"] >= acked,
                    "ResolveStep": sum(n for k, n in book.operated.items() if k != "retry") >= acked,
                    "AwaitTask": book.facts["ended"] > 0 or book.facts["noticed"] > 0,
                }[kind]
                if not done:
                    self.fail("P1/P9 an answer leaves after the commit", f"{command}: {answer}")
            case CommandRefused():
                if isinstance(command, events.SubmitTasks):
                    self._not_stored(command, answer)

    def _submitted(self, command: events.SubmitTasks, answer: TasksSubmitted) -> None:
        tables = self.world.tables
        for new, task_id, created in zip(command.tasks, answer.task_ids, answer.created, strict=True):
            row = tables.tasks.get(task_id)
            if row is None:
                self.fail("P1 acked means stored", f"task {task_id} of {command.request}")
                return
            workflow = self.workflow_of(task_id)
            if workflow.name != new.workflow or row.context != new.context:
                self.fail("P1 stored whole", f"task {task_id} is not what was submitted: {row}")
            if len(tables.steps_of[task_id]) != len(workflow.steps):
                self.fail("P1 stored whole", f"task {task_id} has {len(tables.steps_of[task_id])} steps")
            if created and task_id in self.acked_tasks:
                self.fail("P1 one task a submission", f"task {task_id} was created twice")

    def _not_stored(self, command: events.SubmitTasks, answer: CommandRefused) -> None:
        uids = {f"{(command.entropy + i) % 2**128:032x}" for i in range(len(command.tasks))}
        found = [row.id for row in self.world.tables.tasks.values() if row.uid in uids]
        if found:
            self.fail("P1 refused means that nothing is stored", f"{answer}, and there are tasks {found}")

    def acked(self, submission: "Submission", answer: TasksSubmitted) -> None:
        """A client holds the answer in its hands."""
        for new, task_id in zip(submission.tasks, answer.task_ids, strict=True):
            self.acked_tasks[task_id] = new
            if new.key is not None:
                name = (new.namespace, new.key)
                known = self.acked_keys.setdefault(name, (new.digest, task_id))
                if known != (new.digest, task_id):
                    self.fail("P1 one task a key", f"{name} was acked as {known} and as {(new.digest, task_id)}")

    def conflicted(self, submission: "Submission") -> None:
        if not submission.is_conflict:
            self.fail("P1 the same submission is no conflict", f"submission {submission.number}")

    # -- handlers -----------------------------------------------------------------------------------------------------

    def entered(self, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode) -> None:
        step = running.run.step
        step_id, delivery = running.run.item
        if step_id >= FIRST:
            return  # it is nobody's step
        book = self.steps.get(step_id)
        known = None if book is None else book.dispatched.get(delivery)
        if book is None or known is None or known[0] != running.worker:
            self.fail("P2 a handler runs what is durably handed out", f"{running.run.item} at {worker.id}: {known}")
            return
        if (worker.id, step_id, delivery) in self.entered_items:
            self.fail("P4 a process runs a delivery once", f"{running.run.item} at {worker.id}")
        self.entered_items.add((worker.id, step_id, delivery))
        if delivery in book.taken_back and not worker.at_level0:
            self.fail("P4 what was taken back does not start", f"{running.run.item} at {worker.id}")
        if (worker.id, step_id, delivery) in self.disowned_items:
            self.fail("P4 what a process disowned it does not start", f"{running.run.item} at {worker.id}")
        self._sees_what_was_committed(book, step, delivery)
        is_once = self._definition_of(running).delivery_mode == "at_most_once"
        if is_once and delivery not in book.granted:
            self.fail("P5 no start without a durable grant", f"{running.run.item} at {worker.id}")
        # Nobody could tell a level-0 handler that its lease has ended.
        is_stale = worker.at_level0 and delivery in book.taken_back and not is_once
        for before in [] if is_stale else book.runs:
            if before.ended_ms is None and before.worker.is_alive and before.life == before.worker.life:
                # What was handed out before an operator's word may start after it: nobody could call it back in time.
                if delivery > book.reopened_delivery and not self._may_overlap(before, book):
                    self.fail(
                        "P4 one worker at a time",
                        f"step {step_id} runs at {before.running.worker} (delivery {before.delivery}) and {worker.id}",
                    )
                self.numbers["overlaps"] += 1
            if delivery > book.reopened_delivery and before.reopened == book.reopened:
                self._again(before, book, running, is_once)
        if step.metadata.attempt > step.metadata.retry_limit:
            self.fail("P6 retries are bounded", f"step {step_id} starts with attempt {step.metadata.attempt}")
        # Handed out before an operator's last word, it is of the time before, whenever it starts.
        era = book.reopened if delivery > book.reopened_delivery else book.reopened - 1
        book.runs.append(Run(running, worker, self.world.now, era))
        self.numbers["runs"] += 1

    def _sees_what_was_committed(
        self, book: StepBook, step: wire.StepRequest | wire.StepRequestLevel0, delivery: int
    ) -> None:
        """Each output it was given is, byte for byte, the one that was stored when it was handed out."""
        expected = book.expected.get(delivery)
        if expected is None:
            return
        given = msgspec.json.decode(step.previous_results, type=dict[str, msgspec.Raw])
        if {name: bytes(value).decode() for name, value in given.items()} != expected:
            self.fail("P2 a step sees the committed outputs", f"step {step.step_id} was given {given}, not {expected}")

    def _again(self, before: Run, book: StepBook, running: Running | RunningAtLevel0, is_once: bool) -> None:
        """A second run in the same attempt of the world: why?"""
        result = before.result
        has_failed = result is not None and result.status != "completed" and not _is_unknown(result)
        if is_once:
            if not (has_failed and self._definition_of(running).retry_reported_failures):
                self.fail("P5 at_most_once starts once", f"{running.run.item}; before: delivery {before.delivery}")
            return
        self.numbers["runs again"] += 1
        if has_failed or _is_unknown(result) or self._is_overdue(before) or before.was_stopped:
            return
        if self._is_given_up(before):
            return  # that would have been held, had it been at_most_once
        if before.worker.at_level0:
            self.numbers["runs again, level 0"] += 1
            is_caused = before.delivery in book.taken_back
        else:
            self.numbers["runs again, lost"] += 1
            is_caused = self._is_cut_off(before.running.worker, before.at_ms)
        if is_caused:
            return
        self.fail("P8/2.9 a started step runs again with a cause only", f"{running.run.item}; {before.delivery}")

    def _definition_of(self, running: Running | RunningAtLevel0) -> Any:
        step = running.run.step
        return self._definition(step.task_id, step.step_id - step.task_id - 1)

    def _may_overlap(self, before: Run, book: StepBook) -> bool:
        if before.reopened != book.reopened or before.was_stopped or self._is_overdue(before):
            return True
        if before.worker.at_level0:
            return before.delivery in book.taken_back  # nobody can tell it to stop
        return self._is_cut_off(before.running.worker, before.at_ms)

    def _is_cut_off(self, worker_id: str, since_ms: float) -> bool:
        """This process died, or lost its broker for a lease, or its lease is over now though it has not looked yet."""
        if self.dropped_ms.get(worker_id, -1.0) >= since_ms:
            return True
        for worker in self.world.workers:
            if worker.is_alive and worker.id == worker_id:
                peer = worker.session.brokers.get("b1")
                return peer is None or peer.lease.until_ms <= worker.now()
        return True

    def _is_overdue(self, run: Run) -> bool:
        until_ms = self.world.now if run.ended_ms is None else run.ended_ms
        return until_ms - run.at_ms >= 0.98 * run.timeout_ms

    def _is_given_up(self, run: Run) -> bool:
        """It ended in time, and in all the time after that there was for its result no copy of it came through."""
        wait_ms = run.timeout_ms + limits.TIMEOUT_GRACE_MS + self.world.broker.settings.bus.lease_ms
        return self.world.now - run.at_ms >= 0.98 * wait_ms

    def told_to_stop(self, running: Running, reason: str) -> None:
        book = self.steps.get(running.run.item[0])
        for run in book.runs if book is not None else ():
            if run.running is running and reason != "lease_lost":
                run.was_stopped = True

    def ended(self, running: Running | RunningAtLevel0, result: wire.Result | None) -> None:
        if not running.entered or running.run.item[0] >= FIRST:
            return
        for run in self.steps[running.run.item[0]].runs:
            if run.running is running:
                run.ended_ms = self.world.now
                run.result = result

    def heard_from(self, worker: str, body: bytes) -> None:
        """A worker says something, whoever hears it."""
        if self.unanswered and b'"batch_id"' in body[:400]:
            self.unanswered.pop((worker, msgspec.json.decode(body, type=_Batch).batch_id), None)
        if body.startswith(b'{"type":"adopted"'):
            unknown = [item for item in _adopted(body).items if item[2] == "unknown"]
            self.disowned_items.update((worker, step_id, delivery) for step_id, delivery, _, _ in unknown)
        if body.startswith(b'{"type":"results"'):
            message = _results(body)
            self.results.setdefault((worker, message.rid), message)
            for result in message.results:
                if result.status == "completed":
                    output = bytes(result.output)
                    self.outputs.setdefault((result.step_id, int(result.delivery)), set()).add(output)  # type: ignore[arg-type]

    def given(self, worker: WorkerNode, body: bytes) -> None:
        """Steps have reached a worker, in its session: it is to say something of them, however often they come."""
        if body.startswith(b'{"type":"cancel"'):
            self._told_to_drop(worker, _cancel(body))
            return
        if body.startswith(b'{"type":"steps"'):
            message = _steps(body)
            peer = worker.session.brokers.get("b1")
            if peer is not None and peer.session == message.session and worker.now() < peer.lease.until_ms:
                key = (worker.id, message.batch_id)
                self.unanswered[key] = self.unanswered.get(key, 0) + 1
                self.world.schedule.after(ANSWER_MS, self._is_answered, worker, worker.life, key, message.session)

    def _told_to_drop(self, worker: WorkerNode, message: wire.Cancel) -> None:
        """What has not started by then never will, whether it has come yet or not."""
        peer = worker.session.brokers.get("b1")
        if peer is None or peer.session != message.session or worker.now() >= peer.lease.until_ms:
            return
        for step_id, delivery in message.items:
            held = worker.session.holdings.get((step_id, delivery))
            if held is None or held.state in ("queued", "asking"):
                self.disowned_items.add((worker.id, step_id, delivery))

    def _is_answered(self, worker: WorkerNode, life: int, key: tuple[str, str], session: str) -> None:
        if not worker.is_alive or worker.life != life or worker.is_paused:
            return
        peer = worker.session.brokers.get("b1")
        if key in self.unanswered and peer is not None and peer.session == session:
            self.fail("W3 steps are answered", f"batch {key[1]} at {key[0]}")

    def logged(self, worker: str, action: Log) -> None:
        self.world.counts["log", action.event] += 1
        if action.event == "session_dropped":
            self.dropped_ms[worker] = self.world.now
            self.numbers["sessions dropped"] += 1
        elif action.event == "message_refused":
            self.world.counts["refused", str(action.facts["code"])] += 1

    # -- the broker itself --------------------------------------------------------------------------------------------

    def broker_started(self) -> None:
        if self.world.faults.on <= RESTART_KINDS:
            self.world.schedule.after(RESTARTED_MS, self._hands_out, self.world.broker.life, self.world.now)

    def _hands_out(self, life: int, since_ms: float) -> None:
        """It has been up for a while: if somebody is free for what has long been ready, it has handed something out."""
        broker = self.world.broker
        if not broker.is_alive or broker.life != life or self.dispatched_ms > since_ms:
            return
        if broker.leaving == life:
            return  # it was told to hand out nothing more
        if self.world.routes.is_on:
            return  # who is free for a step is the rules' to say
        limits = broker.settings.limits
        is_full = len(broker.state.tasks) >= limits.max_active_tasks or (
            broker.state.resident_bytes > limits.active_bytes and self._is_anybody_at_work()
        )
        self.numbers["restarts timed"] += 1
        ready_by = broker.now().wall - RESTARTED_MS
        for step_id, book in self.steps.items():
            stored = self.world.tables.steps[step_id].stored
            if book.state != "ready" or stored.ready_ms is None or stored.ready_ms > ready_by:
                continue
            if stored.task_id not in broker.state.tasks and is_full:
                continue  # the active set is full of what runs, or will within seconds
            name = self.world.tables.steps[step_id].handler_class
            if stored.attempt and self.world.breakers.is_on and self._rests(stored.task_id, broker.now().wall):
                continue  # a retry that its budget held up: it rests in the database until its time
            if not self.world.breakers.is_closed(name):
                continue  # it was at work before that start, and said by now that it is down
            if self.tasks[stored.task_id].state == "running" and any(
                s.credit > 0 and s.offers(name) for s in broker.state.sessions.values()
            ):
                self.fail("P8 a restarted broker hands out within 3 s", f"step {step_id} is still ready")

    def _is_anybody_at_work(self) -> bool:
        """Does a task that is in memory run, or will it within seconds? Then it need not make room."""
        tables, broker = self.world.tables, self.world.broker
        soon_ms = broker.now().wall + FAR_OFF_MS
        return any(
            row.stored.state in ("ready", "dispatched")
            or (row.stored.state == "retry_wait" and (row.stored.not_before_ms or 0) <= soon_ms)
            for row in tables.steps.values()
            if row.stored.task_id in broker.state.tasks
        )

    def _rests(self, task_id: int, now_ms: int) -> bool:
        row = self.world.tables.tasks[task_id]
        return row.owner_epoch == 0 and row.wants is None and row.wake_ms is not None and row.wake_ms > now_ms

    def broker_dies(self) -> None:
        self._count_up()

    def _count_up(self) -> None:
        counters = self.world.broker.state.counters
        for name in (
            "lease_expiries",
            "level0_expiries",
            "redelivered",
            "late_results",
            "deaths_proven",
            "sessions_opened",
        ):
            self.numbers[name] += getattr(counters, name)

    def after_event(self) -> None:
        self._events += 1
        if self._events % RECOUNT_EVERY == 0:
            self.recount()

    def recount(self) -> None:
        try:
            recount.check(self.world.broker.state)
        except AssertionError as error:
            self.fail("P9 counts equal a recount", f"{error}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def stuck(self) -> None:
        broker = self.world.broker
        lines = []
        for task_id in sorted(self.open_tasks)[:3]:
            row = self.world.tables.tasks[task_id]
            steps = [(s.id, s.state, s.delivery, s.worker, s.reason) for s in self.world.tables.stored_steps(task_id)]
            live = broker.state.tasks.get(task_id) if broker.is_alive else None
            lines.append(f"task {task_id} {row.state} {row.attention} in memory: {live is not None}, steps {steps}")
        waiting = [s.number for s in self.world.people.submissions if not s.is_over]
        self.fail("P8/G11 everything ends", f"stuck: {lines}; submissions not answered: {waiting}")

    def unsettled(self) -> None:
        state = self.world.broker.state
        busy = {w.id: w.session.holding(w.now()) for w in self.world.workers if w.is_alive and not w.session.is_idle}
        lanes = [(lane.is_idle, lane.is_open) for lane in state.outbox.lanes.values()]
        self.fail(
            "P3/P9 all is let go in the end",
            f"tasks {list(state.tasks)}, sends held {len(state.outbox)}, lanes {lanes}, loads {state.loads}, held by "
            f"workers {busy}",
        )

    def final(self) -> None:
        self._count_up()
        self.recount()
        world, tables = self.world, self.world.tables
        state = world.broker.state
        left = {
            "open_steps": state.open_steps,
            "resident_bytes": state.resident_bytes,
            "steps": len(state.steps),
            "unloaded": state.unloaded,
            "reserved_tasks": state.reserved_tasks,
            "undecided": len(state.undecided),
            "waiters": len(state.waiters),
            "asked": len(state.asked),
            "recovered": len(state.recovered),
            "handouts": len(state.level0.handouts),
            "probes": len(state.guards.probes),
            "large": len(state.large),
            "large_contexts": len(state.large_contexts),
            "fetching": len(state.fetching),
            "bytes_waiting": state.outbox.bytes_waiting,
        }
        left = {name: value for name, value in left.items() if value and name not in ("waiters", "asked")}
        if left:
            self.fail("P9 memory is given back", f"{left}")
        for task_id, new in self.acked_tasks.items():
            row = tables.tasks.get(task_id)
            if row is None or row.context != new.context:
                self.fail("P1 acked is never lost", f"task {task_id}")
        by_key = Counter((row.namespace, row.key) for row in tables.tasks.values() if row.key is not None)
        for name, count in by_key.items():
            if count > 1:
                self.fail("P1 one task a key", f"{name} has {count}")
        for task_id in tables.tasks:
            self._replays(task_id)
        for difference in world.store.differences():
            self.fail("the store", difference)

    def _replays(self, task_id: int) -> None:
        tables = self.world.tables
        told = [row.facts for row in tables.history[task_id]]
        try:
            replayed = history.replay(task_id, self.workflow_of(task_id), told)
        except history.CannotReplay as error:
            self.fail("P10 the history replays", str(error))
            return
        wrong = history.differences(replayed, tables.stored_task(task_id), tables.stored_steps(task_id))
        if wrong:
            self.fail("P10 the history replays", str(wrong[:3]))

    # -- looking ------------------------------------------------------------------------------------------------------

    def workflow_of(self, task_id: int) -> Workflow:
        workflow: Workflow = self.world.broker.state.workflows[self.world.tables.tasks[task_id].workflow_id]
        return workflow

    def _definition(self, task_id: int, index: int) -> Any:
        return self.workflow_of(task_id).steps[index]

    def a_task_that_waits_to_retry(self, luck: float) -> int | None:
        """Half the time, one that is between two attempts, if there is one."""
        stored = self.world.tables.steps
        waiting = sorted({stored[i].stored.task_id for i, book in self.steps.items() if book.state == "retry_wait"})
        return waiting[0] if waiting and luck * 7 % 1 < 0.5 else None

    def held_steps(self) -> list[int]:
        return sorted(self.held)

    def figures(self) -> dict[str, int]:
        return dict(self.numbers)


HandedOut = tuple[int, list[Any], int, dict[int, str]]  # task, fact, step, states of what it depends on by then
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
# The live process itself says that it will not run it; or the commit of its dispatch was refused.
_SAID_BY_ITS_WORKER: Final = ("not_held", "session_replaced", "stale", "busy", "draining", "unstorable")
_TASK_FACTS: Final = frozenset(
    {"submitted", "activated", "paused", "resumed", "cancel_asked", "task_reopened", "operated", "noticed", "ended"}
)


def _is_unknown(result: wire.Result | None) -> bool:
    return result is not None and result.error is not None and result.error.code == "outcome_unknown"


def _would_apply(book: StepBook, row: StoredStep, result: wire.Result, batch_id: str, worker: str) -> bool:
    """Is this news that the store has not taken: of a delivery of this step, for a step that is open for it?"""
    if row.state in FINAL or row.state == "waiting":
        return False
    delivery = int(result.delivery)  # type: ignore[arg-type]
    known = book.dispatched.get(delivery)
    if known is None or known[:2] != (worker, batch_id) or delivery <= book.reopened_delivery:
        return False
    return result.status == "completed" or (delivery == row.delivery and row.state == "dispatched")


__all__ = ["Checks", "Violation", "WorkerSession"]
