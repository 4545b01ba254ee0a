"""Clients and an operator, over a connection that may break: they receive an answer, or none.

A client with keys repeats a submission until it is answered; a client without keys must not. The operator sends random
commands while faults occur, and afterwards resolves and resumes whatever needs an operator.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.answers.answers import Answer, Applied, CommandRefused, Done, TasksSubmitted
from stepwire_broker.core.guards.allowance import SetBreaker
from stepwire_broker.core.intake.auditing import RecordAction
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.intake.erasure import EraseTask
from stepwire_broker.core.model.events import (
    ActionNoticed,
    ActivateWorkflow,
    ApplyWorkflow,
    AwaitTask,
    NewTask,
    SubmitTasks,
)

from . import flows
from .checks.submissions import UNKNOWN
from .worker_node import HANDLERS

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World

PATIENCE_MS: Final = 8_000.0
LOOK_AGAIN_MS: Final = 5_000.0


class Asking:
    """One request over the connection to a broker, which may not own the task. The answer may be lost."""

    def __init__(
        self,
        world: "World",
        chance: Random,
        make: Callable[[int], Any],
        then: Callable[[Any], None],
        at: "Callable[[], BrokerNode | None] | None" = None,
    ) -> None:
        """`at`: the broker that is asked, chosen when the request leaves; None: any."""
        self.world = world
        self._at = at
        self._make = make
        self._then = then
        self._is_over = False
        self._request: int | None = None
        self._broker: BrokerNode | None = None
        self._life = -1
        self._gone = chance.random() < world.people.gone_rate and world.faults.strikes(
            "client_gone", world.people.next_number()
        )
        world.schedule.after(0.5 + 4.0 * chance.random(), self._arrive)
        patience_ms = PATIENCE_MS * (chance.random() ** 2 if self._gone else 1.0)
        world.schedule.after(patience_ms, self._lose_patience)

    def _arrive(self) -> None:
        if not self._is_over:
            self._broker = self.world.any_broker() if self._at is None else self._at()
            if self._broker is None:
                self._answered(None)
                return
            self._life = self._broker.life
            self._request = self._broker.ask(self._make, self._answered)

    def _answered(self, answer: Answer | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._then(answer)

    def _lose_patience(self) -> None:
        if not self._is_over:
            self._is_over = True
            broker = self._broker
            if self._request is not None and broker is not None and broker.is_alive and broker.life == self._life:
                broker.forget(self._request)
            self._then(None)


class Submission:
    """A submission of one client."""

    def __init__(self, number: int, tasks: list[NewTask], workflows: list[int]) -> None:
        self.number = number
        self.tasks = tasks
        self.workflows = workflows
        self.can_repeat = all(task.key is not None for task in tasks)
        self.is_conflict = False
        self.is_over = False
        self.answer: TasksSubmitted | None = None


class People:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/people")
        self.gone_rate = world.faults.rate("client_gone", 0.15)
        self.submissions: list[Submission] = []
        self.known: list[int] = []  # tasks that a client knows of
        self._numbers = 0
        self._unanswered = 0  # commands without an answer yet
        self._flows = [self.chance.randrange(world.flows_count) for _ in range(self.chance.randint(1, 4))]
        focus = world.focus
        if focus is not None and focus.flows:
            self._flows = [focus.flows[index % len(focus.flows)] for index in self._flows]
        self._tasks = self.chance.randint(3, 20) if focus is None else focus.tasks
        self._applied: set[int] = set()
        self._count = 0
        self.waits_open = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def begin(self, phase_ms: float) -> None:
        for index in dict.fromkeys(self._flows):
            self._apply(index)
        made = 0
        while made < self._tasks:
            # Mostly early, so that faults occur while there is work.
            at_ms = 50.0 + phase_ms * 0.8 * self.chance.random() ** 2
            made += self._plan(at_ms)
        self._plan_commands(phase_ms)
        self._plan_breakers(phase_ms)
        self._plan_erasures(phase_ms)
        self._plan_records(phase_ms)

    # -- workflows ----------------------------------------------------------------------------------------------------

    def _apply(self, index: int) -> None:
        workflow = flows.workflow(index)

        def answered(answer: Any) -> None:
            if isinstance(answer, Applied):
                self._applied.add(index)
                if self.chance.random() < 0.2:
                    named = (workflow.namespace, workflow.name, workflow.version)
                    Asking(self.world, self.chance, lambda r: ActivateWorkflow(r, *named), lambda _: None)
            else:
                self.world.schedule.after(200.0 + 500.0 * self.chance.random(), self._apply, index)

        Asking(self.world, self.chance, lambda r: ApplyWorkflow(r, workflow), answered)

    # -- submissions --------------------------------------------------------------------------------------------------

    def _plan(self, at_ms: float) -> int:
        world, chance = self.world, self.chance
        count = chance.choice((1, 1, 1, 2, 3))
        keyed = chance.choice((True, True, False, None))
        tasks, indices = [], []
        for _ in range(count):
            self._count += 1
            index = chance.choice(self._flows)
            has_key = chance.random() < 0.5 if keyed is None else keyed
            tasks.append(self._new(index, f"k{self._count}" if has_key else None, chance.choice((1, 1, 60, 300))))
            indices.append(index)
        submission = Submission(len(self.submissions), tasks, indices)
        self.submissions.append(submission)
        world.schedule.at(at_ms, self._submit, submission)
        later_ms = at_ms + 3_000.0 * chance.random() ** 2
        twice, conflict = chance.random() < 0.5, chance.random() < 0.2
        if submission.can_repeat:
            again = None
            if twice and "submitted_twice" in world.faults.on:
                if world.faults.strikes("submitted_twice", submission.number):
                    again = Submission(len(self.submissions), tasks, indices)
            elif conflict and "key_conflict" in world.faults.on:
                other = [task._replace(context=b'{"who":"other"}', digest=b"other") for task in tasks]
                if world.faults.strikes("key_conflict", submission.number):
                    again = Submission(len(self.submissions), other, indices)
                    again.is_conflict = submission.is_conflict = True
            if again is not None:
                self.submissions.append(again)
                world.schedule.at(later_ms, self._submit, again)
        return count

    def _new(self, index: int, key: str | None, pad: int) -> NewTask:
        workflow = flows.workflow(index)
        chance = self.chance
        context = b'{"who":"%s","pad":"%s"}' % (chance.choice((b"me", b"you")), b"p" * pad)
        return NewTask(
            namespace=workflow.namespace,
            workflow=workflow.name,
            version=chance.choice((None, "1")),
            context=context,
            key=key,
            digest=b"" if key is None else b"%d" % (hash_of(context)),
            priority=chance.choice((0, 0, 5, -5)),
            labels=chance.choice((None, b'{"a":"b"}')),
            deadline_ms=chance.randint(3_000, 60_000) if chance.random() < 0.05 else None,
        )

    def _submit(self, submission: Submission) -> None:
        entropy = self.chance.getrandbits(128)

        def answered(answer: Any) -> None:
            self._submitted(submission, answer)

        Asking(self.world, self.chance, lambda r: SubmitTasks(r, submission.tasks, entropy), answered)

    def _submitted(self, submission: Submission, answer: Any) -> None:
        if isinstance(answer, TasksSubmitted):
            submission.is_over = True
            submission.answer = answer
            self.world.checks.acknowledged(submission, answer)
            for task_id in answer.task_ids:
                if task_id not in self.known:
                    self.known.append(task_id)
                if self.chance.random() < 0.5:
                    self._wait_for(task_id)
        elif isinstance(answer, CommandRefused) and answer.code == "key_conflict":
            self.world.checks.conflicted(submission)
            submission.is_over = True
        elif isinstance(answer, CommandRefused) and answer.code == "refused_by_database":
            submission.is_over = True
        elif submission.can_repeat or (isinstance(answer, CommandRefused) and answer.code not in UNKNOWN):
            self.world.schedule.after(100.0 + 900.0 * self.chance.random(), self._submit, submission)
        else:
            submission.is_over = True  # its outcome is unknown, and without keys it must not be repeated

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wait_for(self, task_id: int) -> None:
        """Wait as the API does: await the broker's answer, read the database, and read it again after a while."""
        world = self.world
        state = {"over": False}
        self.waits_open += 1

        def answered(answer: Any) -> None:
            if not state["over"]:
                look()

        def look() -> None:
            if state["over"]:
                return
            row = world.tables.tasks.get(task_id)
            if row is None and world.checks.is_over:
                return  # lost with its commit
            assert row is not None, task_id
            if row.finished_ms is not None or world.checks.books.is_closing:
                state["over"] = True
                self.waits_open -= 1
                return
            world.schedule.after(LOOK_AGAIN_MS * self.chance.random(), again)

        def again() -> None:
            if not state["over"]:
                Asking(world, self.chance, lambda r: AwaitTask(r, task_id), answered)

        again()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _plan_commands(self, phase_ms: float) -> None:
        faults, chance = self.world.faults, self.chance
        for kind in (
            "operator_cancel",
            "operator_drain",
            "operator_pause",
            "operator_retry",
            "operator_retry_from",
            "operator_resolve",
        ):
            count = chance.randint(1, 6) * (1 if self.world.focus is None else self.world.focus.plan_factor)
            times = [phase_ms * chance.random() for _ in range(count)]
            lucks = [chance.random() for _ in times]
            if kind in faults.on:
                for i, at_ms in enumerate(times):
                    self.world.schedule.at(at_ms, self._send_command, kind, i, lucks[i])

    def _send_command(self, kind: str, number: int, luck: float) -> None:
        world, chance = self.world, self.chance
        if not self.known or not world.faults.strikes(kind, number):
            return
        task_id = self.known[int(luck * len(self.known))]
        match kind:
            case "operator_cancel":
                self.command(lambda r: CancelTask(r, task_id, "an operator decided it"))
            case "operator_drain":
                worker = world.workers[int(luck * world.on_bus)]
                if worker.is_alive:
                    world.quieted.add(worker.id)
                    self.command(
                        lambda r, i=worker.id: DrainWorker(r, i, luck * 10 % 1 < 0.5),  # type: ignore[misc]
                        self.home(worker.number),
                    )
            case "operator_pause":
                self.command(lambda r: PauseTask(r, task_id))
                paused_ms = 500.0 + 20_000.0 * chance.random()
                world.schedule.after(paused_ms, self.command, lambda r: ResumeTask(r, task_id))
            case "operator_retry":
                new_key = chance.random() < 0.3
                self.command(lambda r: RetryTask(r, task_id, None, False, new_key, "again"))
            case "operator_retry_from":
                task_id = world.checks.books.task_between_attempts(luck) or task_id
                workflow = world.checks.books.workflow_of(task_id)
                step = chance.choice(workflow.steps).name
                again, new_key = chance.random() < 0.5, chance.random() < 0.3
                self.command(lambda r: RetryTask(r, task_id, step, again, new_key, "from there"))
            case "operator_resolve":
                for step_id in world.checks.books.held_steps()[:3]:
                    self.resolve(step_id)

    def _plan_breakers(self, phase_ms: float) -> None:
        world, chance = self.world, Random(f"{self.world.seed}/operator_breaker")
        times = [(phase_ms * chance.random(), chance.random(), chance.random()) for _ in range(chance.randint(1, 4))]
        if "operator_breaker" in world.faults.on:
            for i, (at_ms, luck, size) in enumerate(times):
                world.schedule.at(at_ms, self._force_breaker, i, luck, size)

    def _force_breaker(self, number: int, luck: float, size: float) -> None:
        """The operator forces a breaker, and returns it to automatic control after a while."""
        if self.world.faults.strikes("operator_breaker", number):
            handler = HANDLERS[int(luck * len(HANDLERS))]
            state: Any = "open" if luck * 100 % 1 < 0.6 else "closed"
            home = self.home(HANDLERS.index(handler))
            self.command(lambda r: SetBreaker(r, handler, state, "an operator decided it"), home)
            self.world.schedule.after(500.0 + 9_000.0 * size, self._release_breaker, handler, home)

    def _release_breaker(self, handler: str, at: "Callable[[], BrokerNode]") -> None:
        self.command(lambda r: SetBreaker(r, handler, "auto"), at)

    def _plan_erasures(self, phase_ms: float) -> None:
        world, chance = self.world, Random(f"{self.world.seed}/operator_erase")
        times = [(phase_ms * chance.random(), chance.random()) for _ in range(chance.randint(2, 8))]
        if "operator_erase" in world.faults.on:
            for i, (at_ms, luck) in enumerate(times):
                world.schedule.at(at_ms, self._erase, i, luck)

    def _erase(self, number: int, luck: float) -> None:
        """Erase a task. Half the time the task is cancelled in the same instant, as an impatient operator does."""
        if not self.known or not self.world.faults.strikes("operator_erase", number):
            return
        task_id = self.known[int(luck * len(self.known))]
        if luck * 100 % 1 < 0.5:
            self.command(lambda r: CancelTask(r, task_id, "to erase it"))
        self.command(lambda r: EraseTask(r, task_id, "a customer asked for it"))
        self.world.schedule.after(4_000.0, self.command, lambda r: EraseTask(r, task_id, "asked again"))

    def _plan_records(self, phase_ms: float) -> None:
        """In one world of ten, actions outside of the core leave rows of the audit."""
        chance = Random(f"{self.world.seed}/records")
        if chance.random() < 0.1:
            for _ in range(3):
                self.world.schedule.at(phase_ms * chance.random(), self._record, chance)

    def _record(self, chance: Random) -> None:
        if self.world.broker.is_alive:
            self.world.broker.post("event", ActionNoticed("process", "file", "token_added", "token ci"))
        Asking(self.world, chance, lambda r: RecordAction(r, action="record_backup"), lambda _: None)

    def command(self, make: Callable[[int], Any], at: "Callable[[], BrokerNode | None] | None" = None) -> None:
        if self.world.checks.is_over:
            return  # after lost commits, no operator decides anything
        self._unanswered += 1
        Asking(self.world, self.chance, make, self._command_answered, at)

    def home(self, number: int) -> "Callable[[], BrokerNode]":
        """The broker that gets every command on this worker or handler: a broker knows no control that an operator has
        set at another one since its start."""
        brokers = self.world.brokers
        return lambda: brokers[number % len(brokers)]

    def _command_answered(self, answer: Answer | None) -> None:
        self._unanswered -= 1

    def resolve(self, step_id: int) -> None:
        outcome = self.chance.choice(("completed", "failed", "retry"))
        new_key = outcome == "retry" and self.chance.random() < 0.3
        output = b'{"n":1}' if outcome == "completed" and self.chance.random() < 0.5 else None
        message = "it did not" if outcome == "failed" else ""
        self.command(lambda r: ResolveStep(r, step_id, outcome, "checked", output, message, new_key))  # type: ignore[arg-type]

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Resolve held steps and resume paused tasks, again and again, until none is left."""
        checks = self.world.checks
        for step_id in checks.books.held_steps():
            self.resolve(step_id)
        for row in self.world.tables.open_tasks:
            if row.state == "paused":
                self.command(lambda r, i=row.id: ResumeTask(r, i))  # type: ignore[misc]
        for broker in self.world.brokers:
            for guard in broker.state.guards.by_handler.values() if broker.is_alive else ():
                if guard.breaker.is_forced:
                    self._release_breaker(guard.handler_class, lambda b=broker: b)  # type: ignore[misc]
        if not checks.books.is_closing:
            self.world.schedule.after(4_000.0, self.tidy)

    @property
    def are_done(self) -> bool:
        return not self._unanswered and all(submission.is_over for submission in self.submissions)


def hash_of(data: bytes) -> int:
    from zlib import crc32

    return crc32(data)


__all__ = ["Done", "People", "Submission"]
