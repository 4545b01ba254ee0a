"""The broker inside an application. `open` names the file and the handlers, `async with` starts and stops the broker.

The broker is `stepwire serve` inside the application's event loop: the same core, store and bus (over inproc), so the
same guarantees. Make every call on the event loop on which the broker was started; a program without a loop uses
`in_thread`.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec
import structlog
import zmq
from stepwire.worker import Worker
from stepwire_protocol.decode_errors import plain
from stepwire_protocol.patterns import split_name

from stepwire_broker import definition_files, operator_commands
from stepwire_broker.core.answers.answers import Applied, TasksSubmitted
from stepwire_broker.core.definitions.settings import (
    BusSettings,
    DatabaseSettings,
    ExecSettings,
    ExecutorsSettings,
    HttpSettings,
    LimitSettings,
    Settings,
)
from stepwire_broker.core.definitions.workflow import read_workflow
from stepwire_broker.core.model.events import ApplyWorkflow
from stepwire_broker.core.reading.document_problems import InvalidWorkflow
from stepwire_broker.core.workflow_warnings import of_document, of_handlers
from stepwire_broker.engine import Engine
from stepwire_broker.executors.contract import Executor
from stepwire_broker.executors.registry import Executors
from stepwire_broker.stages import requests
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import StepFilter, StepRow, TaskFilter, TaskRow

from .calls import EngineCalls, read
from .errors import CommandError
from .http_api import HttpApi
from .task import Task
from .views import AppliedWorkflow, StepView, step_view

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SLOTS_DEFAULT: Final = 10

Outcome: TypeAlias = Literal["completed", "failed", "retry"]

_encode: Final = msgspec.json.Encoder().encode


class RunBlocking(Protocol):
    """Runs an asynchronous method on the broker's loop, from any other thread, and returns its result."""

    def __call__(self, what: Awaitable[T]) -> T: ...


class Broker:
    """`open` names the file and the handlers; `async with` starts the broker and stops it."""

    def __init__(self, settings: Settings, handlers: Worker, slots: int, http: HttpApi | None = None) -> None:
        self._settings = settings
        self._offered = handlers
        self._slots = slots
        self._http = http
        self._engine: Engine | None = None
        self._calls = EngineCalls(settings)
        self._zmq: zmq.Context[zmq.Socket[bytes]] | None = None
        self._executors = Executors(settings, is_embedded=True, has_http=http is not None)

    @classmethod
    def open(
        cls,
        database: str | os.PathLike[str],
        *,
        handlers: Worker | None = None,
        slots: int = SLOTS_DEFAULT,
        settings: Mapping[str, Any] | None = None,
        http: str | None = None,
    ) -> Self:
        """Return a broker for this SQLite file. The start creates the file if it does not exist.

        The handlers of `handlers` (its endpoints are not used) and handlers registered with `handler` run in this
        process, at most `slots` at a time. `settings` has the shape of stepwire.yaml with times in `…_ms`. Use it for
        limits, retention and `bus.lease_ms`, or for `bus.steps` and `bus.results` with ipc:// paths, so that handlers
        in other processes can connect.

        `http` is an address such as `127.0.0.1:7410`, or `127.0.0.1:0` for a free port. The broker then serves its HTTP
        API there, for `stepwire` commands and for clients in other processes. Its token is in the file
        `<database>.token`, which the first start creates; `url` and `token_file` are what clients need.
        """
        path = os.path.abspath(os.fspath(database))
        token_file = Path(f"{path}.token")
        defaults = Settings(
            http=HttpSettings(listen=http or HttpSettings().listen, tokens_file=str(token_file)),
            database=DatabaseSettings(url=f"sqlite:///{path}"),
            bus=BusSettings(steps="inproc://steps", results="inproc://results"),
            executors=ExecutorsSettings(exec=ExecSettings(runs_dir=f"{path}.runs")),
        )
        merged = _merged(msgspec.to_builtins(defaults), settings or {})
        try:
            converted = msgspec.convert(merged, Settings)
        except msgspec.ValidationError as error:
            raise CommandError("invalid", f"settings: {plain(str(error), Settings)}") from None
        served = None if http is None else HttpApi(converted.http, token_file, is_strict=converted.security.strict)
        return cls(converted, handlers or Worker(), slots, served)

    def handler(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        timeout_ms: int | None = None,
        process: bool = False,
    ) -> Callable[[F], F]:
        """Register a function for a handler_class before the start, as `Worker.handler` does."""
        if self._engine is not None:
            raise RuntimeError(f"handler {name!r} is too late: register handlers before the broker starts")
        return self._offered.handler(name, concurrency=concurrency, timeout_ms=timeout_ms, process=process)

    def register_executor(self, key: str, executor: Executor) -> None:
        """Add an executor before the start: see `executors/contract.py`."""
        self._executors.register(key, executor)

    @property
    def url(self) -> str | None:
        """The address of the HTTP API, after the start of a broker with `http`."""
        return None if self._http is None else self._http.url

    @property
    def token_file(self) -> Path | None:
        """The file with the token for the HTTP API of a broker with `http`."""
        return None if self._http is None else self._http.token_file

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the file, continue the open tasks in it, and start the handlers.

        Raises InUse while another process has the file, StoreRefused when the file cannot be used for another reason,
        and CannotStart when an executor or the HTTP API cannot start. Each is a BrokerError.
        """
        if self._engine is not None:
            raise RuntimeError("a broker can be started once: open another one")
        _log_where_the_application_logs()
        self._executors.configure(self._offered.handlers, self._slots)
        self._zmq = zmq.Context()
        self._engine = Engine(self._settings, context=self._zmq, companion=self._executors)
        self._calls.use(self._engine)
        try:
            await self._engine.start()
            if self._http is not None:
                await self._http.start(self._engine)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Accept no new work, let running steps finish for `broker.drain_timeout_ms`, and close. Open tasks continue at
        the next start."""
        if self._engine is None or self._zmq is None:
            return
        engine, context = self._engine, self._zmq
        self._zmq = None
        try:
            if (self._executors.hosts or self._http) and hasattr(engine, "identity"):
                await self._drain(engine)
        finally:
            if self._http is not None:
                await self._http.stop()
            await engine.stop()
            await asyncio.to_thread(context.term)

    async def _drain(self, engine: Engine) -> None:
        draining = asyncio.ensure_future(engine.drain())
        try:
            await engine.handled()
            if self._http is not None:
                self._http.stop_waiting()
            await draining
        finally:
            draining.cancel()

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
        await asyncio.shield(self._calls.engine().failed)

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
                definition = read_workflow(dict(workflow), limits=limits)
            else:
                document = definition_files.read_document(workflow)
                definition = read_workflow(document.value, document.where, limits)
        except (definition_files.DocumentError, InvalidWorkflow) as error:
            raise CommandError("invalid_workflow", str(error)) from None
        done = await self._calls.ask(lambda request: ApplyWorkflow(request, definition, activate), Applied)
        warnings = (*of_document(definition), *of_handlers(self._calls.engine().state, definition))
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

    async def _submit(self, make: Callable[[LimitSettings], list[Any]]) -> "list[Task]":
        new = read(lambda: make(self._settings.limits))
        stored = await self._calls.ask(requests.submission(new), TasksSubmitted)
        return [Task(self._calls, *each) for each in zip(stored.task_ids, stored.created, strict=True)]

    def task(self, task_id: int) -> "Task":
        """Return the task with this id, for example of an earlier run. The task is not read yet."""
        return Task(self._calls, task_id, False)

    async def tasks(self, state: str | None = None, *, workflow: str | None = None) -> "AsyncIterator[Task]":
        """Yield all stored tasks, the newest first: `async for task in broker.tasks("running")`."""
        wanted = TaskFilter(state=state, workflow=workflow)
        while rows := await self._calls.engine().read(_tasks, wanted):
            for row in rows:
                yield Task(self._calls, row.id, False)
            wanted = wanted._replace(before=rows[-1].point)

    # -- for operators ------------------------------------------------------------------------------------------------

    async def held_steps(self) -> list[StepView]:
        """Return the steps that must not start twice and whose outcome is unknown."""
        held: list[StepRow] = []
        wanted = StepFilter(state="held")
        while rows := await self._calls.engine().read(_steps, wanted):
            held += rows
            wanted = wanted._replace(before=rows[-1].point)
        return [step_view(row) for row in held]

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
        await self._calls.order(operator_commands.RESOLVE_STEP, step_id, members)


def _tasks(queries: Queries, wanted: TaskFilter) -> list[TaskRow]:
    return queries.tasks(wanted)


def _steps(queries: Queries, wanted: StepFilter) -> list[StepRow]:
    return queries.steps(wanted)


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
    namespace, workflow = split_name(workflow, namespace)
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
