"""`/v1/tasks`: submit, look, wait, and give orders."""

import time
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from stepwire_broker.core.model.answers import Done, TasksSubmitted
from stepwire_broker.core.model.events import AwaitTask, NewTask
from stepwire_broker.core.model.scopes import Scope
from stepwire_broker.core.model.states import TaskState
from stepwire_broker.stages import requests

from . import explaining, reading
from .documents import Created, CreatedBatch
from .http import HttpCall
from .http_problems import not_found
from .replies import Reply, encode
from .waiting import long_poll

WAIT_MS_MAX: Final = 300_000
LOOK_AGAIN_S: Final = 5.0


async def submit(call: HttpCall) -> Reply:
    """With `wait_ms`, the answer waits as that of `show` does, and has the task."""
    limits = call.broker.settings.limits
    wait_ms = call.query("wait_ms").get("wait_ms")
    wait_s = None
    if wait_ms is not None:
        wait_s = _wait_s(wait_ms)
        call.needs(Scope.READ)
    body = await call.body(limits.payload_bytes)
    stored = await _store(call, [requests.read_task(body, limits, _key(call))])
    task_id, created = stored.task_ids[0], stored.created[0]
    live = call.broker.state.tasks.get(task_id)
    task: Raw | UnsetType = UNSET
    state: str | None
    if wait_s is not None:
        found = await _wait(call, task_id, wait_s)
        state = None if found is None else found.state
        task = UNSET if found is None else Raw(found.document)
    elif created and live is not None and live.state is TaskState.RUNNING:
        state = TaskState.RUNNING  # as it was stored: without a look at the database
    else:
        state = await call.broker.read(lambda queries: queries.task_state(task_id))
    if state is None:
        raise not_found(f"task {task_id} any more", "it ended long ago, and was removed a moment ago")
    return Reply(201 if created else 200, encode(Created(task_id, state, created, task)))


async def submit_batch(call: HttpCall) -> Reply:
    limits = call.broker.settings.limits
    body = await call.body(requests.batch_bytes_max(limits))
    stored = await _store(call, requests.read_tasks(body, limits, _key(call)))
    created = sum(stored.created)
    return Reply(201 if created else 200, encode(CreatedBatch(stored.task_ids, created)))


async def show(call: HttpCall) -> Reply:
    """The task as it is; with `wait_ms`, as it is when it has ended, or hangs on a held step, or the time is over."""
    task_id = call.number("task_id")
    wait_ms = call.query("wait_ms").get("wait_ms")
    if wait_ms is None:
        found = await explaining.task(call.broker, task_id)
    else:
        found = await _wait(call, task_id, _wait_s(wait_ms))
    if found is None:
        raise explaining.no_task(task_id)
    return Reply(200, found.document)


async def why(call: HttpCall) -> Reply:
    """In one sentence: what the task hangs on, or how it ended."""
    task_id = call.number("task_id")
    call.query()
    return Reply(200, encode(await explaining.why_task(call.broker, task_id)))


async def step(call: HttpCall) -> Reply:
    """A step by its name."""
    task_id, name = call.number("task_id"), call.scope["path_params"]["name"]
    call.query()
    return Reply(200, await explaining.step(call.broker, task_id, name))


async def why_step(call: HttpCall) -> Reply:
    """In one sentence: why the step stands where it stands."""
    task_id, name = call.number("task_id"), call.scope["path_params"]["name"]
    call.query()
    return Reply(200, encode(await explaining.why_step(call.broker, task_id, name)))


async def page(call: HttpCall) -> Reply:
    wanted = reading.task_filter(call.query(*reading.TASK_QUERY))
    return Reply(200, await call.broker.read(reading.tasks, wanted))


def _wait_s(wait_ms: str) -> float:
    return reading.number("wait_ms", wait_ms, 0, WAIT_MS_MAX) / 1000


async def _wait(call: HttpCall, task_id: int, timeout_s: float) -> reading.Read | None:
    """The broker tells when a task ends that is in its memory. What has ended before, or is another broker's, shows in
    the database only: so we look there once the broker knows that somebody waits, and again after a while."""
    until = time.monotonic() + timeout_s
    async with long_poll(call) as client:
        told = await client.ask(lambda request: AwaitTask(request, task_id), Done)
        live = call.broker.state.tasks.get(task_id)
        if live is not None and live.state is TaskState.RUNNING and live.attention is None:
            is_small = len(live.steps) <= reading.SMALL_STEPS_MAX and live.context_bytes <= reading.SMALL_BYTES_MAX
            await client.wait(told, min(timeout_s, LOOK_AGAIN_S))
            if is_small and told.done() and (found := explaining.small_task(call.broker, task_id)) is not None:
                return found
        while True:
            found = await explaining.task(call.broker, task_id)
            left_s = until - time.monotonic()
            if found is None or found.is_settled or left_s <= 0 or call.closing.is_set():
                return found
            await client.wait(told, min(left_s, LOOK_AGAIN_S))


async def _store(call: HttpCall, tasks: list[NewTask]) -> TasksSubmitted:
    return await call.ask(requests.submission(tasks), TasksSubmitted)


def _key(call: HttpCall) -> str | None:
    """The Idempotency-Key header; the quotes that its draft standard asks for may be there or not."""
    key = call.header(b"idempotency-key")
    return key[1:-1] if key and len(key) > 1 and key[0] == key[-1] == '"' else key
