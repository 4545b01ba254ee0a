"""Submit a task, wait for its end and print its result, with the client that openapi-python-client generated."""

import json
import os

import httpx
from stepwire_client import AuthenticatedClient
from stepwire_client.api.tasks import get_task, submit_task
from stepwire_client.models import (
    Created,
    HintCode,
    ProblemDocument,
    TaskBody,
    TaskBodyContext,
    TaskDocument,
    TaskState,
)

FINAL = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)

client = AuthenticatedClient(
    os.environ["STEPWIRE_URL"], os.environ["STEPWIRE_TOKEN"], timeout=httpx.Timeout(30), raise_on_unexpected_status=True
)
order = TaskBody("order", namespace="shop", context=TaskBodyContext.from_dict({"card": "good"}), priority=3)
created = submit_task.sync(client=client, body=order, idempotency_key="python-1")
assert isinstance(created, Created), created

while True:
    task = get_task.sync(created.task_id, client=client, wait_ms=20_000)
    assert isinstance(task, TaskDocument), task
    if task.state in FINAL:
        break

missing = get_task.sync(2**53 - 1, client=client)
assert isinstance(missing, ProblemDocument), missing
assert missing.code == "not_found"
assert missing.next_
assert missing.next_.code is HintCode.LIST_TASKS

shown = {"state": task.state, "result": task.result, "steps": [step.state for step in task.steps]}
print(json.dumps(shown, separators=(",", ":")))
