"""The rows that requests leave in the audit, and the routes that show them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.api import audit_notes
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.api.token import Grant, add_token, revoke_token
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.store.stored_audit import verify

from tests.postgres.databases import state_of

from .running_api import WORKFLOW, Api, running, settings_in

CHANGING = [(m, p) for (m, p), said in OPERATIONS.items() if said.scope in (Scope.OPERATE, Scope.ADMIN) and m != "GET"]
REASON = "because of the test"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    tmp_path.chmod(0o700)
    with running(tmp_path, settings_in(tmp_path)) as found:
        assert found.call("POST", "/v1/workflows", WORKFLOW).status == 201
        yield found


def rows(api: Api, **filters: str) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    answer = api.call("GET", f"/v1/audit?{query}")
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json["rows"]
    return found


def task(api: Api) -> int:
    number: int = api.call("POST", "/v1/tasks", {"workflow": "order"}).json["task_id"]
    return number


def cancelled(api: Api) -> int:
    number = task(api)
    assert api.call("POST", f"/v1/tasks/{number}/cancel").status == 200
    return number


def rule(api: Api) -> None:
    assert api.call("POST", "/v1/rules", {"match": "default::order::*", "executor": "bus"}).status == 200


Call = tuple[str, Any, str, str]  # path, body, action, target
CALLS: dict[str, Callable[[Api], Call]] = {
    "/v1/tasks/{task_id}/cancel": lambda api: (
        f"/v1/tasks/{(n := task(api))}/cancel", {"reason": REASON}, "cancel_task", f"task {n}"
    ),
    "/v1/tasks/{task_id}/pause": lambda api: (
        f"/v1/tasks/{(n := task(api))}/pause", None, "pause_task", f"task {n}"
    ),
    "/v1/tasks/{task_id}/resume": lambda api: (
        f"/v1/tasks/{(n := task(api))}/resume", None, "resume_task", f"task {n}"
    ),
    "/v1/tasks/{task_id}/retry": lambda api: (
        f"/v1/tasks/{(n := cancelled(api))}/retry", {"reason": REASON}, "retry_task", f"task {n}"
    ),
    "/v1/executors/{executor}/pause": lambda api: ("/v1/executors/bus/pause", None, "pause_executor", "executor bus"),
    "/v1/executors/{executor}/resume": lambda api: (
        "/v1/executors/bus/resume", None, "resume_executor", "executor bus"
    ),
    "/v1/rules": lambda api: (
        "/v1/rules", {"match": "a::b::c", "executor": "bus"}, "set_rule", "rule a::b::c"
    ),
    "/v1/rules/remove": lambda api: (
        rule(api), ("/v1/rules/remove", {"match": "default::order::*"}, "remove_rule", "rule default::order::*")
    )[1],
    "/v1/breakers/{handler_class}": lambda api: (
        "/v1/breakers/shop.charge", {"state": "open", "reason": REASON}, "set_breaker", "handler shop.charge"
    ),
    "/v1/workflows": lambda api: (
        "/v1/workflows", WORKFLOW | {"version": "2"}, "apply_workflow", "workflow default::order 2"
    ),
    "/v1/workflows/{name}/activate": lambda api: (
        f"/v1/workflows/order/activate?version={WORKFLOW['version']}",
        None,
        "activate_workflow",
        f"workflow default::order {WORKFLOW['version']}",
    ),
    "/v1/tasks/{task_id}/erase": lambda api: (
        f"/v1/tasks/{(n := cancelled(api))}/erase", {"reason": REASON}, "erase_task", f"task {n}"
    ),
    "/v1/database/finish-erasures": lambda api: ("/v1/database/finish-erasures", None, "finish_erasures", ""),
    "/v1/database/prune": lambda api: ("/v1/database/prune", None, "prune_database", ""),
    "/v1/database/backups": lambda api: (
        "/v1/database/backups", {"file": "b.db"}, "backup_database", "file b.db"
    ),
}  # fmt: skip
# Their effects need a worker, so the core's tests show their rows: tests/core/test_audit.py.
OF_WORKERS = {"/v1/steps/{step_id}/resolve", "/v1/workers/{worker}/drain"}
# It needs a second broker: tests/cli/test_brokers.py.
OF_BROKERS = {"/v1/lanes/{lane}/move"}


def test_every_changing_operation_of_operators_is_called_here() -> None:
    assert {path for _, path in CHANGING} == CALLS.keys() | OF_WORKERS | OF_BROKERS


@pytest.mark.parametrize(("method", "path"), [one for one in CHANGING if one[1] not in OF_WORKERS | OF_BROKERS])
def test_a_changing_operation_leaves_exactly_one_row_with_its_author(api: Api, method: str, path: str) -> None:
    token = add_token(api.tokens.file, Grant("the-operator", frozenset({Scope.ADMIN})))
    api.on_loop(api.tokens.reload)
    call, body, action, target = CALLS[path](api)
    before = rows(api)
    answer = api.call(method, call, body, {"Authorization": f"Bearer {token}"})
    assert answer.status in (200, 201, 202), answer
    added = [row for row in rows(api) if row not in before and row["principal"] != "process"]
    assert len(added) == 1
    (row,) = added
    shown = (row["principal"], row["via"], row["action"], row["target"])
    assert shown == ("the-operator", "token", action, target)
    assert row["outcome"] in ("done", "unchanged")
    assert row["reason"] == (body or {}).get("reason", "")
    assert row["request_id"]
    assert row["n"] > max((each["n"] for each in before if each["lane"] == row["lane"]), default=0)


def test_a_refused_attempt_leaves_one_row_a_minute_for_each_principal(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_notes, "MINUTE_MS", 10**15)
    token = add_token(api.tokens.file, Grant("reader", frozenset({Scope.READ})))
    api.on_loop(api.tokens.reload)
    for _ in range(3):
        assert api.call("POST", "/v1/tasks/1/cancel", headers={"Authorization": f"Bearer {token}"}).status == 403
        assert api.call("POST", "/v1/tasks/999/cancel").status == 404
    cancelled(api)  # its answer waits for the rows
    refused = rows(api, outcome="refused")
    assert [(row["principal"], row["action"], row["detail"]["status"]) for row in refused] == [
        (api.tokens.admit(api.token.encode()).author, "cancelTask", 404),  # type: ignore[union-attr]
        ("reader", "cancelTask", 403),
    ]


def test_reads_of_payloads_leave_one_row_a_minute_for_each_principal_and_namespace(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_notes, "MINUTE_MS", 10**15)
    secret = {"card": "4111-1111"}
    number = api.call("POST", "/v1/tasks", {"workflow": "order", "context": secret}).json["task_id"]
    shown = api.call("GET", f"/v1/tasks/{number}").json
    api.call("GET", f"/v1/steps/{shown['steps'][0]['step_id']}")
    cancelled(api)  # its answer waits for the row
    (row,) = rows(api, action="read_payloads")
    assert (row["target"], row["detail"]) == ("namespace default", {"task": number})
    assert "4111-1111" not in str(rows(api))


def test_a_submission_that_waits_for_its_task_is_a_read_of_its_payloads(api: Api) -> None:
    assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
    cancelled(api)  # its answer would wait for a row
    assert rows(api, action="read_payloads") == []
    number = api.call("POST", "/v1/tasks?wait_ms=0", {"workflow": "order"}).json["task_id"]
    cancelled(api)  # its answer waits for the row
    (row,) = rows(api, action="read_payloads")
    assert (row["target"], row["detail"]) == ("namespace default", {"task": number})


def test_a_read_without_payloads_leaves_no_row(api: Api) -> None:
    token = add_token(api.tokens.file, Grant("reader", frozenset({Scope.READ})))
    api.on_loop(api.tokens.reload)
    assert api.call("GET", f"/v1/tasks/{task(api)}", headers={"Authorization": f"Bearer {token}"}).status == 200
    cancelled(api)  # its answer would wait for the row
    assert rows(api, action="read_payloads") == []


def test_a_changed_token_file_leaves_a_row_for_each_changed_token(api: Api) -> None:
    def noticed() -> None:
        api.tokens.reload()
        audit_notes.AuditNotes(api.broker).tokens_changed(api.tokens.take_changes())

    add_token(api.tokens.file, Grant("ci", frozenset({Scope.SUBMIT})))
    api.on_loop(noticed)
    revoke_token(api.tokens.file, "ci")
    api.on_loop(noticed)
    cancelled(api)  # its answer waits for the rows
    found = [(row["action"], row["via"], row["detail"]["scopes"]) for row in rows(api, target="token+ci")]
    assert found == [("token_revoked", "file", ["submit"]), ("token_added", "file", ["submit"])]


def test_pages_of_the_audit_join_without_a_gap(api: Api) -> None:
    for _ in range(5):
        cancelled(api)
    whole = rows(api)
    joined, cursor = [], ""
    while True:
        page = api.call("GET", f"/v1/audit?limit=2{cursor}").json
        joined += page["rows"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert joined == whole
    for lane in {row["lane"] for row in whole}:
        numbers = [row["n"] for row in whole if row["lane"] == lane]
        assert numbers == list(range(len(numbers), 0, -1))


def test_the_head_is_the_last_row_and_the_chain_is_complete(api: Api) -> None:
    cancelled(api)
    heads = api.call("GET", "/v1/audit/head").json["heads"]
    newest = rows(api)[0]
    assert (newest["lane"], newest["n"], newest["hash"]) in [(head["lane"], head["n"], head["hash"]) for head in heads]
    with state_of(api.broker.settings.database) as state:
        assert list(verify(state)) == []


@pytest.mark.parametrize("query", ["cursor=x", "cursor=1", "since=yesterday", "limit=0", "who=me"])
def test_a_wrong_query_of_the_audit_is_refused(api: Api, query: str) -> None:
    answer = api.call("GET", f"/v1/audit?{query}")
    assert (answer.status, answer.code) == (400, "bad_query")
