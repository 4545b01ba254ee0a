"""`/v1/tasks`: submit tasks, show them, and wait for them."""

import time
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from stepwire_broker.core.answers.answers import Done, TasksSubmitted
from stepwire_broker.core.answers.hints import HintCode
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.model.events import AwaitTask, NewTask
from stepwire_broker.core.model.states import TASK_FINAL, TaskState
from stepwire_broker.stages import requests

from . import core_views, explaining, reading, scanning
from .documents import Created, CreatedBatch
from .http import HttpCall
from .http_problems import HttpProblem
from .replies import Reply, encode
from .waiting import long_poll

WAIT_MS_MAX: Final = 300_000
LOOK_AGAIN_S: Final = 5.0


async def submit(call: HttpCall) -> Reply:
    """Submit a task. With `wait_ms`, wait like `show`, and return the task in the answer."""
    limits = call.broker.settings.limits
    wait_ms = call.query("wait_ms").get("wait_ms")
    wait_s = None
    if wait_ms is not None:
        wait_s = _wait_s(wait_ms)
        call.needs(Scope.READ)
    task = requests.read_task(await call.body(limits.payload_bytes), limits, _key(call))
    if wait_s is not None:
        call.open_request.wait()  # before the task is stored, because a task that was stored must not be refused
    stored = await _store(call, [task])
    task_id, created = stored.task_ids[0], stored.created[0]
    live = core_views.live_task(call.broker, task_id)
    document: Raw | UnsetType = UNSET
    state: str | None
    if wait_s is not None:
        read = await _wait(call, task_id, wait_s)
        state = None if read is None else read.state
        document = UNSET if read is None else Raw(read.document)
    elif created and live is not None and live.is_running:
        state = TaskState.RUNNING  # the state that was stored, without reading the database
    else:
        state = await call.broker.read(lambda queries: queries.task_state(task_id))
    if state is None:
        raise HttpProblem(404, "not_found", f"task {task_id} has ended, and its retention time is over")
    return Reply(
        201 if created else 200,
        encode(Created(task_id, state, created, document)),
        shows_task=document is not UNSET,
    )


async def submit_batch(call: HttpCall) -> Reply:
    limits = call.broker.settings.limits
    body = await call.body(requests.batch_bytes_max(limits))
    stored = await _store(call, requests.read_tasks(body, limits, _key(call)))
    created = sum(stored.created)
    return Reply(201 if created else 200, encode(CreatedBatch(stored.task_ids, created)))


async def show(call: HttpCall) -> Reply:
    """Show the task. With `wait_ms`, first wait until the task has ended or depends on a held step, for at most this
    time."""
    task_id = call.number("task_id")
    wait_ms = call.query("wait_ms").get("wait_ms")
    if wait_ms is None:
        read = await explaining.task(call.broker, task_id, call.inspects)
    else:
        wait_s = _wait_s(wait_ms)
        call.open_request.wait()
        read = await _wait(call, task_id, wait_s)
    if read is None:
        raise await explaining.no_task(call.broker, task_id)
    return Reply(200, read.document)


async def why(call: HttpCall) -> Reply:
    task_id = call.number("task_id")
    call.query()
    return Reply(200, encode(await explaining.why_task(call.broker, task_id)))


async def step(call: HttpCall) -> Reply:
    task_id, name = call.number("task_id"), call.scope["path_params"]["name"]
    call.query()
    return Reply(200, await explaining.step(call.broker, task_id, name, call.inspects))


async def why_step(call: HttpCall) -> Reply:
    task_id, name = call.number("task_id"), call.scope["path_params"]["name"]
    call.query()
    return Reply(200, encode(await explaining.why_step(call.broker, task_id, name)))


async def page(call: HttpCall) -> Reply:
    filters = reading.task_filter(call.query(*reading.TASK_QUERY), call.namespaces)
    if scanning.needs_scan(filters):
        async with call.open_request.scanning():
            return Reply(200, await call.broker.scan(reading.tasks, filters))
    return Reply(200, await call.broker.read(reading.tasks, filters))


def _wait_s(wait_ms: str) -> float:
    return reading.number("wait_ms", wait_ms, 0, WAIT_MS_MAX) / 1000


async def _wait(call: HttpCall, task_id: int, timeout_s: float) -> reading.Read | None:
    """Wait for a task. The core answers when a task in its memory ends. A task that ended before, or that another
    broker owns, is in the database only. Such a task is read after the core has received the command, and then
    repeatedly.
    """
    until = time.monotonic() + timeout_s
    async with long_poll(call) as client:
        answer = await client.ask(lambda request: AwaitTask(request, task_id), Done)
        live = core_views.live_task(call.broker, task_id)
        if live is not None and live.is_running and not live.has_attention:
            is_small = live.steps <= reading.SMALL_STEPS_MAX and live.context_bytes <= reading.SMALL_BYTES_MAX
            await client.wait(answer, min(timeout_s, LOOK_AGAIN_S))
            if (
                is_small
                and answer.done()
                and (read := explaining.small_task(call.broker, task_id, call.inspects)) is not None
            ):
                return read
        while True:
            read = await explaining.stored_task(call.broker, task_id, call.inspects)
            left_s = until - time.monotonic()
            if read is None or read.is_settled or left_s <= 0 or call.closing.is_set():
                break
            await client.wait(answer, min(left_s, LOOK_AGAIN_S))
    is_complete = read is None or read.state in TASK_FINAL
    return read if is_complete else await explaining.task(call.broker, task_id, call.inspects)


async def _store(call: HttpCall, tasks: list[NewTask]) -> TasksSubmitted:
    """Store the tasks. The rate of the token counts the steps of new tasks."""
    for namespace, workflow, version in dict.fromkeys((task.namespace, task.workflow, task.version) for task in tasks):
        await call.enter_workflow(namespace, workflow, version, HintCode.APPLY_WORKFLOW)
    call.open_request.check_rate("steps")
    stored = await call.ask(requests.submission(tasks), TasksSubmitted)
    if call.open_request.grant.rate.steps is not None:
        new = (task_id for task_id, is_new in zip(stored.task_ids, stored.created, strict=True) if is_new)
        lives = (core_views.live_task(call.broker, task_id) for task_id in new)
        call.open_request.pay("steps", sum(1 if live is None else live.steps for live in lives))
    return stored


def _key(call: HttpCall) -> str | None:
    """The Idempotency-Key header, with or without the quotes that its draft standard requires."""
    key = call.header(b"idempotency-key")
    return key[1:-1] if key and len(key) > 1 and key[0] == key[-1] == '"' else key
