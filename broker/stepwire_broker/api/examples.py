"""The examples in `/openapi.json`: built from the schemas and from a table of values by member name.

A new member needs a row only if the default for its type says too little.
"""

from typing import Any, Final

from .openapi_schemas import Schema

_TIME: Final = "2026-11-18T10:00:00.000Z"
_LATER: Final = "2026-11-18T10:00:01.250Z"

# By the name of a member, or `Schema.member` where the name means different things.
VALUES: Final[dict[str, Any]] = {
    "active": True,
    "after": "0",
    "alive": True,
    "at": _TIME,
    "attempt": 0,
    "attention": None,
    "batch_id": "b1.1.17",
    "broker": "b1",
    "canary": None,
    "canary_steps": 12,
    "cancel": [],
    "cancelling": False,
    "code": "workers_busy",
    "completed": 1204,
    "completed_ms": 604800000,
    "context": {"order": 4711, "cents": 1200},
    "created": True,
    "created_at": _TIME,
    "deadline_at": None,
    "decided": "distributed",
    "default_execution_mode": "distributed",
    "default_executor": "bus",
    "deliveries": 1,
    "delivery": 1,
    "delivery_mode": "at_most_once",
    "deployment": "5b0c2e",
    "detail": "there is no task 4711",
    "differs": 2,
    "document": {"name": "orders", "steps": [{"name": "pay", "handler_class": "payments.charge"}]},
    "draining": False,
    "dropped": 1,
    "ended": True,
    "epoch": 1,
    "equal": 980,
    "error": None,
    "executor": "bus",
    "failed": 3,
    "failed_ms": 2592000000,
    "failures": 9,
    "failures_in_row": 5,
    "finished_at": _LATER,
    "free": 5,
    "handler_class": "payments.charge",
    "handler_config": {},
    "handlers": ["payments.*"],
    "has_capacity": True,
    "heard_ms_ago": 420,
    "heartbeat_ms": 2000,
    "hidden_by": None,
    "hint": None,
    "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "holding": [],
    "idempotency_key": "order-4711",
    "input": None,
    "is_set": True,
    "items": [[4712, 1]],
    "labels": {"region": "eu"},
    "lang": "python",
    "lease_ms": 10000,
    "lost": 0,
    "match": "default::orders::*",
    "max_concurrent": 8,
    "max_message_bytes": 4194304,
    "mean_ms": 41.5,
    "message": "all 8 slots of the 2 workers that could run it are busy",
    "n": 1,
    "name": "pay",
    "namespace": "default",
    "nearly": None,
    "next": None,
    "next_cursor": None,
    "next_probe": _LATER,
    "not_before": None,
    "not_compared": 0,
    "now_ms": 1795082400000,
    "number": 1,
    "opened": 1,
    "other_steps": 230,
    "outcome": "completed",
    "outcomes": 40,
    "output": {"receipt": "4711/pay"},
    "output_bytes": 23,
    "output_omitted": False,
    "p95_ms": 120.0,
    "path": "default::orders::pay",
    "paused_since": None,
    "percent": 5.0,
    "pid": 4242,
    "prefetch": 10,
    "previous_results": {},
    "priority": 0,
    "probes": 0,
    "protocol_version": "2.0",
    "ready": True,
    "ready_at": _TIME,
    "reason": "found in the bank's book",
    "reasons": [],
    "result": {"pay": {"receipt": "4711/pay"}},
    "result_omitted": False,
    "retry_budget": None,
    "retry_limit": 3,
    "rids": [1],
    "running": 2,
    "sdk": "stepwire 0.1.0",
    "session": "1.7",
    "shadow": None,
    "since": _TIME,
    "slots": 8,
    "started_at": _TIME,
    "state": "completed",
    "status": "completed",
    "step": "pay",
    "step_id": 4712,
    "step_name": "pay",
    "task_context": {"order": 4711},
    "task_id": 4711,
    "task_ids": [4711, 4714],
    "timeout_ms": 30000,
    "topic": "w.shop-1",
    "total_executed": 1207,
    "total_failed": 3,
    "under_way": 3,
    "v": "2.0",
    "version": "1",
    "warnings": [],
    "what": "$.cents: 1200, and 1201 in the copy",
    "why": "the rule names another namespace",
    "worker": "shop-1:00c0ffee00c0ffee",
    "worker_selector": {"gpu": "true"},
    "workers": 2,
    "workflow": "orders",
    "workflow_id": 1,
    "BreakerBody.reason": "the bank is back",
    "BreakerBody.state": "auto",
    "BreakerDocument.cause": "5 failures in a row",
    "BreakerDocument.reason": "the bank does not answer",
    "BreakerDocument.state": "open",
    "BreakerSetting.state": "open",
    "Created.state": "running",
    "EventDocument.at": _LATER,
    "EventDocument.id": "0.17.1.0",
    "EventDocument.kind": "completed",
    "RouteDocument.reason": "no rule matches, so the step goes to the default executor bus",
    "RouteDocument.rule": None,
    "RuleList.executors": ["bus", "local"],
    "ShadowDocument.failed": 0,
    "AuditHeadDocument.cut_n": 0,
    "AuditHeadDocument.lane": 1,
    "AuditHeadDocument.n": 17,
    "AuditRowDocument.action": "retry_task",
    "AuditRowDocument.detail": {"steps": 1, "from_step": None, "again": False, "new_key": False},
    "AuditRowDocument.lane": 1,
    "AuditRowDocument.n": 17,
    "AuditRowDocument.outcome": "done",
    "AuditRowDocument.principal": "ci",
    "AuditRowDocument.reason": "the bank is back",
    "AuditRowDocument.request_id": "1.42",
    "AuditRowDocument.target": "task 4711",
    "AuditRowDocument.via": "token",
    "StepDocument.reason": None,
    "StepReason.state": "ready",
    "StepSummary.reason": None,
    "TapMessage.at": _TIME,
    "TapMessage.message": {"type": "heartbeat"},
    "TaskReason.state": "running",
    "WorkerDocument.holding": 2,
    "WorkflowActivated.name": "orders",
    "WorkflowApplied.name": "orders",
    "WorkflowDocument.name": "orders",
    "WorkflowSummary.name": "orders",
}
# Bodies of requests, by operation, where the required members alone show too little.
BODIES: Final[dict[str, Any]] = {
    "submitTask": {"workflow": "orders", "context": {"order": 4711, "cents": 1200}, "labels": {"region": "eu"}},
    "submitTasks": {
        "tasks": [
            {"workflow": "orders", "context": {"order": 4711}, "idempotency_key": "order-4711"},
            {"workflow": "orders", "context": {"order": 4712}, "idempotency_key": "order-4712"},
        ]
    },
    "applyWorkflow": {
        "name": "orders",
        "version": "1",
        "steps": [{"name": "pay", "handler_class": "payments.charge", "delivery_mode": "at_most_once"}],
    },
    "cancelTask": {"reason": "the customer withdrew"},
    "retryTask": {"from_step": "pay", "reason": "the bank is back"},
    "resolveStep": {"outcome": "completed", "output": {"receipt": "4711/pay"}, "reason": "found in the bank's book"},
    "drainWorker": {"quit": True},
    "recordBackup": {"file": "backup.db"},
    "setRule": {"match": "default::orders::*", "canary": {"percent": 5, "worker_selector": {"release": "next"}}},
    "leaseSteps": {
        "worker": "shop-1:00c0ffee00c0ffee",
        "n": 1,
        "handlers": ["payments.*"],
        "slots": 4,
        "wait_ms": 20000,
    },
}
# Members of answers that depend on the operation.
ANSWERS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("cancelTask", "200"): {"state": "cancelled"},
    ("checkReadiness", "503"): {"ready": False, "reasons": ["disk_full"], "insecure": []},
    ("getOpenapi", "200"): {"openapi": "3.0.3"},
    ("pauseExecutor", "200"): {"paused_since": _TIME},
    ("pauseTask", "200"): {"state": "paused"},
    ("removeRule", "200"): {"is_set": False},
    ("resumeTask", "200"): {"state": "running"},
    ("retryTask", "200"): {"state": "running"},
}
# The members of a problem without `title` and `status`, by status.
PROBLEMS: Final[dict[int, dict[str, Any]]] = {
    400: {"code": "bad_query", "detail": "`limit` is 'x': it must be a number from 1 to 500"},
    401: {"code": "token_missing", "detail": "the request has no token"},
    403: {"code": "scope_missing", "detail": "the token 'ci' lacks the scope `submit`; its scopes: read"},
    404: {
        "code": "not_found",
        "detail": "there is no task 4711",
        "hint": "GET /v1/tasks lists the tasks; ended tasks are removed after their retention time",
        "next": {"code": "list_tasks"},
    },
    408: {"code": "too_slow", "detail": "the body of the request took too long"},
    409: {"code": "wrong_state", "detail": "task 4711 is already cancelled"},
    410: {"code": "cursor_unknown", "detail": "the event is not in the history"},
    413: {"code": "too_large", "detail": "a context of 2000000 bytes, at most 1048576"},
    415: {"code": "bad_content_type", "detail": "the body must be application/json"},
    421: {
        "code": "other_broker",
        "detail": "the session 7.1 is with the broker b2",
        "hint": "send the call to http://b2.example:7410; if it fails for a lease, lease without a session",
        "url": "http://b2.example:7410",
    },
    422: {"code": "refused_by_database", "detail": "the database refused the data"},
    429: {
        "code": "overloaded",
        "detail": "the token 'ci' has reached a limit: 256 requests at a time",
        "hint": "use fewer parallel requests, or another token",
        "retry_after_ms": 1000,
        "limit": "requests_of_token",
        "owner": "ci",
    },
    500: {"code": "internal", "detail": "the broker failed to answer; its log has the cause"},
    503: {"code": "starting", "detail": "the broker is starting", "retry_after_ms": 1000},
}


def add_to(operation: dict[str, Any], components: dict[str, Schema]) -> None:
    """Add an example to the body of the request and to each answer."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        # In the schema: one generator warns of an example that a body has next to its schema.
        schema = _target(body["schema"], components)
        schema["example"] = BODIES.get(operation["operationId"]) or _example(schema, components)
    for status, response in operation["responses"].items():
        for kind, content in response.get("content", {}).items():
            if kind == "application/json":
                content["example"] = _answer(operation["operationId"], status, content["schema"], components)
            elif kind in ("text/plain", "text/event-stream"):
                content["example"] = TEXTS[operation["operationId"]]


def _answer(operation: str, status: str, schema: Schema, components: dict[str, Schema]) -> Any:
    example = _example(schema, components)
    if "created" in example and status == "200":
        example["created"] = type(example["created"])(False)
    return example | ANSWERS.get((operation, status), {})


TEXTS: Final = {
    "getMetrics": "# TYPE stepwire_steps_ready gauge\nstepwire_steps_ready 3\n",
    "streamEvents": (
        'id: 0.17.1.0\nevent: completed\ndata: {"id":"0.17.1.0","at":"2026-11-18T10:00:01.250Z","kind":"completed",'
        '"task_id":4711,"namespace":"default","workflow":"orders","step_id":4712,"step":"pay"}\n\n'
    ),
    "streamBusMessages": (
        'event: message\ndata: {"at":"2026-11-18T10:00:00.000Z","direction":"in","topic":"b1","bytes":96,'
        '"message":{"type":"heartbeat"}}\n\n'
    ),
}


def _example(schema: Schema, components: dict[str, Schema], name: str = "") -> Any:
    """A value of the schema with the required members. `name`: of the schema, if it is a component."""
    if (target := _target(schema, components)) is not schema:
        return _example(target, components, schema["$ref"].rpartition("/")[2] if "$ref" in schema else name)
    match schema:
        case {"properties": members, "required": required}:
            return {member: _value(f"{name}.{member}", members[member], components) for member in required}
        case {"enum": [first, *_]}:
            return first
        case {"x-tuple": positions}:
            return [_example(each, components) for each in positions]
        case {"type": "array", "items": items}:
            return [_example(items, components)]
        case {"type": kind}:
            return schema.get("minimum", _BY_TYPE[kind])
        case _:
            return None


_TYPES: Final = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_BY_TYPE: Final = {"string": "text", "integer": 1, "number": 1.0, "boolean": False, "object": {}}


def _value(name: str, schema: Schema, components: dict[str, Schema]) -> Any:
    """The value of a member from the table if it fits, since one name may mean two things, or one for its type."""
    target = _target(schema, components)
    for key in (name, name.rpartition(".")[2]):
        value = VALUES.get(key, ...)
        if value is None and (schema.get("nullable") or "type" not in target):
            return None
        if value not in target.get("enum", [value]):
            continue
        if type(value) is _TYPES.get(target.get("type", ""), type(value)) and value is not ...:
            return value
    return _example(schema, components)


def _target(schema: Schema, components: dict[str, Schema]) -> Schema:
    match schema:
        case {"$ref": reference}:
            return components[reference.rpartition("/")[2]]
        case {"allOf": [inner]}:
            return _target(inner, components)
    return schema
