"""Promises that hold for every order of events. Events are drawn relative to the state, so that they concern something:
results of existing deliveries, heartbeats of live sessions, commands on open tasks.

The workers follow the protocol where it relies on them: they run a delivery once, and an at_most_once step only after
`go`. Otherwise they are as slow, forgetful or dead as it allows; messages are lost, repeated and late.
"""

from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepwire_broker.core.commit.loads import RejectedLoad
from stepwire_broker.core.definitions.settings import (
    BatchSettings,
    BreakerSettings,
    BusSettings,
    DispatchSettings,
    LimitSettings,
    RetryBudgetSettings,
    Settings,
)
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.model import events, facts
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.states import STEP_FINAL
from stepwire_broker.core.timer_kinds import ReloadDue
from stepwire_protocol import messages as wire

from .world import DIES_MS, WALL_MS, World, check_counts, steps, worker_id

BACKOFF = {"kind": "constant", "base_ms": 400, "jitter": "none"}

DOCUMENTS: dict[str, dict[str, Any]] = {
    "chain": steps(
        {"name": "a", "backoff": BACKOFF, "retry_limit": 1},
        {"name": "b", "depends_on": ["a"], "delivery_mode": "at_most_once"},
        {"name": "c", "depends_on": ["b"], "timeout_ms": 1_000, "retry_limit": 1, "backoff": BACKOFF},
    ),
    "diamond": steps(
        {"name": "a", "queue_timeout_ms": 20_000},
        {"name": "b", "depends_on": ["a"], "allow_failure": True, "retry_limit": 0},
        {"name": "c", "depends_on": ["a"], "deadline_ms": 30_000, "backoff": BACKOFF},
        {"name": "d", "depends_on": ["b", "c"]},
        {"name": "undo", "depends_on": ["b", "c"], "trigger_rule": {"any": [{"failed": "b"}, {"failed": "c"}]}},
        {
            "name": "big",
            "depends_on": ["b"],
            "trigger_rule": {"any": [{"result": "b.big", "op": "exists"}, {"failed": "b"}]},
        },
        deadline_ms=120_000,
    ),
    "pay": steps(
        {
            "name": "pay",
            "delivery_mode": "at_most_once",
            "retry_reported_failures": True,
            "retry_limit": 1,
            "backoff": BACKOFF,
            "queue_timeout_ms": 15_000,
        },
        {"name": "charge", "delivery_mode": "at_most_once", "on_unknown": "fail", "handler_class": "g"},
    ),
}

SMALL = b'{"ok":true}'
LARGE = b'{"big":"' + b"x" * 3_000 + b'"}'


# So quick that stories of a minute have breakers that open and close, and retries that wait.
QUICK = DispatchSettings(
    breaker=BreakerSettings(failure_threshold=1, open_ms=1_500, open_max_ms=6_000, success_threshold=1),
    retry_budget=RetryBudgetSettings(percent=10.0, at_least=1, window_ms=5_000),
)


def world_of(**limits: Any) -> World:
    return World(
        Settings(
            bus=BusSettings(batch=BatchSettings(max_steps=3)),
            limits=LimitSettings(resident_payload_bytes=1_000, **limits),
            dispatch=QUICK,
        ),
        auto=False,
        answers_reads=False,
    )


class Workers:
    """The knowledge of the worker processes: the messages they were sent."""

    def __init__(self) -> None:
        self.k: dict[str, int] = {}
        self.holds: dict[str, dict[tuple[int, int], tuple[wire.Steps, str]]] = defaultdict(dict)
        self.tombstones: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.started: dict[int, list[tuple[str, int]]] = defaultdict(list)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers()
        self.heard = self.groups_seen = 0
        self.n = 0
        self.grants: dict[int, int] = defaultdict(int)  # step id → grants since an operator's last word
        self.final: dict[int, tuple[int, str]] = {}  # step id → (its task's reopenings, state)
        self.reopened: dict[int, int] = defaultdict(int)
        self.groups_seen = 0

    @initialize(active=st.sampled_from([3, 50]))
    def begin(self, active: int) -> None:
        self.world = world_of(max_active_tasks=active)
        for name, document in DOCUMENTS.items():
            self.world.apply({**document, "name": name})
        self.world.settle()
        for number in (1, 2):
            self.hello(number, 0, 3, 6)

    # -- people -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(DOCUMENTS)), count=st.integers(1, 3), large=st.booleans(), key=st.integers(0, 3))
    def submit(self, name: str, count: int, large: bool, key: int) -> None:
        if key and count == 1:
            self.world.submit(name, key=f"k{key}", digest=b"", context=SMALL)
        else:
            self.world.submit(name, count=count, context=LARGE if large else SMALL)

    def some_task(self, data: Any) -> int:
        return int(data.draw(st.sampled_from(sorted(self.world.rows.tasks))))

    @precondition(lambda self: self.world.rows.tasks)
    @rule(
        data=st.data(),
        kind=st.sampled_from([CancelTask, PauseTask, ResumeTask, ResumeTask]),
    )
    def order(self, data: Any, kind: type) -> None:
        self.world.ask(kind, task_id=self.some_task(data))

    @precondition(lambda self: self.world.rows.tasks)
    @rule(data=st.data(), new_key=st.booleans(), again=st.booleans())
    def retry(self, data: Any, new_key: bool, again: bool) -> None:
        task_id = self.some_task(data)
        workflow = self.world.state.workflows[self.world.rows.tasks[task_id].workflow_id]
        name = data.draw(st.sampled_from([None, *sorted(workflow.by_name)]))
        self.world.ask(RetryTask, task_id=task_id, from_step=name, new_key=new_key, again=again)

    @precondition(lambda self: any(s.state == "held" for s in self.world.rows.steps.values()))
    @rule(data=st.data(), outcome=st.sampled_from(["completed", "failed", "retry"]))
    def resolve(self, data: Any, outcome: Any) -> None:
        held = sorted(s.id for s in self.world.rows.steps.values() if s.state == "held")
        step_id = data.draw(st.sampled_from(held))
        self.world.ask(ResolveStep, step_id=step_id, outcome=outcome, reason="so")

    @precondition(lambda self: self.world.rows.tasks)
    @rule(data=st.data())
    def wait_for(self, data: Any) -> None:
        self.world.ask(events.AwaitTask, task_id=self.some_task(data))

    # -- the database -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.writing is not None)
    @rule(twice=st.booleans())
    def commit(self, twice: bool) -> None:
        group = self.world.writing
        assert group is not None
        self.watch(group)
        self.world.commit()
        if twice and self.world.groups[-1] is group:
            before = (self.world.rows.tasks.copy(), self.world.rows.steps.copy())
            self.world.rows.again(group)
            assert before == (self.world.rows.tasks, self.world.rows.steps)
        for task_id in {row.task_id for row in group.history}:
            self.check_history(task_id)

    def check_history(self, task_id: int) -> None:
        if task_id in self.world.rows.tasks:
            workflow = self.world.state.workflows[self.world.rows.tasks[task_id].workflow_id]
            assert self.world.rows.differences(task_id, workflow) == []

    @precondition(lambda self: self.world.writing is not None and self.world.writing.history)
    @rule(data=st.data())
    def commit_with_a_data_error(self, data: Any) -> None:
        """Refuse one task's changes. Its submission is refused as a whole or stored, and is not meant here."""
        group = self.world.writing
        assert group is not None
        new = {t.id for s in group.submissions for t in s.tasks}
        candidates = sorted({row.task_id for row in group.history} - new)
        if candidates:
            self.world.rows.refuses = {data.draw(st.sampled_from(candidates))}
        self.watch(group, self.world.rows.refuses)
        self.world.commit()
        self.world.rows.refuses = set()

    @precondition(lambda self: self.world.writing is not None)
    @rule()
    def stall(self) -> None:
        self.world.stall()

    @precondition(lambda self: self.world.reads)
    @rule(fails=st.booleans())
    def read(self, fails: bool) -> None:
        if fails:
            self.world.fail_read()
        else:
            self.world.read()

    @rule()
    def settle(self) -> None:
        """Let everything that waits for the database go on, so that long stories arise."""
        for _ in range(60):
            if self.world.writing is not None:
                self.commit(False)
            elif self.world.reads:
                self.world.read()
            else:
                break

    # -- time ---------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([10, 300, 500, 2_000, 6_000, DIES_MS]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(shift=st.sampled_from([-3_600_000, 3_600_000]))
    def jump(self, shift: int) -> None:
        self.world.wall_shift += shift
        self.furthest = max(getattr(self, "furthest", 0), self.world.wall_shift)

    @rule()
    def late(self) -> None:
        self.world.mono += 20_000
        self.world.handle(events.LoopWasLate(20_000))

    @rule()
    def restart(self) -> None:
        if self.world.writing is not None:
            self.watch(self.world.writing)
            self.world.rows.write(self.world.writing)  # it was durable, and the broker died before it knew
        for lane in self.world.state.lanes.values():
            lane.ids.next = max([lane.ids.next, *(t + 100 for t in self.world.rows.tasks)])
        self.world.restart()
        self.heard = self.groups_seen = 0

    # -- workers ------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 3), more=st.integers(0, 1), slots=st.integers(1, 3), free=st.integers(0, 6))
    def hello(self, number: int, more: int, slots: int, free: int) -> None:
        worker = worker_id(number=number)
        k = self.workers.k[worker] = self.workers.k.get(worker, 1 - more) + more
        if more:
            self.drop(worker)
        self.n += 1
        self.world.hello(
            worker,
            k=k,
            n=self.n,
            slots=slots,
            prefetch=3,
            free={"b1": free},
            holding=self.holding(worker),
            handlers=["h"] if number == 1 else ["**"],
        )

    def drop(self, worker: str) -> None:
        """Open a new session: steps that had not started never will."""
        for item, (_, state) in list(self.workers.holds[worker].items()):
            if state in ("queued", "asking"):
                del self.workers.holds[worker][item]
                self.workers.tombstones[worker].add(item)

    def holding(self, worker: str) -> list[Any]:
        return [(*item, state, 1_000) for item, (_, state) in self.workers.holds[worker].items()]

    def sessions(self) -> list[str]:
        return sorted(self.world.state.sessions)

    @precondition(lambda self: self.sessions())
    @rule(data=st.data(), free=st.integers(0, 6))
    def beat(self, data: Any, free: int) -> None:
        worker = data.draw(st.sampled_from(self.sessions()))
        self.n += 1
        k = self.world.state.sessions[worker].k
        self.world.beat(worker, n=self.n, k=k, holding=self.holding(worker), free=free)

    @rule(data=st.data())
    def hear(self, data: Any) -> None:
        """Workers read what they were sent. Some of it is lost."""
        self.hear_all(data)

    def hear_all(self, data: Any) -> None:
        for worker, message in self.world.sent[self.heard :]:
            if data.draw(st.integers(0, 7)) == 7:
                continue
            self.on_message(worker, message)
        self.heard = len(self.world.sent)

    def on_message(self, worker: str, message: Any) -> None:
        mine = self.world.state.sessions.get(worker)
        current = mine is not None and self.workers.k.get(worker) == mine.k
        if isinstance(message, wire.Steps) and current and mine is not None and message.session == mine.id:
            stale = []
            for step in message.steps:
                item = (step.step_id, step.delivery)
                if item in self.workers.tombstones[worker]:
                    stale.append(item)
                else:
                    self.workers.holds[worker].setdefault(item, (message, "queued"))
            if stale:
                self.world.say(
                    wire.Refuse(
                        v="2.0",
                        worker=worker,
                        session=message.session,
                        batch_id=message.batch_id,
                        items=stale,
                        code="stale",
                        free=2,
                    )
                )
            else:
                self.world.accept(message, worker, free=2)
        elif isinstance(message, wire.Go) and current and mine is not None and message.session == mine.id:
            for item in map(tuple, message.items):
                batch, state = self.workers.holds[worker].get(item, (None, ""))
                if batch is not None and state == "asking":
                    self.run(worker, item, batch)
        elif isinstance(message, wire.Cancel):
            for item in map(tuple, message.items):
                batch, state = self.workers.holds[worker].get(item, (None, ""))
                if batch is not None and state in ("queued", "asking"):
                    del self.workers.holds[worker][item]
                    self.workers.tombstones[worker].add(item)
        elif isinstance(message, wire.Adopt) and mine is not None and message.session == mine.id:
            answer = []
            for item in map(tuple, message.items):
                batch, state = self.workers.holds[worker].get(item, (None, "unknown"))
                if batch is None:
                    self.workers.tombstones[worker].add(item)
                answer.append((*item, state, 10))
            self.world.say(wire.Adopted(v="2.0", worker=worker, session=message.session, items=answer))

    def run(self, worker: str, item: tuple[int, int], batch: wire.Steps) -> None:
        self.workers.holds[worker][item] = (batch, "running")
        assert (worker, item[1]) not in self.workers.started[item[0]]
        self.workers.started[item[0]].append((worker, item[1]))

    def in_state(self, *states: str) -> list[tuple[str, tuple[int, int]]]:
        return [(w, i) for w, held in sorted(self.workers.holds.items()) for i, (_, s) in held.items() if s in states]

    @precondition(lambda self: self.in_state("queued", "asking"))
    @rule(data=st.data())
    def begin_to_run(self, data: Any) -> None:
        self.begin_item(*data.draw(st.sampled_from(self.in_state("queued", "asking"))))

    def begin_item(self, worker: str, item: tuple[int, int]) -> None:
        session = self.world.state.sessions.get(worker)
        if session is None or self.workers.k.get(worker) != session.k:
            return  # its lease is over: it starts nothing
        batch, _ = self.workers.holds[worker][item]
        request = next(s for s in batch.steps if (s.step_id, s.delivery) == item)
        if request.delivery_mode == "at_most_once":
            self.workers.holds[worker][item] = (batch, "asking")
            self.world.say(wire.Start(v="2.0", worker=worker, session=session.id, items=[item]))
        else:
            self.run(worker, item, batch)

    @precondition(lambda self: self.in_state("running", "done"))
    @rule(
        data=st.data(),
        how=st.sampled_from(["completed", "completed", "large", "failed", "error", "unavailable", "outcome_unknown"]),
    )
    def end(self, data: Any, how: str) -> None:
        """Send a step's result, or resend it: a resent result is the same."""
        self.end_item(*data.draw(st.sampled_from(self.in_state("running", "done"))), how)

    def end_item(self, worker: str, item: tuple[int, int], how: str) -> None:
        batch, _ = self.workers.holds[worker][item]
        position = [(s.step_id, s.delivery) for s in batch.steps].index(item)
        self.workers.holds[worker][item] = (batch, "done")
        if how in ("completed", "large"):
            output = msgspec.Raw(LARGE if how == "large" else SMALL)
            self.world.result(batch, worker, position, output=output, n=0)
        else:
            code = how if how == "outcome_unknown" else None
            status = "error" if how == "error" else "failed"
            category = how if how == "unavailable" else None
            self.world.fail(batch, worker, position, status=status, code=code, category=category)

    @rule(data=st.data())
    def work(self, data: Any) -> None:
        """Play one ordinary round, so that long stories arise: commit, deliver and start all steps, and end some."""
        self.settle()
        self.hear_all(data)
        for worker, item in self.in_state("queued", "asking"):
            if item in self.workers.holds[worker] and data.draw(st.integers(0, 4)):
                self.begin_item(worker, item)
        self.settle()
        self.hear_all(data)
        for worker, item in self.in_state("running", "done"):
            how = data.draw(
                st.sampled_from(
                    ["", "completed", "completed", "large", "failed", "error", "unavailable", "outcome_unknown"]
                )
            )
            if how:
                self.end_item(worker, item, how)

    @precondition(lambda self: self.in_state("queued"))
    @rule(data=st.data(), code=st.sampled_from(["busy", "unknown_handler", "draining", "bad_message"]))
    def refuse(self, data: Any, code: Any) -> None:
        worker, item = data.draw(st.sampled_from(self.in_state("queued")))
        batch, _ = self.workers.holds[worker].pop(item)
        self.workers.tombstones[worker].add(item)
        self.world.say(
            wire.Refuse(
                v="2.0", worker=worker, session=batch.session, batch_id=batch.batch_id, items=[item], code=code, free=1
            )
        )

    @precondition(lambda self: self.sessions())
    @rule(data=st.data(), how=st.sampled_from(["died", "bye", "subscribed"]))
    def go(self, data: Any, how: str) -> None:
        worker = data.draw(st.sampled_from(self.sessions()))
        if how == "died":
            self.workers.holds.pop(worker, None)
            self.workers.k[worker] = self.workers.k.get(worker, 1) + 1  # as if another process had its name
            self.world.handle(events.ProcessDied(worker))
        elif how == "bye":
            self.world.say(wire.Bye(v="2.0", worker=worker))
        else:
            self.world.handle(events.Subscribed(worker))

    # -- what is never so ---------------------------------------------------------------------------------------------

    def watch(self, group: CommitGroup, refused: set[int] | frozenset[int] = frozenset()) -> None:
        """Check, before a group is written, that its rows follow from the stored ones."""
        for row in group.history:
            if row.task_id in refused:
                continue
            for fact in facts.decode(row.facts):
                if isinstance(fact, facts.Reopened):
                    step_id = row.task_id + 1 + fact.step
                    self.grants[step_id] = 0
                    self.final.pop(step_id, None)
                elif isinstance(fact, facts.Granted):
                    step_id = row.task_id + 1 + fact.step
                    workflow = self.world.state.workflows[self.world.rows.tasks[row.task_id].workflow_id]
                    if workflow.steps[fact.step].delivery_mode == "at_most_once":
                        self.grants[step_id] += 1
                        self.granted_twice(step_id)
                elif isinstance(fact, facts.Undelivered | facts.BackedOff):
                    # Its live worker said that it does not hold it, or a report that its definition lets it try again.
                    step_id = row.task_id + 1 + fact.step
                    if isinstance(fact, facts.BackedOff) or fact.code in ("not_held", "session_replaced", "stale"):
                        self.grants[step_id] = 0

    def granted_twice(self, step_id: int) -> None:
        assert self.grants[step_id] <= 1, f"step {step_id} was granted twice and no one said that it may be"

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "world"):
            check_counts(self.world)
            state = self.world.state
            reloads = any(isinstance(load, RejectedLoad) for load in state.loads.values())
            reloads |= any(isinstance(timer, ReloadDue) for timer in state.timers.all())
            if self.world.writing is None and not state.undecided and not reloads:
                assert self.world.state.open_steps == self.world.rows.open_steps
                assert self.world.state.open_by_namespace == self.world.rows.open_by_namespace

    @invariant()
    def what_is_final_stays_so(self) -> None:
        if not hasattr(self, "world"):
            return
        for step in self.world.rows.steps.values():
            if step.state in STEP_FINAL:
                known = self.final.setdefault(step.id, (step.delivery, step.state))
                assert known == (step.delivery, step.state)

    @invariant()
    def what_was_sent_was_durable_and_rested_on_what_was_final(self) -> None:
        if not hasattr(self, "world"):
            return
        rows = self.world.rows
        for worker, message in self.world.sent[self.groups_seen :]:
            if isinstance(message, wire.Steps):
                for request in message.steps:
                    row = rows.steps[request.step_id]
                    assert row.delivery >= request.delivery, "it left before its commit"
                    if row.delivery == request.delivery and row.state == "dispatched":
                        assert (row.worker, row.batch_id) == (worker, message.batch_id)
                        task = self.world.state.workflows[rows.tasks[request.task_id].workflow_id]
                        for index in task.steps[task.by_name[request.step_name]].depends_on:
                            assert rows.steps[request.task_id + 1 + index].state in STEP_FINAL
            elif isinstance(message, wire.Go):
                for step_id, delivery in message.items:
                    row = rows.steps[step_id]
                    assert row.granted or row.state != "dispatched" or row.delivery > delivery
        self.groups_seen = len(self.world.sent)

    def teardown(self) -> None:
        """When the faults stop and workers offer every handler, every task ends or waits for an operator."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.auto = world.answers_reads = True
        # What waits in the database waits by the wall clock: none of the times it was set to is still to come.
        world.wall_shift = max(WALL_MS + 3_600_000, getattr(self, "furthest", 0))
        for task_id in sorted(world.rows.tasks):
            world.settle()
            while world.reads:
                world.read()
            if world.rows.tasks[task_id].state == "paused":
                world.ask(ResumeTask, task_id=task_id)
        if hasattr(self, "furthest"):
            world.pass_time(2 * 3_600_000)  # what was loaded while the clock was behind waits as much longer
        helper = worker_id("helper")
        world.hello(helper, slots=50, prefetch=0)
        done: set[tuple[int, int]] = set()
        for _ in range(600):
            for batch in world.batches(helper):
                for position, step in enumerate(batch.steps):
                    item = (step.step_id, step.delivery)
                    if item not in done:
                        done.add(item)
                        if step.delivery_mode == "at_most_once":
                            world.start(batch, helper, position)
                        world.result(batch, helper, position, session=world.session_id())
            world.pass_time(2_000)
            world.beat(helper, n=world.mono, free=50)
            if all(t.finished_ms is not None or t.attention == "held" for t in world.rows.tasks.values()):
                break
        stuck = [t for t in world.rows.tasks.values() if t.finished_ms is None and t.attention != "held"]
        assert not stuck, [(t.id, t.state, world.states(t.id)) for t in stuck]
        check_counts(world)
        for task_id in world.rows.tasks:
            self.check_history(task_id)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@settings(max_examples=15, deadline=None)
@given(
    script=st.lists(
        st.sampled_from(["submit", "hello", "beat", "result", "fail", "time", "death", "start", "cancel"]), max_size=40
    )
)
def test_the_same_events_at_the_same_times_give_the_same_bytes(script: list[str]) -> None:
    def played() -> tuple[list[bytes], list[bytes]]:
        world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=3))))
        for name, document in DOCUMENTS.items():
            world.apply({**document, "name": name})
        for number, event in enumerate(script):
            worker = worker_id(number=number % 2 + 1)
            batches = world.batches(worker)
            match event:
                case "submit":
                    world.submit(sorted(DOCUMENTS)[number % 3], count=2)
                case "hello":
                    world.hello(worker, k=number + 1, n=number)
                case "beat":
                    world.beat(worker, n=number, k=number)
                case "time":
                    world.pass_time(700)
                case "death":
                    world.handle(events.ProcessDied(worker))
                case "cancel" if world.rows.tasks:
                    world.ask(CancelTask, task_id=max(world.rows.tasks))
                case "result" if batches:
                    world.result(batches[-1], worker)
                case "fail" if batches:
                    world.fail(batches[-1], worker)
                case "start" if batches:
                    world.start(batches[-1], worker)
        return world.frames, [msgspec.msgpack.encode(group) for group in world.groups]

    assert played() == played()
