"""A token with the scope `read` waits for a task on 1,024 connections."""

import json

from stepwire_broker.core.answers.scopes import Scope

from .clients import head, keep_open
from .target import Target


def attack(target: Target, seconds: float) -> dict[str, int]:
    created = target.call("POST", "/v1/tasks", target.admin, {"workflow": "order"})[1]
    path = f"/v1/tasks/{json.loads(created)['task_id']}?wait_ms=300000"
    return keep_open(target, 1_024, [head(target.token("waiter", Scope.READ), f"GET {path}")], seconds)
