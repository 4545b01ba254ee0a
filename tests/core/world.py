"""A small world for the machine: a test moves the time and commits the database; workers only record their messages.

Everything of the core is real: the machine, its outbox, the codec (what goes out is encoded and decoded). The database
is the store in memory, which tests/store holds to the same promises as SQLite.
"""

from collections import Counter, deque
from collections.abc import Collection
from typing import Any

import msgspec
from stepwire_broker.core.commit.decision import (
    Complaint,
    Decision,
    OrderToStore,
    Read,
    ResultsElsewhere,
    WaitElsewhere,
)
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.definitions.stored_rows import Opened
from stepwire_broker.core.definitions.workflow import Workflow, read_workflow
from stepwire_broker.core.machine import Machine
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model import events
from stepwire_broker.core.model.commit_group import CommitGroup, LaneLost, Stalled
from stepwire_broker.core.model.events import NewTask, Now
from stepwire_broker.core.model.principal import PROCESS
from stepwire_broker.core.model.states import DISPATCHED, READY, STEP_FINAL
from stepwire_broker.core.model.targets import BUS, LOCAL
from stepwire_broker.core.routing.router import Router
from stepwire_broker.core.routing.runtime_rules import stored_rules
from stepwire_broker.core.sharing.explaining import EXPLANATIONS
from stepwire_broker.core.sharing.order_texts import command_text, read_answer
from stepwire_broker.core.sharing.orders import LOOK_EVERY_MS
from stepwire_broker.core.state import BrokerState, Identity
from stepwire_broker.core.timer_kinds import BreakerDue, FetchDue
from stepwire_broker.core.workers.level0 import SETTLE_MS
from stepwire_broker.store.ports import LANE
from stepwire_protocol import codec, topics
from stepwire_protocol import messages as wire

from tests.memory_store.at_once import StoreAtOnce
from tests.memory_store.database import taken_lane
from tests.memory_store.tables import OrderRow

BROKER = "b1"
DEPLOYMENT = "d" * 32
HOST = "h1"
WALL_MS = 1_800_000_000_000

OTHER_EPOCH = 1_000  # of another broker
LEASE_MS = 10_000
DIES_MS = 10_301  # 3 % later than the lease, and one


def worker_id(name: str = "w", number: int = 1) -> str:
    return f"{name}:{number:016x}"


W = worker_id()
W2 = worker_id(number=2)


class World:
    """One broker's core. With `auto`, every group is committed as soon as it is closed, else by `commit`. With
    `answers_reads`, every read is answered at once, else by `read`. `own`: its lanes in a database of several brokers.
    `other`: another broker of the same database.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        auto: bool = True,
        answers_reads: bool = True,
        executors: Collection[str] = (),
        bus_is_distributed: bool = True,
        lanes: int = 1,
        own: Collection[int] | None = None,
        other: "World | None" = None,
    ) -> None:
        self.executors = {BUS, LOCAL, *executors}
        self.bus_is_distributed = bus_is_distributed
        self.mono = 1_000_000
        self.wall_shift = WALL_MS
        self.settings = settings or Settings()
        self.auto = auto
        self.answers_reads = answers_reads
        self.rows = StoreAtOnce(lanes=lanes) if other is None else other.rows
        self.rows.tables.now_ms = lambda: self.now.wall
        self.is_shared = own is not None
        self.own = frozenset(self.rows.tables.seqs if own is None else own)
        self.sent: list[tuple[str, Any]] = []  # (worker, message), oldest first
        self.frames: list[bytes] = []
        self.granted: list[str] = []  # to level-0 peers, oldest first
        self.handed: list[wire.StepsLevel0] = []  # what they were sent
        self.groups: list[CommitGroup] = []
        self.answers: dict[int, Any] = {}
        self.watches: list[Any] = []
        self.worker_news: list[Any] = []
        self.complaints: list[Complaint] = []
        self.orders: list[OrderToStore] = []  # for other brokers
        self.notifications: list[Notification] = []
        self.passed_on: list[ResultsElsewhere] = []
        self.waits: list[WaitElsewhere] = []
        self.released: list[int] = []  # lanes that the broker gives up
        self.requests = 0
        self.rid = 0
        self.documents: dict[int, tuple[Workflow, bool]] = {}
        self.lease_before_ms = 0  # the longest lease of earlier starts, as the database has it
        reserved = {
            lane: self.rows.tables.reserve_ids(lane, IDS_PER_BLOCK)
            for lane in (self.rows.tables.seqs if other is None else self.own)
        }
        self._begin(epoch=7, ids=reserved)

    def _begin(self, epoch: int, ids: dict[int, tuple[int, int]]) -> None:
        self.rows.begin(epoch)
        identity = Identity(BROKER, epoch=epoch, deployment=DEPLOYMENT, batch_key=b"key of start %d" % epoch, host=HOST)
        rules = [placed.rule for placed in stored_rules(self.rows.controls)]
        execution = self.settings.execution
        router = Router(execution, self.executors, bus_is_distributed=self.bus_is_distributed, runtime=rules)
        opened = Opened(
            deployment=DEPLOYMENT,
            epoch=epoch,
            blocks={number: block.lane for number, block in self.rows.tables.blocks.items()},
            lanes=tuple(
                taken_lane(self.rows.tables, lane, self.lease_before_ms, own)
                for lane, own in ids.items()
                if lane in self.own
            ),
            workflows=[],
            controls=self.rows.controls,
            revision=self.rows.queries.controls_revision(),
            is_shared=self.is_shared,
        )
        self.state = BrokerState.begin(self.settings, identity, opened, self.now, router)
        self.machine = Machine(self.state, list(self.documents.values()))
        self.writings: dict[int, CommitGroup] = {}  # by lane
        self.reads: deque[Read] = deque()
        self.reads_decided = 0

    def restart(self) -> None:
        """Kill the broker and start it again on the same database. Everything that was not committed is lost."""
        epoch = self.state.identity.epoch + 1
        ids = {number: (lane.ids.next, lane.ids.last) for number, lane in self.state.lanes.items()}
        for number, workflow in self.state.workflows.items():
            active = self.state.active.get((workflow.namespace, workflow.name)) is workflow
            self.documents[number] = (workflow, active)
        self.sent.clear()
        self._begin(epoch, ids)
        self.handle(events.Tick())

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall_shift + self.mono)

    # -- events in ----------------------------------------------------------------------------------------------------

    def handle(self, event: Any, principal: str = PROCESS) -> None:
        self._act(self.machine.handle(event, self.now, principal))
        self.flush()
        if self.answers_reads:
            while self.reads:
                self.read()

    @property
    def writing(self) -> CommitGroup | None:
        """The group that is being written; of several lanes the first."""
        return next(iter(self.writings.values()), None)

    def flush(self) -> None:
        self.machine.dispatch(self.now)
        for lane in self.state.outbox.lanes:
            group, decision = self.machine.next_group(lane, self.now)
            self._act(decision)
            if group is not None:
                assert lane not in self.writings
                self.writings[lane] = group
                self.groups.append(group)
                if self.auto:
                    self.commit(lane)

    def commit(self, lane: int | None = None) -> None:
        """Let the database report that a group is durable: of this lane, or the first that is being written."""
        assert self.writings, "nothing is being written"
        group = self.writings.pop(next(iter(self.writings)) if lane is None else lane)
        self.handle(self.rows.write(group))

    def settle(self) -> None:
        """Commit until nothing is left to write."""
        while self.writing is not None:
            self.commit()

    def lose(self, lane: int) -> None:
        """Another broker takes this lane. A group that is being written is not stored."""
        self.rows.tables.take(lane, "b2", OTHER_EPOCH)
        self.writings.pop(lane, None)
        self.handle(LaneLost(lane))

    def take(self, lane: int, lease_ms: int = 0) -> None:
        """Let the broker take a lane again that it had lost."""
        self.rows.tables.take(lane, BROKER, self.state.identity.epoch)
        self.handle(events.LanesTaken((taken_lane(self.rows.tables, lane, lease_ms),)))

    def stall(self, code: str = "disk_full", lane: int = LANE) -> None:
        self.handle(Stalled(lane, self.writings[lane].seq, code, "for the test"))

    def read(self) -> None:
        read = self.reads.popleft()
        resident = self.settings.limits.resident_payload_bytes
        self.handle(self.rows.read(read, self.now.wall, resident))

    def fail_read(self) -> None:
        self.handle(events.LoadFailed(self.reads.popleft().request, "for the test"))

    def pass_time(self, ms: int) -> None:
        """Let time pass, and fire every timer that becomes due."""
        end = self.mono + ms
        while (wake_at := self.machine.wake_at) is not None and wake_at <= end:
            self.mono = max(self.mono, wake_at)
            self.handle(events.Tick())
        self.mono = end

    # -- commands -----------------------------------------------------------------------------------------------------

    def ask(self, kind: type, **members: Any) -> Any:
        """Give the core a command. Returns the answer, or None while it is not committed."""
        self.requests += 1
        self.handle(kind(request=self.requests, **members))
        return self.answers.get(self.requests)

    def apply(self, document: dict[str, Any], *, activate: bool = True) -> Any:
        return self.ask(events.ApplyWorkflow, workflow=read_workflow(document), activate=activate)

    def submit(self, workflow: str = "flow", count: int = 1, **members: Any) -> Any:
        members.setdefault("namespace", "default")
        members.setdefault("context", b"{}")
        members.setdefault("version", None)
        members.setdefault("key", None)
        members.setdefault("digest", members["context"])
        members.setdefault("priority", 0)
        members.setdefault("labels", None)
        new = NewTask(workflow=workflow, **members)
        return self.ask(events.SubmitTasks, tasks=[new] * count, entropy=(self.requests + 1) << 64)

    def task(self, document: dict[str, Any], **members: Any) -> int:
        """Apply the workflow and submit one task of it. Returns the task's id."""
        name = (document.get("namespace", "default"), document["name"])
        if name not in self.state.active:
            self.apply(document)
        submitted = self.submit(document["name"], namespace=name[0], **members)
        return int(submitted.task_ids[0])

    def order(self, kind: type, lane_of_order: int = LANE, **members: Any) -> int:
        """Store a command of another broker's client. Returns the id of the order."""
        orders = self.rows.tables.orders
        number = len(orders) + 1
        orders[number] = OrderRow(lane_of_order, self.now.wall, command_text(kind(request=5, **members)), None)
        return number

    def look(self) -> None:
        """Let the broker look for orders."""
        self.pass_time(LOOK_EVERY_MS)

    def order_answer(self, order_id: int) -> Any:
        """The answer to an order; None while it has none."""
        text = self.rows.tables.orders[order_id].answer
        return None if text is None else read_answer(text, EXPLANATIONS)

    # -- workers ------------------------------------------------------------------------------------------------------

    def hello(self, worker: str = W, k: int = 1, n: int = 1, executor: str | None = None, **members: Any) -> str:
        """Send a hello. With `executor`, the worker is inside the broker's process."""
        if executor is not None:
            self.handle(events.Attached(worker, executor))
        members.setdefault("handlers", ["**"])
        members.setdefault("slots", 4)
        members.setdefault("prefetch", 10)
        members.setdefault("free", {BROKER: members["slots"] + members["prefetch"]})
        members.setdefault("next", {BROKER: k})
        members.setdefault("versions", ["2.0"])
        self.say(wire.Hello(v="2.0", worker=worker, n=n, **members))
        return worker

    def beat(
        self, worker: str = W, n: int = 2, k: int = 1, holding: list[Any] | None = None, free: int | None = 14
    ) -> None:
        self.say(
            wire.Heartbeat(
                v="2.0",
                worker=worker,
                n=n,
                sessions={BROKER: self.session_id(k)},
                free={} if free is None else {BROKER: free},
                holding=holding or [],
            )
        )

    def stay(self, worker: str, ms: int, holding: list[Any] | None = None, k: int = 1) -> None:
        """Let time pass while this worker sends its heartbeats."""
        end = self.mono + ms
        while self.mono < end:
            self.pass_time(min(2000, end - self.mono))
            self.beat(worker, n=self.mono, k=k, holding=holding)

    def session_id(self, k: int = 1) -> str:
        return topics.session_id(self.state.identity.epoch, k)

    def say(self, message: Any) -> None:
        self.handle(codec.decode_worker(codec.encode(message)))

    def accept(self, steps: wire.Steps, worker: str = W, free: int = 10) -> None:
        self.say(wire.Accept(v="2.0", worker=worker, session=steps.session, batch_id=steps.batch_id, free=free))

    def refuse(self, steps: wire.Steps, code: Any, worker: str = W, position: int = 0, free: int = 10) -> None:
        items = [item_of(steps, position)]
        self.say(
            wire.Refuse(
                v="2.0",
                worker=worker,
                session=steps.session,
                batch_id=steps.batch_id,
                items=items,
                code=code,
                free=free,
            )
        )

    def result(self, steps: wire.Steps, worker: str = W, position: int = 0, **members: Any) -> int:
        """Send a step's result; the default is a success. Returns its rid."""
        step = steps.steps[position]
        members.setdefault("status", "completed")
        if members["status"] == "completed":
            members.setdefault("output", msgspec.Raw(b'{"ok":true}'))
        self.rid += 1
        envelope = {
            "session": members.pop("session", steps.session),
            "deployment": members.pop("deployment", DEPLOYMENT),
            "batch_id": members.pop("batch_id", steps.batch_id),
            "rid": members.pop("rid", self.rid),
            "n": members.pop("n", 0),
            "free": members.pop("free", None),
        }
        members.setdefault("step_id", step.step_id)
        members.setdefault("delivery", step.delivery)
        self.say(
            wire.Results(v="2.0", worker=worker, protocol_version="2.0", results=[wire.Result(**members)], **envelope)
        )
        return int(envelope["rid"])

    def fail(self, steps: wire.Steps, worker: str = W, position: int = 0, **error: Any) -> int:
        """Send the failure of a step's handler. Returns its rid."""
        error.setdefault("message", "no")
        status = error.pop("status", "failed")
        members = {k: error.pop(k) for k in ("session", "delivery", "rid") if k in error}
        return self.result(steps, worker, position, status=status, error=wire.ErrorDetail(**error), **members)

    def start(self, steps: wire.Steps, worker: str = W, position: int = 0) -> None:
        self.say(wire.Start(v="2.0", worker=worker, session=steps.session, items=[item_of(steps, position)]))

    def adopted(self, steps: wire.Steps, held: Any, worker: str = W, k: int = 1, age_ms: int = 0) -> None:
        items = [(*item_of(steps), held, age_ms)]
        self.say(wire.Adopted(v="2.0", worker=worker, session=self.session_id(k), items=items))

    # -- level 0 ------------------------------------------------------------------------------------------------------

    def peer(self) -> str:
        """Connect a level-0 handler, and wait until it can be sent steps. Returns its `to`."""
        self.handle(events.PeerSubscribed())
        to = self.granted[-1]
        self.pass_time(SETTLE_MS)
        return to

    def answer(self, batch: wire.StepsLevel0, status: Any = "completed", **members: Any) -> None:
        """Answer a whole batch with this outcome, unless `results` or `error` are given."""
        one = {"status": status, "output": msgspec.Raw(b'{"ok":true}')}
        if status != "completed":
            one["error"] = wire.ErrorDetail(message="no")
        members.setdefault("results", [wire.Result(step_id=s.step_id, **one) for s in batch.steps])
        body = codec.encode(wire.ResultsLevel0(batch_id=batch.batch_id, protocol_version="1.0", **members))
        self.handle(codec.decode_results_level0(body))

    # -- messages sent ------------------------------------------------------------------------------------------------

    def heard(self, kind: type, worker: str | None = None) -> list[Any]:
        """The messages of this kind that workers were sent, oldest first."""
        return [m for to, m in self.sent if isinstance(m, kind) and worker in (None, to)]

    def last(self, kind: type, worker: str | None = None) -> Any:
        return self.heard(kind, worker)[-1]

    def batches(self, worker: str | None = None) -> list[wire.Steps]:
        """The batches that were sent, without repetitions."""
        return list({b.batch_id: b for b in self.heard(wire.Steps, worker)}.values())

    @property
    def acked(self) -> list[int]:
        return [rid for ack in self.heard(wire.Ack) for rid in ack.rids]

    def forget(self) -> None:
        """Forget the messages sent so far."""
        self.sent.clear()

    def _act(self, decision: Decision) -> None:
        self.granted += decision.grants
        for batch in decision.batches:
            self._deliver(batch.frame)
        for handout in decision.handouts:
            assert handout.peer is not None
            assert handout.body.startswith(topics.to_peer(handout.peer.to).removeprefix(topics.STEPS))
            self.handed.append(codec.decode_steps_level0(handout.body))
        for send in decision.sends:
            self._deliver(send.topic + codec.encode(send.message))
        for answer in decision.answers:
            assert answer.request not in self.answers, "a request is answered once"
            self.answers[answer.request] = answer.answer
        self.reads.extend(decision.reads)
        self.reads_decided += len(decision.reads)
        self.watches.extend(decision.watches)
        self.worker_news.extend(decision.worker_news)
        self.complaints.extend(decision.complaints)
        self.orders.extend(decision.orders)
        self.notifications.extend(decision.notifications)
        self.passed_on.extend(decision.results_elsewhere)
        self.waits.extend(decision.waits)
        self.released += [each.lane for each in decision.released]

    def _deliver(self, frame: bytes) -> None:
        self.frames.append(frame)
        topic, body = codec.split(frame)
        worker = topics.worker_of(topic)
        assert worker is not None
        self.sent.append((worker, codec.decode_broker(body)))

    # -- the state ----------------------------------------------------------------------------------------------------

    def step(self, task_id: int, name: str = "only") -> Any:
        """The live step, if its task is in memory."""
        task = self.state.tasks[task_id]
        return task.steps[task.workflow.by_name[name]]

    def row(self, task_id: int, name: str = "only") -> Any:
        """The stored step."""
        workflow = self.state.workflows[self.rows.tasks[task_id].workflow_id]
        return self.rows.steps[task_id + 1 + workflow.by_name[name]]

    def stored(self, task_id: int) -> Any:
        return self.rows.tasks[task_id]

    def states(self, task_id: int) -> dict[str, str]:
        workflow = self.state.workflows[self.rows.tasks[task_id].workflow_id]
        return {d.name: self.row(task_id, d.name).state for d in workflow.steps}

    def check(self) -> None:
        """Check that every count equals a recount, and that linked structures agree."""
        check_counts(self)


def item_of(steps: wire.Steps, position: int = 0) -> tuple[int, int]:
    return steps.steps[position].step_id, steps.steps[position].delivery


def held(steps: wire.Steps, state: str, age_ms: int = 0, position: int = 0) -> tuple[int, int, str, int]:
    return (*item_of(steps, position), state, age_ms)


def check_counts(world: World) -> None:
    state = world.state
    resident = 0
    for task in state.tasks.values():
        assert task.open == sum(s.state not in STEP_FINAL for s in task.steps)
        assert task.dispatched == sum(s.state is DISPATCHED for s in task.steps)
        assert task.moving == sum(s.state in ("ready", "dispatched", "retry_wait") for s in task.steps)
        sizes = sum(len(s.output) for s in task.steps if s.output is not None) + len(task.context or b"")
        assert task.resident_bytes == sizes, (task.id, task.resident_bytes, sizes)
        resident += sizes
        for step in task.steps:
            assert state.steps[step.id] is step
            waits = sum(task.steps[i].state not in STEP_FINAL for i in step.definition.depends_on)
            assert step.waits == waits, (step, step.waits, waits)
            if step.state is DISPATCHED:
                assert step.batch_id is not None
                assert waits == 0
                if step.at_level0:
                    assert (step.id, step.delivery) in state.level0.handouts[step.batch_id].items
                    assert step.granted == step.at_most_once
                    assert step.session is None
                    continue
                in_recovered = step.id in state.recovered.get(step.worker or "", {})
                assert in_recovered or (step.session is not None and not step.session.dead)
            else:
                assert step.session is None
            assert bool(step.dirty) == (step in task.dirty_steps)
        if task.dirty or task.facts or task.dirty_steps:
            lane = state.outbox.lanes[task.lane]
            assert lane.dirty.get(task.id) is task
    for handout in state.level0.handouts.values():
        assert not handout.over
        assert handout.peer is None or handout.peer.holds[handout.id] is handout
    for peer in state.level0.peers.values():
        assert not peer.gone
        assert all(state.level0.handouts[batch_id] is handout for batch_id, handout in peer.holds.items())
    assert state.resident_bytes == resident
    assert len(state.steps) == sum(len(t.steps) for t in state.tasks.values())
    for worker, session in state.sessions.items():
        assert session.worker == worker
        assert not session.dead
        assert session.unanswered == sum(len(b.steps) for b in session.unanswered_batches.values())
        assert session.suspects == sum(s.is_suspect for s in session.deliveries.values())
        for step_id, step in session.deliveries.items():
            assert step.id == step_id
            assert step.session is session
            assert step.state is DISPATCHED
        assert session.asking <= set(session.deliveries)
    for worker, steps in state.recovered.items():
        assert steps
        assert all(s.worker == worker and s.session is None and s.state is DISPATCHED for s in steps.values())
    check_lanes(state)
    check_ready(state)
    check_guards(state)


def check_lanes(state: BrokerState) -> None:
    assert state.lanes.keys() == state.outbox.lanes.keys()
    assert {task.lane for task in state.tasks.values()} <= state.lanes.keys()
    assert state.unloaded == sum(lane.unloaded for lane in state.lanes.values())
    open_steps: Counter[str] = Counter()
    for lane in state.lanes.values():
        open_steps.update(lane.open_by_namespace)
    assert state.open_by_namespace == open_steps
    assert state.open_steps == open_steps.total()


def check_guards(state: BrokerState) -> None:
    guards = state.guards
    for step_id, probe in guards.probes.items():
        step = state.steps[step_id]
        assert (step.state, step.delivery) == (DISPATCHED, probe.delivery)
        assert probe.guard.breaker.turn == probe.call
        assert not step.at_most_once
    for name, guard in guards.by_handler.items():
        assert guard.breaker.under_way == sum(probe.guard is guard for probe in guards.probes.values())
        assert guard.breaker.under_way <= state.settings.dispatch.breaker.success_threshold
        assert (guard.breaker.state == "closed") == (name not in guards.barred)
        if guard.breaker.state != "closed" and not guard.breaker.is_forced:
            due = [t for t in state.timers.all() if isinstance(t, BreakerDue) and t.guard is guard]
            assert due, f"{name} is {guard.breaker.state} and nothing wakes it"


def check_ready(state: BrokerState) -> None:
    entries = state.ready.entries()
    assert state.ready.count == len(entries)
    assert len(set(map(id, entries))) == len(entries)
    assert all(step.queued for step in entries)
    fetching = {id(s) for steps in state.fetching.values() for s in steps} | {id(s) for s in state.undecided_steps}
    fetching |= {id(s) for timer in state.timers.all() if isinstance(timer, FetchDue) for s in timer.steps}
    fetching |= {id(s) for lane in state.outbox.lanes.values() for s in lane.waiting}
    for task in state.tasks.values():
        for step in task.steps:
            if step.state is READY and task.state == "running":
                assert step.queued or id(step) in fetching, f"{step.definition.name} is ready and in no queue"


ONE: dict[str, Any] = {"name": "flow", "steps": [{"name": "only", "handler_class": "h"}]}
CHAIN: dict[str, Any] = {
    "name": "flow",
    "steps": [
        {"name": "a", "handler_class": "h"},
        {"name": "b", "handler_class": "h", "depends_on": ["a"]},
        {"name": "c", "handler_class": "h", "depends_on": ["b"]},
    ],
}
ONCE: dict[str, Any] = {
    "name": "flow",
    "steps": [{"name": "only", "handler_class": "h", "delivery_mode": "at_most_once"}],
}


def one(**members: Any) -> dict[str, Any]:
    """A workflow of a single step with these members."""
    return {"name": "flow", "steps": [{"name": "only", "handler_class": "h", **members}]}


def once(**members: Any) -> dict[str, Any]:
    return one(delivery_mode="at_most_once", **members)


def steps(*members: dict[str, Any], **head: Any) -> dict[str, Any]:
    """A workflow of these steps. Their handler_class is `h` unless they name another."""
    return {"name": "flow", **head, "steps": [{"handler_class": "h", **m} for m in members]}
