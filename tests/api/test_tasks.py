"""Submitting tasks, showing them, waiting for them and sending commands, with a real broker and a real worker."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from stepwire_broker.api import explaining, reading

from tests.postgres.databases import LANES

from .running_api import WORKFLOW, Api, running, settings_in


def test_a_task_is_found_by_its_key(api: Api) -> None:
    task = submit(api, idempotency_key="order-17")
    rows = api.call("GET", "/v1/tasks?idempotency_key=order-17").json["tasks"]
    assert [(row["task_id"], row["idempotency_key"], row["namespace"]) for row in rows] == [
        (task, "order-17", "default")
    ]
    assert api.call("GET", "/v1/tasks?idempotency_key=order-17&namespace=elsewhere").json["tasks"] == []
    assert api.call("GET", "/v1/tasks?idempotency_key=order-18").json["tasks"] == []


def submit(api: Api, **members: object) -> int:
    answer = api.call("POST", "/v1/tasks", {"workflow": "order", **members})
    assert answer.status == 201, answer
    task_id: int = answer.json["task_id"]
    return task_id


# -- submitting -------------------------------------------------------------------------------------------------------


def test_a_submission_is_answered_with_its_task(api: Api) -> None:
    answer = api.call("POST", "/v1/tasks", {"workflow": "order"})
    assert answer.status == 201
    assert answer.json == {"task_id": answer.json["task_id"], "state": "running", "created": True}


def test_a_submission_with_the_same_key_is_the_same_task(api: Api) -> None:
    body = {"workflow": "order", "context": {"a": 1, "b": 2}, "idempotency_key": "same"}
    first = api.call("POST", "/v1/tasks", body)
    again = api.call("POST", "/v1/tasks", {**body, "context": {"b": 2, "a": 1}})
    assert (first.status, again.status) == (201, 200)
    assert again.json == {"task_id": first.json["task_id"], "state": "running", "created": False}


def test_the_same_key_with_another_body_is_a_conflict(api: Api) -> None:
    first = submit(api, idempotency_key="taken")
    answer = api.call("POST", "/v1/tasks", {"workflow": "order", "idempotency_key": "taken", "context": {"a": 1}})
    assert (answer.status, answer.code) == (409, "key_conflict")
    assert answer.json["detail"] == f"the idempotency key 'taken' belongs to task {first}, which has other content"


@pytest.mark.parametrize("key", ["of-a-header", '"of-a-header"'])
def test_the_key_may_be_a_header(api: Api, key: str) -> None:
    answer = api.call("POST", "/v1/tasks", {"workflow": "order"}, {"Idempotency-Key": key})
    assert answer.status in (200, 201)
    assert api.call("GET", f"/v1/tasks/{answer.json['task_id']}").json["idempotency_key"] == "of-a-header"
    assert api.call("POST", "/v1/tasks", {"workflow": "order", "idempotency_key": "of-a-header"}).status == 200


def test_many_submissions_of_one_key_at_once_make_one_task(api: Api) -> None:
    body = {"workflow": "order", "idempotency_key": "race"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.call("POST", "/v1/tasks", body), range(24)))
    assert len({answer.json["task_id"] for answer in answers}) == 1
    assert sorted(answer.status for answer in answers) == [200] * 23 + [201]


def test_a_submission_of_an_unknown_workflow_is_404(api: Api) -> None:
    answer = api.call("POST", "/v1/tasks", {"workflow": "nothing"})
    assert (answer.status, answer.code) == (404, "not_found")
    assert "nothing" in answer.json["detail"]


def test_a_batch_is_stored_in_its_order(api: Api) -> None:
    tasks = [{"workflow": "order", "context": {"n": n}} for n in range(100)]
    answer = api.call("POST", "/v1/tasks/batch", {"tasks": tasks})
    assert (answer.status, answer.json["created"]) == (201, 100)
    ids = answer.json["task_ids"]
    assert len(set(ids)) == 100
    assert api.call("GET", f"/v1/tasks/{ids[42]}").json["context"] == {"n": 42}


def test_a_batch_is_stored_whole_or_not_at_all(api: Api) -> None:
    before = api.call("GET", "/v1/tasks?limit=1").json["tasks"][0]["task_id"]
    wrong = [{"workflow": "order"}, {"workflow": "nothing"}]
    assert api.call("POST", "/v1/tasks/batch", {"tasks": wrong}).code == "not_found"
    submit(api, idempotency_key="of-one")
    taken = [{"workflow": "order"}, {"workflow": "order", "idempotency_key": "of-one", "priority": 1}]
    assert api.call("POST", "/v1/tasks/batch", {"tasks": taken}).code == "key_conflict"
    page = api.call("GET", "/v1/tasks?limit=2").json["tasks"]
    assert [page[0]["idempotency_key"], page[1]["task_id"]] == ["of-one", before]


def test_a_batch_sent_again_under_its_key_is_the_same_batch(api: Api) -> None:
    body = {"tasks": [{"workflow": "order"}, {"workflow": "order"}]}
    first = api.call("POST", "/v1/tasks/batch", body, {"Idempotency-Key": "whole"})
    again = api.call("POST", "/v1/tasks/batch", body, {"Idempotency-Key": "whole"})
    assert (first.status, again.status) == (201, 200)
    assert again.json == {"task_ids": first.json["task_ids"], "created": 0}


def test_the_number_of_tasks_in_a_batch_is_limited(api: Api) -> None:
    answer = api.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "order"}] * 1001})
    assert (answer.status, answer.code) == (413, "too_large")
    assert api.call("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "order"}] * 1000}).status == 201


# -- looking ----------------------------------------------------------------------------------------------------------


def test_a_task_document_contains_all_of_the_task(api: Api) -> None:
    task_id = submit(
        api,
        context={"amount": 1.5},
        priority=7,
        labels={"region": "eu"},
        idempotency_key="shown",
        deadline_ms=3_600_000,
    )
    task = api.call("GET", f"/v1/tasks/{task_id}").json
    steps = task.pop("steps")
    for name in ("created_at", "deadline_at"):
        at = task.pop(name)
        assert at.endswith("Z")
        assert datetime.fromisoformat(at).tzinfo is not None
    assert task == {
        "task_id": task_id,
        "namespace": "default",
        "workflow": "order",
        "version": "1",
        "state": "running",
        "attention": None,
        "cancelling": False,
        "priority": 7,
        "labels": {"region": "eu"},
        "idempotency_key": "shown",
        "finished_at": None,
        "erased_at": None,
        "cancel": None,
        "context": {"amount": 1.5},
        "result": None,
        "result_omitted": False,
    }
    assert [(step["name"], step["handler_class"], step["state"]) for step in steps] == [
        ("reserve", "shop.reserve", "ready"),
        ("charge", "shop.charge", "waiting"),
    ]
    step = api.call("GET", f"/v1/steps/{steps[0]['step_id']}").json
    assert step == {**steps[0], "attempts": [], "attempts_omitted": 0, "stderr": None}
    assert (step["task_id"], step["attempt"], step["deliveries"], step["worker"], step["output"]) == (
        task_id,
        0,
        0,
        None,
        None,
    )


def test_a_context_comes_back_byte_for_byte(api: Api) -> None:
    text = b'{"workflow":"order","context":{"a":1.50,"b":1E2,"c":"\\u00e9\\n","d":[]}}'
    task_id = api.call("POST", "/v1/tasks", text).json["task_id"]
    assert b'"context":{"a":1.50,"b":1E2,"c":"\\u00e9\\n","d":[]}' in api.call("GET", f"/v1/tasks/{task_id}").body


@pytest.mark.parametrize("path", ["/v1/tasks/999999", "/v1/tasks/999999?wait_ms=5000", "/v1/tasks/0", "/v1/tasks/abc",
                                  "/v1/tasks/-1", "/v1/tasks/%D9%A3", "/v1/tasks/99999999999999999999",
                                  "/v1/steps/999999", "/v1/steps/x"])  # fmt: skip
def test_an_unknown_task_or_step_is_404(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")


def test_pages_follow_each_other_without_gap_or_overlap(api: Api) -> None:
    tasks = [{"workflow": "order", "labels": {"of": "pages"}}] * 25
    ids = api.call("POST", "/v1/tasks/batch", {"tasks": tasks}).json["task_ids"]
    seen, cursor = [], ""
    while True:
        page = api.call("GET", f"/v1/tasks?label=of=pages&limit=10{cursor}").json
        seen += [task["task_id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == sorted(ids, reverse=True)


def test_a_list_is_filtered_by_its_query(api: Api) -> None:
    first = submit(api, labels={"filter": "one"})
    second = submit(api, labels={"filter": "two"})
    since = api.call("GET", f"/v1/tasks/{second}").json["created_at"]
    api.call("POST", f"/v1/tasks/{first}/cancel")

    def found(query: str) -> set[int]:
        return {task["task_id"] for task in api.call("GET", f"/v1/tasks?limit=500&{query}").json["tasks"]}

    assert found("label=filter=one") == {first}
    assert first in found("state=cancelled")
    assert second not in found("state=cancelled")
    assert {first, second} <= found("workflow=order&namespace=default")
    assert found("workflow=other") == set()
    assert second in found(f"since={since}")
    assert found("since=2100-01-01T00:00:00Z") == set()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("stat=failed", "did you mean state?"),
        ("zzz=1", "known members: state, namespace"),
        ("state=done", "one of: pending, running"),
        ("state=running&state=failed", "twice"),
        ("limit=0", "from 1 to 500"),
        ("limit=501", "from 1 to 500"),
        ("limit=", "from 1 to 500"),
        ("limit=%D9%A3", "from 1 to 500"),
        ("cursor=x", "next_cursor"),
        ("label=x", "region=eu"),
        ("since=yesterday", "2026-11-18T10:00:00Z"),
        ("since=2026-11-18T10:00:00", "2026-11-18T10:00:00Z"),
        ("state", "cannot be parsed"),
        ("a=%ff", "cannot be parsed"),
    ],
)
def test_a_wrong_query_is_refused_with_the_member(api: Api, query: str, says: str) -> None:
    answer = api.call("GET", f"/v1/tasks?{query}")
    assert (answer.status, answer.code) == (400, "bad_query")
    assert says in answer.json["detail"] + answer.json.get("hint", "")


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_a_wait_ends_when_the_task_does(served: Api) -> None:
    task = served.call("GET", f"/v1/tasks/{submit(served)}?wait_ms=20000").json
    assert task["state"] == "completed"
    assert [step["state"] for step in task["steps"]] == ["completed", "completed"]
    assert [step["output"] for step in task["steps"]] == [{"seats": 2}, {"total": 1.5}]
    assert task["finished_at"] >= task["created_at"]


def test_a_wait_for_an_ended_task_ends_at_once(served: Api) -> None:
    task_id = submit(served)
    first = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json
    assert served.call("GET", f"/v1/tasks/{task_id}?wait_ms=300000").json == first


def test_a_small_task_read_on_the_loop_is_the_same_document(served: Api) -> None:
    task_id = submit(served)
    told = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").body
    read = served.on_loop(lambda: explaining.small_task(served.broker, task_id, True))
    assert told == served.call("GET", f"/v1/tasks/{task_id}").body
    # The answer of a server always takes a wait, so nothing is read from it on the loop.
    assert (None if read is None else read.document) == (None if LANES else told)


def test_a_running_or_large_task_is_not_read_on_the_loop(
    api: Api, served: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = submit(api)
    assert api.on_loop(lambda: explaining.small_task(api.broker, runs, True)) is None
    ended = submit(served)
    served.call("GET", f"/v1/tasks/{ended}?wait_ms=20000")
    monkeypatch.setattr(reading, "SMALL_BYTES_MAX", 10)
    assert served.on_loop(lambda: explaining.small_task(served.broker, ended, True)) is None
    steps = served.call("GET", f"/v1/tasks/{ended}?wait_ms=20000").json["steps"]
    assert [step["output"] for step in steps] == [{"seats": 2}, {"total": 1.5}]


def test_a_wait_reads_the_task_only_after_the_core_has_its_command(api: Api) -> None:
    """Otherwise the end of a task between the two would be missed."""
    task_id = submit(api)
    api.broker.heard.clear()
    api.call("GET", f"/v1/tasks/{task_id}?wait_ms=1")
    assert list(api.broker.heard)[:2] == ["ask", "read"]


def test_a_wait_ends_after_its_time(api: Api) -> None:
    assert api.call("GET", f"/v1/tasks/{submit(api)}?wait_ms=1").json["state"] == "running"
    assert api.call("GET", f"/v1/tasks/{submit(api)}?wait_ms=0").json["state"] == "running"


def test_a_wait_ends_when_the_task_is_cancelled(api: Api) -> None:
    task_id = submit(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.call, "GET", f"/v1/tasks/{task_id}?wait_ms=20000")
        assert api.call("POST", f"/v1/tasks/{task_id}/cancel").status == 200
        assert waiting.result(20).json["state"] == "cancelled"


def test_the_wait_of_a_disconnected_client_is_forgotten(api: Api) -> None:
    task_id = submit(api)
    connection = api.raw()
    connection.sendall(
        f"GET /v1/tasks/{task_id}?wait_ms=300000 HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {api.token}\r\n\r\n".encode()
    )
    assert eventually(api, lambda: is_awaited(api, task_id))
    connection.close()
    assert eventually(api, lambda: not is_awaited(api, task_id))


@pytest.mark.parametrize("wait_ms", ["-1", "x", "300001", ""])
def test_a_wait_is_a_number_of_milliseconds(api: Api, wait_ms: str) -> None:
    assert api.call("GET", f"/v1/tasks/1?wait_ms={wait_ms}").code == "bad_query"
    body = {"workflow": "order", "idempotency_key": "never stored"}
    assert api.call("POST", f"/v1/tasks?wait_ms={wait_ms}", body).code == "bad_query"


def test_a_submission_may_wait_for_its_task(served: Api) -> None:
    body = {"workflow": "order", "idempotency_key": "waited-for"}
    answer = served.call("POST", "/v1/tasks?wait_ms=20000", body)
    assert (answer.status, answer.json["state"], answer.json["created"]) == (201, "completed", True)
    task_id = answer.json["task_id"]
    assert answer.json["task"] == served.call("GET", f"/v1/tasks/{task_id}").json
    again = served.call("POST", "/v1/tasks?wait_ms=20000", body)
    assert (again.status, again.json) == (200, {**answer.json, "created": False})


def test_a_submission_that_waits_is_answered_when_its_task_is_held_or_the_time_is_over(api: Api, served: Api) -> None:
    answer = served.call("POST", "/v1/tasks?wait_ms=300000", {"workflow": "order", "context": {"network": "down"}})
    assert (answer.status, answer.json["state"], answer.json["task"]["attention"]) == (201, "running", "held")
    answer = api.call("POST", "/v1/tasks?wait_ms=1", {"workflow": "order"})
    assert (answer.status, answer.json["state"], answer.json["task"]["state"]) == (201, "running", "running")


def test_a_submission_stays_when_its_waiting_client_disconnects(api: Api) -> None:
    body = b'{"workflow": "order", "idempotency_key": "left-alone"}'
    connection = api.raw()
    connection.sendall(
        b"POST /v1/tasks?wait_ms=300000 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + f"Authorization: Bearer {api.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert eventually(api, lambda: len(api.broker.state.waiters) == 1)
    connection.close()
    assert eventually(api, lambda: not api.broker.state.waiters)
    assert api.call("POST", "/v1/tasks", {"workflow": "order", "idempotency_key": "left-alone"}).status == 200


def test_a_wait_ends_with_the_server(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with ThreadPoolExecutor(1) as pool:
        with running(tmp_path, settings_in(tmp_path)) as api:
            assert api.call("POST", "/v1/workflows", WORKFLOW).status == 201
            task_id = submit(api)
            waiting = pool.submit(api.call, "GET", f"/v1/tasks/{task_id}?wait_ms=300000")
            assert eventually(api, lambda: is_awaited(api, task_id))
        answer = waiting.result(20)
    assert (answer.status, answer.json["state"]) == (200, "running")


def is_awaited(api: Api, task_id: int) -> bool:
    """True if a client of the broker waits for this task, which may be another broker's."""
    return task_id in api.broker.state.waiters or task_id in api.broker.core_loop.elsewhere.awaited


def eventually(api: Api, condition: object) -> bool:
    """Check once per turn of the event loop, for at most 10,000 turns."""
    return any(api.on_loop(condition) for _ in range(10_000))  # type: ignore[arg-type]


# -- orders -----------------------------------------------------------------------------------------------------------


def test_a_command_is_answered_with_the_task_after_it(api: Api) -> None:
    task_id = submit(api)
    for order, state in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled"), ("retry", "running")]:
        answer = api.call("POST", f"/v1/tasks/{task_id}/{order}")
        assert (answer.status, answer.json) == (200, {"task_id": task_id, "state": state, "attention": None})
        assert api.call("GET", f"/v1/tasks/{task_id}").json["state"] == state


@pytest.mark.parametrize("order", ["cancel", "pause", "resume"])
def test_a_command_on_an_ended_task_is_refused(api: Api, order: str) -> None:
    task_id = submit(api)
    api.call("POST", f"/v1/tasks/{task_id}/cancel", {"reason": "wrong customer"})
    answer = api.call("POST", f"/v1/tasks/{task_id}/{order}", {})
    assert (answer.status, answer.code) == (409, "wrong_state")


@pytest.mark.parametrize("order", ["cancel", "pause", "resume", "retry"])
def test_a_command_on_an_unknown_task_is_404(api: Api, order: str) -> None:
    assert api.call("POST", f"/v1/tasks/999999/{order}").code == "not_found"


@pytest.mark.parametrize(
    ("order", "body"),
    [("cancel", {"raeson": "x"}), ("pause", {"reason": "x"}), ("retry", {"from": "x"}), ("retry", [])],
)
def test_a_command_with_unknown_members_is_refused(api: Api, order: str, body: object) -> None:
    assert api.call("POST", f"/v1/tasks/{submit(api)}/{order}", body).status == 400


# -- held steps -------------------------------------------------------------------------------------------------------


def held(api: Api) -> tuple[int, int]:
    """A task that depends on a held step, and that step."""
    task_id = submit(api, context={"network": "down"})
    task = api.call("GET", f"/v1/tasks/{task_id}?wait_ms=300000").json
    assert (task["state"], task["attention"]) == ("running", "held")
    return task_id, task["steps"][1]["step_id"]


def test_a_wait_ends_when_the_task_depends_on_a_held_step(served: Api) -> None:
    task_id, step_id = held(served)
    step = served.call("GET", f"/v1/steps/{step_id}").json
    assert (step["state"], step["deliveries"]) == ("held", 1)
    assert step["reason"]["message"]
    assert step["reason"]["since"].endswith("Z")
    assert served.call("GET", f"/v1/tasks/{task_id}?wait_ms=300000").json["attention"] == "held"
    listed = served.call("GET", "/v1/steps?state=held&handler_class=shop.*").json["steps"]
    assert step_id in [one["step_id"] for one in listed]
    assert served.call("GET", "/v1/steps?state=held&handler_class=shop.reserve").json["steps"] == []


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"outcome": "completed", "output": {"total": 2.50}}, "completed"),
        ({"outcome": "failed", "message": "the bank says no"}, "failed"),
    ],
)
def test_a_held_step_gets_the_outcome_that_an_operator_sets(served: Api, said: dict[str, object], state: str) -> None:
    task_id, step_id = held(served)
    answer = served.call("POST", f"/v1/steps/{step_id}/resolve", {**said, "reason": "asked the bank"})
    assert answer.status == 200, answer
    task = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json
    assert (task["state"], task["steps"][1]["state"], task["attention"]) == (state, state, None)
    assert state == "completed" or task["steps"][1]["reason"]["code"] == "resolved_failed"


def test_the_reason_of_a_failed_step_is_one_of_the_declared_codes_whatever_its_handler_reports(served: Api) -> None:
    task_id = submit(served, context={"card": "declined"})
    step = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=300000").json["steps"][1]
    assert step["error"]["code"] == "card_declined"
    assert step["reason"]["code"] == "handler_error"
    assert step["reason"]["message"] == "the handler failed the step with the code card_declined"


def test_the_reason_of_a_skipped_step_names_the_dependency_or_the_rule(served: Api) -> None:
    failing = {"name": "charge", "handler_class": "shop.charge", "retry_limit": 0}
    after = {"handler_class": "shop.reserve", "depends_on": ["charge"]}
    steps = [failing, {"name": "ship", **after}, {"name": "thank", **after, "trigger_rule": {"completed": "charge"}}]
    assert served.call("POST", "/v1/workflows", {"name": "skips", "steps": steps}).status == 201
    body = {"workflow": "skips", "context": {"card": "declined"}}
    task_id = served.call("POST", "/v1/tasks", body).json["task_id"]
    (_, ship, thank) = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=300000").json["steps"]
    for step, message in ((ship, "`charge` failed"), (thank, "its trigger rule is false")):
        assert (step["state"], step["reason"]["code"], step["reason"]["message"]) == ("skipped", "skipped", message)
        alone = served.call("GET", f"/v1/steps/{step['step_id']}").json
        assert alone["reason"] == step["reason"]


def test_a_resolution_needs_a_reason_and_a_held_step(served: Api) -> None:
    task_id, step_id = held(served)
    assert served.call("POST", f"/v1/steps/{step_id}/resolve", {"outcome": "retry"}).status == 400
    first = served.call("GET", f"/v1/tasks/{task_id}").json["steps"][0]["step_id"]
    answer = served.call("POST", f"/v1/steps/{first}/resolve", {"outcome": "retry", "reason": "r"})
    assert (answer.status, answer.code) == (409, "wrong_state")
    answer = served.call("POST", "/v1/steps/999999/resolve", {"outcome": "retry", "reason": "r"})
    assert (answer.status, answer.code) == (404, "not_found")


def test_a_worker_is_listed(served: Api) -> None:
    served.call("GET", f"/v1/tasks/{submit(served)}?wait_ms=20000")
    body = served.call("GET", "/v1/workers").json
    assert (body["broker"], body["epoch"]) == ("b1", served.broker.epoch)
    (worker,) = body["workers"]
    assert worker["worker"].startswith("w:")
    assert worker["handlers"] == ["shop.reserve", "shop.charge"]
    assert worker["since"].endswith("Z")
