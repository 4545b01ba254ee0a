"""Requests to every operation of the API, from which the fuzzer makes hostile ones."""

import random
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from stepwire_broker.api.operations import OPERATIONS

from .mutations import POISON, mutated, of_bytes

WORKER: Final = "fuzz:0123456789abcdef"
_CALL: Final = {"worker": WORKER, "session": "1.1", "n": 1}
_RESULT: Final = {"step_id": 2, "delivery": 1, "status": "completed", "output": {"seats": 2}}
_TASK: Final = {"workflow": "order", "context": {"cents": 1200}, "labels": {"region": "eu"}}

BODIES: Final[dict[tuple[str, str], Any]] = {
    ("POST", "/v1/tasks"): _TASK,
    ("POST", "/v1/tasks/batch"): {"tasks": [{**_TASK, "idempotency_key": "k-1"}, {"workflow": "order", "priority": 3}]},
    ("POST", "/v1/tasks/{task_id}/cancel"): {"reason": "not wanted"},
    ("POST", "/v1/tasks/{task_id}/retry"): {"reason": "again", "from_step": "reserve"},
    ("POST", "/v1/steps/{step_id}/resolve"): {"outcome": "completed", "output": {"seats": 2}, "reason": "seen"},
    ("POST", "/v1/lanes/{lane}/move"): {"to": "b2", "reason": "balance"},
    ("POST", "/v1/workflows"): {
        "name": "fuzzed",
        "version": "1",
        "steps": [
            {"name": "a", "handler_class": "fuzz.a"},
            {"name": "b", "handler_class": "fuzz.b", "depends_on": ["a"], "delivery_mode": "at_most_once"},
        ],
    },
    ("POST", "/v1/workers/{worker}/drain"): {"quit": False},
    ("POST", "/v1/worker/lease"): {**_CALL, "handlers": ["fuzz.a"], "slots": 2, "wait_ms": 50},
    ("POST", "/v1/worker/heartbeat"): {**_CALL, "progress": []},
    ("POST", "/v1/worker/start"): {**_CALL, "items": [[2, 1]]},
    ("POST", "/v1/worker/results"): {**_CALL, "results": [_RESULT]},
    ("POST", "/v1/worker/bye"): {**_CALL, "reason": "end"},
    ("POST", "/v1/rules"): {"match": "fuzz::**", "executor": "bus", "canary": {"percent": 5, "executor": "bus"}},
    ("POST", "/v1/rules/remove"): {"match": "fuzz::**"},
    ("POST", "/v1/tasks/{task_id}/erase"): {"reason": "customer 42"},
    ("POST", "/v1/database/backups"): {"file": "monday.db"},
    ("POST", "/v1/breakers/{handler_class}"): {"state": "closed", "reason": "seen"},
}
PARAMETERS: Final = {
    "task_id": ("1", "4", "7", "999999999"),
    "step_id": ("2", "3", "5", "999999999"),
    "name": ("reserve", "order", "fuzzed"),
    "worker": (WORKER, "fuzz"),
    "executor": ("bus", "local"),
    "handler_class": ("fuzz.a", "fuzz.b"),
    "lane": ("1", "2", "99"),
}
QUERY: Final = (
    "2026-11-20T00:00:00Z", "running", "ready", "order", "default", "region=eu", "0", "1", "50", "1000000",
    "a::b::c", "true", "**", "0.1.1.1", "x" * 300, "%00", "%ff", "%", "a%20b", "", "a=b&a=c", "null", "-1", "9" * 30,
)  # fmt: skip


class Request(NamedTuple):
    method: str
    path: str
    query: str
    content_type: bytes
    body: bytes


def request(rng: random.Random, number: int) -> Request:
    """A hostile request. Each operation is chosen in turn."""
    method, route = _OPERATIONS[number % len(_OPERATIONS)]
    path, operation = route, OPERATIONS[method, route]
    for name, known in PARAMETERS.items():
        if f"{{{name}}}" in path:
            value = rng.choice(known) if rng.random() < 0.7 else str(rng.choice(POISON))[:200]
            path = path.replace(f"{{{name}}}", quote(value, safe="" if rng.random() < 0.8 else "/", errors="replace"))
    document = BODIES.get((method, route))
    if document is None and rng.random() < 0.7:
        body = b""
    else:
        body = mutated(rng, rng.choice(list(BODIES.values())) if document is None or rng.random() < 0.03 else document)
    kind = (
        rng.choice(operation.body_types)
        if rng.random() < 0.97
        else rng.choice(("", "text/plain", "application/json; x"))
    )
    return Request(method, path, _query(rng, operation.query), kind.encode(), body)


def _query(rng: random.Random, names: tuple[str, ...]) -> str:
    chosen = [name for name in names if rng.random() < 0.3]
    if rng.random() < 0.02:
        chosen.append("unknown")
    text = "&".join(f"{name.replace('step_state', 'state')}={rng.choice(QUERY)}" for name in chosen)
    return of_bytes(rng, text.encode()).decode("latin-1") if text and rng.random() < 0.1 else text


_OPERATIONS: Final = sorted(OPERATIONS, key=lambda each: (each[1], each[0]))
