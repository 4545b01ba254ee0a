"""The broker inside an application: no server, no network socket, one SQLite file, handlers in the same process.

    async with Broker.open("orders.db", handlers=worker) as broker:
        await broker.apply({"name": "order", "steps": [{"name": "charge", "handler_class": "shop.charge"}]})
        task = await broker.submit("order", {"total": 12.5}, key="order-17")
        result = await task.result()

The broker is `stepwire serve` without HTTP: the same core, store and bus (over inproc), so the same guarantees. All
acknowledged work is stored: kill the application, open the file again, and the work continues. Make every call on the
event loop on which the broker was started; a program without a loop uses `in_thread`.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec
import structlog
import zmq
from msgspec import Struct
from stepwire.worker import Worker
from stepwire_protocol.errors import InvalidMessage

from . import definition_files, operator_commands
from . import engine as core
from .core.answers.answers import Answer, Applied, CommandRefused, Done, TasksSubmitted
from .core.answers.hints import hint_text
from .core.definitions.settings import (
    BusSettings,
    DatabaseSettings,
    ExecSettings,
    ExecutorsSettings,
    LimitSettings,
    Settings,
)
from .core.definitions.workflow import Workflow, read_workflow
from .core.model.events import ApplyWorkflow, AwaitTask
from .core.model.states import TASK_FINAL, TaskState
from .core.reading.document_problems import InvalidWorkflow
from .core.workflow_warnings import WorkflowWarning, of_document, of_handlers
from .core_loop import BrokerStopped
from .errors import BrokerError as BrokerError
from .executors.contract import Executor
from .executors.registry import Executors
from .operator_commands import OperatorCommand
from .stages import requests
from .stages.requests import Make
from .store.queries import Queries
from .store.rows import StepFilter, StepRow, TaskFilter, TaskRow
from .store.task_results import result_of

T = TypeVar("T")
A = TypeVar("A", bound=Answer)
B = TypeVar("B", bound=Struct)
F = TypeVar("F", bound=Callable[..., Any])

LOOK_AGAIN_S: Final = 5.0
SLOTS_DEFAULT: Final = 10

Outcome: TypeAlias = Literal["completed", "failed", "retry"]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class CommandError(BrokerError):
    """A command was refused, and nothing is stored. `code` is the same as over HTTP, `hint` is the next action.

    Only with the code `commit_unknown`, the command may have been carried out: the broker stopped before the commit.
    With `retry_after_ms`, the same command may succeed after that time.
    """

    def __init__(self, code: str, message: str, hint: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after_ms = retry_after_ms


class TaskNotCompleted(BrokerError):
    """A task has no result. `task` is its current state."""

    def __init__(self, task: "TaskView", why: str) -> None:
        super().__init__(f"task {task.task_id} ({task.workflow}) {why}")
        self.task = task


class TaskFailed(TaskNotCompleted):
    """The task has ended: one of its steps has failed for good."""


class TaskCancelled(TaskNotCompleted):
    """The task has ended: it was cancelled."""


class TaskHeld(TaskNotCompleted):
    """The task waits until its held step is resolved: see `Broker.resolve`."""


class StepView(Struct, frozen=True, kw_only=True):
    """The stored state of a step at the time of the read."""

    step_id: int
    name: str
    handler_class: str
    state: str
    attempt: int
    worker: str | None
    reason: str | None
    error: Any
    output: Any


class TaskView(Struct, frozen=True, kw_only=True):
    """The stored state of a task at the time of the read. `result` is None until the task is completed."""

    task_id: int
    namespace: str
    workflow: str
    version: str
    state: str
    attention: str | None
    key: str | None
    created_ms: int
    finished_ms: int | None
    context: Any
    result: Any
    steps: tuple[StepView, ...]

    @property
    def is_settled(self) -> bool:
        """True if the task has ended, or waits for an operator's decision."""
        return self.state in TASK_FINAL or self.attention is not None


class AppliedWorkflow(Struct, frozen=True):
    """`created` is False when this version already existed with the same content. `warnings` are probable mistakes, and
    handlers that are not offered now."""

    namespace: str
    name: str
    version: str
    created: bool
    warnings: tuple[WorkflowWarning, ...]


class RunBlocking(Protocol):
    """Runs an asynchronous method on the broker's loop, from any other thread, and returns its result."""

    def __call__(self, what: Awaitable[T]) -> T: ...


class Broker:
    """`open` names the file and the handlers; `async with` starts the broker and stops it."""

    def __init__(self, settings: Settings, handlers: Worker, slots: int) -> None:
        self._settings = settings
        self._offered = handlers
        self._slots = slots
        self._core: core.Engine | None = None
        self._zmq: zmq.Context[zmq.Socket[bytes]] | None = None
        self._executors = Executors(settings, is_embedded=True)

    @classmethod
    def open(
        cls,
        database: str | os.PathLike[str],
        *,
        handlers: Worker | None = None,
        slots: int = SLOTS_DEFAULT,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a broker for this SQLite file. The start creates the file if it does not exist.

        The handlers of `handlers` (its endpoints are not used) and handlers registered with `handler` run in this
        process, at most `slots` at a time. `settings` has the shape of stepwire.yaml with times in `…_ms`. Use it for
        limits, retention and `bus.lease_ms`, or for `bus.steps` and `bus.results` with ipc:// paths, so that handlers
        in other processes can connect.
        """
        path = os.path.abspath(os.fspath(database))
        defaults = Settings(
            database=DatabaseSettings(url=f"sqlite:///{path}"),
            bus=BusSettings(steps="inproc://steps", results="inproc://results"),
            executors=ExecutorsSettings(exec=ExecSettings(runs_dir=f"{path}.runs")),
        )
        merged = _merged(msgspec.to_builtins(defaults), settings or {})
        try:
            return cls(msgspec.convert(merged, Settings), handlers or Worker(), slots)
        except msgspec.ValidationError as error:
            raise CommandError("invalid", f"settings: {error}") from None

    def handler(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        timeout_ms: int | None = None,
        process: bool = False,
    ) -> Callable[[F], F]:
        """Register a function for a handler_class before the start, as `Worker.handler` does."""
        if self._core is not None:
            raise RuntimeError(f"handler {name!r} is too late: register handlers before the broker starts")
        return self._offered.handler(name, concurrency=concurrency, timeout_ms=timeout_ms, process=process)

    def register_executor(self, key: str, executor: Executor) -> None:
        """Add an executor before the start: see `executors/contract.py`."""
        self._executors.register(key, executor)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the file, continue the open tasks in it, and start the handlers.

        Raises stepwire_broker.store.errors.StoreRefused when the file cannot be used, for example while another
        broker uses it, and stepwire_broker.engine.CannotStart when an executor cannot start.
        """
        if self._core is not None:
            raise RuntimeError("a broker can be started once: open another one")
        _log_where_the_application_logs()
        self._executors.configure(self._offered.handlers, self._slots)
        self._zmq = zmq.Context()
        self._core = core.Engine(self._settings, context=self._zmq, companion=self._executors)
        self._loop = asyncio.get_running_loop()
        try:
            await self._core.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Accept no new work, let running steps finish for `broker.drain_timeout_ms`, and close. Open tasks continue at
        the next start."""
        if self._core is None or self._zmq is None:
            return
        broker, context = self._core, self._zmq
        self._zmq = None
        try:
            if self._executors.hosts and hasattr(broker, "identity"):
                await broker.drain()
        finally:
            await broker.stop()
            await asyncio.to_thread(context.term)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def until_failed(self) -> None:
        """Wait until the database fails, and raise BrokerStopped. No other cause stops a broker by itself.

        Use this method in a task group that also runs the application's own work.
        """
        await asyncio.shield(self._started().failed)

    @contextmanager
    def in_thread(self) -> "Iterator[RunBlocking]":
        """Run the broker on an event loop in a thread, for a program without a loop, and stop the broker at the end.

            broker = Broker.open("orders.db", handlers=worker)
            with broker.in_thread() as run:
                task = run(broker.submit("order", {"total": 12.5}))
                print(run(task.result()))

        `run` waits for an asynchronous method of this broker or of its tasks, and returns the result. Any thread may
        call `run`.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="stepwire-broker", daemon=True)
        thread.start()

        def run(what: Awaitable[T]) -> T:
            return asyncio.run_coroutine_threadsafe(_awaited(what), loop).result()

        try:
            run(self.start())
            try:
                yield run
            finally:
                run(self.stop())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # -- workflows and tasks ------------------------------------------------------------------------------------------

    async def apply(self, workflow: Mapping[str, Any] | str | bytes, *, activate: bool = True) -> AppliedWorkflow:
        """Store a workflow: a mapping, or the text of a file in YAML or JSON. An existing version is accepted with the
        same content and refused with other content."""
        limits = self._settings.limits
        try:
            if isinstance(workflow, Mapping):
                read = read_workflow(dict(workflow), limits=limits)
            else:
                document = definition_files.read_document(workflow)
                read = read_workflow(document.value, document.where, limits)
        except (definition_files.DocumentError, InvalidWorkflow) as error:
            raise CommandError("invalid_workflow", str(error)) from None
        done = await self._ask(lambda request: ApplyWorkflow(request, read, activate), Applied)
        warnings = (*of_document(read), *of_handlers(self._started().state, read))
        return AppliedWorkflow(done.namespace, done.name, done.version, done.created, warnings)

    async def submit(
        self,
        workflow: str,
        context: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
    ) -> "Task":
        """Start a task. The task is stored when this method returns. A second submission with the same `key` returns
        the same task. Use a key for all work that must not be done twice: the application may be killed between the
        submission and the answer."""
        body = _body(workflow, context, key, namespace, version, priority, labels, deadline_ms)
        (task,) = await self._submit(lambda limits: [requests.read_task(_encode(body), limits)])
        return task

    async def submit_many(self, tasks: Sequence[Mapping[str, Any]]) -> "list[Task]":
        """Start all of these tasks or none, in one transaction. Each is a mapping of `submit`'s arguments."""
        bodies = [_body(**{"context": None, **task}) for task in tasks]
        return await self._submit(lambda limits: requests.read_tasks(_encode({"tasks": bodies}), limits))

    async def _submit(self, read: Callable[[LimitSettings], list[Any]]) -> "list[Task]":
        new = _read(lambda: read(self._settings.limits))
        stored = await self._ask(requests.submission(new), TasksSubmitted)
        return [Task(self, *each) for each in zip(stored.task_ids, stored.created, strict=True)]

    def task(self, task_id: int) -> "Task":
        """Return the task with this id, for example of an earlier run. The task is not read yet."""
        return Task(self, task_id, False)

    async def tasks(self, state: str | None = None, *, workflow: str | None = None) -> "AsyncIterator[Task]":
        """Yield all stored tasks, the newest first: `async for task in broker.tasks("running")`."""
        wanted = TaskFilter(state=state, workflow=workflow)
        while rows := await self._started().read(_tasks, wanted):
            for row in rows:
                yield Task(self, row.id, False)
            wanted = wanted._replace(before=rows[-1].id)

    # -- for operators ------------------------------------------------------------------------------------------------

    async def held_steps(self) -> list[StepView]:
        """Return the steps that must not start twice and whose outcome is unknown."""
        held: list[StepRow] = []
        wanted = StepFilter(state="held")
        while rows := await self._started().read(_steps, wanted):
            held += rows
            wanted = wanted._replace(before=rows[-1].id)
        return [_step(row) for row in held]

    async def resolve(
        self,
        step_id: int,
        outcome: Outcome,
        *,
        reason: str,
        output: Any = None,
        message: str | None = None,
        new_key: bool = False,
    ) -> None:
        """Decide the outcome of a held step. `reason` is stored in its history."""
        members = {"outcome": outcome, "reason": reason, "output": output, "message": message, "new_key": new_key}
        await self._order(operator_commands.RESOLVE_STEP, step_id, members)

    # -- calls of the core --------------------------------------------------------------------------------------------

    async def _order(self, command: "OperatorCommand[int, B, Done]", number: int, members: Mapping[str, Any]) -> None:
        body = _encode({name: value for name, value in members.items() if value not in (None, "", False)})
        await self._ask(_read(lambda: command.read(body, number, self._settings.limits)), Done)

    async def _ask(self, make: Make, expected: type[A]) -> A:
        answer = await self._started().ask(make)
        if isinstance(answer, CommandRefused):
            hint = "" if answer.hint is None else hint_text(answer.hint)
            raise CommandError(answer.code, answer.message, hint, answer.retry_after_ms)
        assert isinstance(answer, expected), answer
        return answer

    def _started(self) -> core.Engine:
        if self._core is None or not hasattr(self._core, "identity"):
            raise RuntimeError("the broker is not started: use `async with Broker.open(...) as broker`")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the broker was started on another event loop: call it from that loop (see Broker.in_thread)"
            )
        return self._core


class Task:
    """A stored task: read it, wait for it, or command it."""

    def __init__(self, broker: Broker, task_id: int, created: bool) -> None:
        self.id = task_id
        self.created = created  # False: the key was submitted before, or the object came from `Broker.task`
        self._broker = broker

    def __repr__(self) -> str:
        return f"Task({self.id})"

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the task's result: its workflow's `output`, or the outputs of its last steps by name.

        Raises TaskFailed, TaskCancelled or TaskHeld, and TimeoutError when the task is still in progress after
        `timeout_s`. The wait can be repeated, even after a restart: `broker.task(id).result()`.
        """
        task = await self.wait(timeout_s)
        if task.attention is not None and task.state not in TASK_FINAL:
            held = ", ".join(f"{step.step_id}/{step.name}" for step in task.steps if step.state == "held")
            raise TaskHeld(task, f"waits until its held step {held} is resolved")
        if task.state == TaskState.FAILED:
            failed = ", ".join(f"{step.name}: {step.error}" for step in task.steps if step.state == "failed")
            raise TaskFailed(task, f"failed ({failed})")
        if task.state == TaskState.CANCELLED:
            raise TaskCancelled(task, "was cancelled")
        return task.result

    async def wait(self, timeout_s: float | None = None) -> TaskView:
        """Wait until the task has ended, or waits for a held step. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                settled = asyncio.ensure_future(self._broker._ask(lambda request: AwaitTask(request, self.id), Done))
                try:
                    await self._broker._started().handled()  # later reads are not older than the command
                    task = await self.show()
                    if task.is_settled:
                        return task
                    await asyncio.wait((settled,), timeout=LOOK_AGAIN_S)
                    if settled.done():
                        settled.result()
                finally:
                    settled.cancel()
                    await asyncio.gather(settled, return_exceptions=True)

    async def show(self) -> TaskView:
        """Read the task. Raises CommandError, code `not_found`, when it does not exist or was removed."""
        broker = self._broker._started()
        task = await broker.read(_view, self.id, broker.workflows)
        if task is None:
            raise CommandError(
                "not_found", f"there is no task {self.id}", "ended tasks are removed after their retention time"
            )
        return task

    async def cancel(self, reason: str = "") -> None:
        """Start no further step of the task, and ask running steps to stop."""
        await self._broker._order(operator_commands.CANCEL_TASK, self.id, {"reason": reason})

    async def pause(self) -> None:
        """Start no further step of the task until it is resumed."""
        await self._broker._order(operator_commands.PAUSE_TASK, self.id, {})

    async def resume(self) -> None:
        await self._broker._order(operator_commands.RESUME_TASK, self.id, {})

    async def retry(
        self, *, from_step: str | None = None, again: bool = False, new_key: bool = False, reason: str = ""
    ) -> None:
        """Run failed, cancelled and skipped steps again; with `from_step`, that step and all steps after it. A
        completed step that must not start twice runs again only with `again`."""
        members = {"from_step": from_step, "again": again, "new_key": new_key, "reason": reason}
        await self._broker._order(operator_commands.RETRY_TASK, self.id, members)


def _tasks(queries: Queries, wanted: TaskFilter) -> list[TaskRow]:
    return queries.tasks(wanted)


def _steps(queries: Queries, wanted: StepFilter) -> list[StepRow]:
    return queries.steps(wanted)


def _view(queries: Queries, task_id: int, workflows: Mapping[int, Workflow]) -> TaskView | None:
    """Read a task with its steps. Runs in a reader's thread."""
    stored = queries.task(task_id)
    if stored is None:
        return None
    row = stored.task
    result = result_of(queries, stored, workflows[row.workflow_id]).result
    return TaskView(
        task_id=row.id,
        namespace=row.namespace,
        workflow=row.workflow,
        version=row.version,
        state=row.state,
        attention=row.attention,
        key=row.key,
        created_ms=row.created_ms,
        finished_ms=row.finished_ms,
        context=_decode(stored.context),
        result=None if result is None else _decode(result),
        steps=tuple(_step(step) for step in stored.steps),
    )


def _step(row: StepRow) -> StepView:
    return StepView(
        step_id=row.id,
        name=row.name,
        handler_class=row.handler_class,
        state=row.state,
        attempt=row.attempt,
        worker=row.worker,
        reason=row.reason,
        error=None if row.error is None else _decode(row.error),
        output=None if row.output is None else _decode(row.output),
    )


def _body(
    workflow: str,
    context: Mapping[str, Any] | None,
    key: str | None = None,
    namespace: str | None = None,
    version: str | None = None,
    priority: int = 0,
    labels: Mapping[str, str] | None = None,
    deadline_ms: int | None = None,
) -> dict[str, Any]:
    """Return a submission in the form of an HTTP body, so that the same code reads it."""
    members = {
        "workflow": workflow,
        "context": {} if context is None else dict(context),
        "idempotency_key": key,
        "namespace": namespace,
        "version": version,
        "priority": priority,
        "labels": None if labels is None else dict(labels),
        "deadline_ms": deadline_ms,
    }
    return {name: value for name, value in members.items() if value is not None}


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except InvalidMessage as refusal:
        raise CommandError(refusal.code, refusal.message) from None


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return merged


def _log_where_the_application_logs() -> None:
    """Log to `logging`, under `stepwire.broker`, unless the application has configured structlog."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, structlog.processors.LogfmtRenderer(key_order=["event"])],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


async def _awaited(what: Awaitable[T]) -> T:
    return await what


__all__ = [
    "AppliedWorkflow",
    "Broker",
    "BrokerStopped",
    "CommandError",
    "StepView",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHeld",
    "TaskNotCompleted",
    "TaskView",
]
