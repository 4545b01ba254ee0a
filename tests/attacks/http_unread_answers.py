"""A token with the scopes `read` and `inspect` asks for a large document on 300 connections, and does not read it."""

import json

from stepwire_broker.core.answers.scopes import Scope

from .clients import head, keep_open
from .target import Target


def attack(target: Target, seconds: float) -> dict[str, int]:
    body = {"workflow": "order", "context": {"text": "x" * 1_000_000}}
    task_id = json.loads(target.call("POST", "/v1/tasks", target.admin, body)[1])["task_id"]
    request = head(target.token("deaf", Scope.READ, Scope.INSPECT), f"GET /v1/tasks/{task_id}")
    return keep_open(target, 300, [request * 8], seconds, reads=False)
