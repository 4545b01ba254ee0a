"""Events arrive in order and once, from any position."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from stepwire_broker.api import events

from .running_api import WORKFLOW, Api, running, settings_in


class Until(Protocol):
    """Returns all events up to the expected one. `cursors`: the lines `id:` of all events so far."""

    cursors: list[str]

    def __call__(self, is_it: Callable[[Any], bool], /) -> list[Any]: ...


@contextmanager
def following(api: Api, query: str = "", last_id: str | None = None) -> Iterator[Until]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    headers = {"Authorization": f"Bearer {api.token}"} | ({"Last-Event-ID": last_id} if last_id else {})
    connection.request("GET", f"/v1/events{query}", headers=headers)
    answer = connection.getresponse()
    try:
        assert answer.status == 200, answer.read()
        assert answer.getheader("Content-Type") == "text/event-stream"
        assert answer.readline() == b": the events\n"
        assert answer.readline().startswith(b"id: ")

        def until(is_it: Callable[[Any], bool]) -> list[Any]:
            told: list[Any] = []
            cursor = ""
            while not (told and is_it(told[-1])):
                line = answer.readline()
                assert line, "the stream ended"
                if line.startswith(b"id: "):
                    cursor = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    told.append(json.loads(line[6:]))
                    found.cursors.append(cursor)
            return told

        found = cast(Until, until)
        found.cursors = []
        yield found
    finally:
        connection.close()


def ended(task_id: int) -> Callable[[Any], bool]:
    return lambda event: event["task_id"] == task_id and event["kind"] == "ended"


def run(api: Api, **members: object) -> int:
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": "order", **members}).json["task_id"]
    api.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000")
    return task_id


def test_the_events_of_a_task_begin_with_its_submission_and_end_with_its_end(served: Api) -> None:
    with following(served) as until:
        task_id = run(served)
        told = until(ended(task_id))
    assert [(event["kind"], event.get("step")) for event in told if event["kind"] not in ("started", "granted")] == [
        ("submitted", None),
        ("readied", "reserve"),
        ("dispatched", "reserve"),
        ("completed", "reserve"),
        ("readied", "charge"),
        ("dispatched", "charge"),
        ("completed", "charge"),
        ("ended", None),
    ]
    first, last = told[0], told[-1]
    assert (first["namespace"], first["workflow"], first["state"]) == ("default", "order", "running")
    assert last["state"] == "completed"
    assert all(event["at"].endswith("Z") for event in told)
    dispatched = next(event for event in told if event["kind"] == "dispatched")
    assert (dispatched["step_id"], dispatched["delivery"]) == (task_id + 1, 1)
    assert dispatched["worker"].startswith("w:")
    assert len({event["id"] for event in told}) == len(told)
    assert served.call("GET", f"/v1/tasks/{task_id}/events").json == {"events": told, "next_cursor": None}


def test_a_client_that_reconnects_after_any_event_gets_the_next_one(served: Api) -> None:
    with following(served) as until:
        task_id = run(served)
        told = until(ended(task_id))
        cursors = until.cursors
    for number in range(len(told) - 1):
        with following(served, last_id=cursors[number]) as until:
            assert until(ended(task_id)) == told[number + 1 :]
        with following(served, f"?after={cursors[number]}") as until:
            assert until(ended(task_id)) == told[number + 1 :]
    with following(served, "?after=0") as until:
        everything = until(ended(task_id))
    assert everything[-len(told) :] == told


def test_pages_of_any_length_contain_the_same_events(served: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = run(served)
    whole = served.call("GET", f"/v1/tasks/{task_id}/events?limit=500").json["events"]
    for limit in range(1, len(whole) + 1):
        told, cursor = [], "0"
        while cursor is not None:
            page = served.call("GET", f"/v1/tasks/{task_id}/events?limit={limit}&cursor={cursor}").json
            assert len(page["events"]) <= limit
            told += page["events"]
            cursor = page["next_cursor"]
        assert told == whole
    for events_max, rows_max in [(1, 500), (500, 2), (3, 2)]:
        monkeypatch.setattr(events, "PAGE_EVENTS", events_max)
        monkeypatch.setattr(events, "PAGE_ROWS", rows_max)
        with following(served, f"?after=0&task_id={task_id}") as until:
            assert until(ended(task_id)) == whole


def test_a_filter_selects_events(served: Api) -> None:
    other = {"name": "other", "namespace": "n", "steps": [{"name": "a", "handler_class": "shop.reserve"}]}
    assert served.call("POST", "/v1/workflows", other).status in (200, 201)
    with (
        following(served, "?kind=ended,held") as of_kind,
        following(served, "?workflow=other") as of_workflow,
        following(served, "?namespace=n&kind=completed") as of_namespace,
    ):
        first = run(served)
        task_id = run(served, workflow="other", namespace="n")
        last = run(served)
        with following(served, f"?task_id={task_id}&after=0") as of_task:
            assert {event["task_id"] for event in of_task(ended(task_id))} == {task_id}
        assert [(event["task_id"], event["kind"]) for event in of_kind(ended(last))] == [
            (first, "ended"),
            (task_id, "ended"),
            (last, "ended"),
        ]
        assert {event["workflow"] for event in of_workflow(ended(task_id))} == {"other"}
        (told,) = of_namespace(lambda event: event["kind"] == "completed")
        assert (told["task_id"], told["step"]) == (task_id, "a")


def test_commands_and_their_effects_are_events(served: Api) -> None:
    task_id = run(served, context={"network": "down"})
    said = {"outcome": "failed", "message": "no", "reason": "asked the bank"}
    assert served.call("POST", f"/v1/steps/{task_id + 2}/resolve", said).status == 200
    told = served.call("GET", f"/v1/tasks/{task_id}/events").json["events"]
    by_kind = {event["kind"]: event for event in told}
    assert by_kind["held"]["code"] == "outcome_unknown"
    assert [event["attention"] for event in told if event["kind"] == "noticed"] == ["held", None]
    assert (by_kind["operated"]["action"], by_kind["operated"]["reason"]) == ("resolve_failed", "asked the bank")
    assert by_kind["operated"]["step"] == "charge"
    assert by_kind["ended"]["state"] == "failed"


def test_no_event_is_sent_before_its_commit(api: Api) -> None:
    """While the writer is blocked, decisions of the core are not visible."""
    with following(api) as until:
        held: list[Any] = []
        put = api.broker._store.put  # type: ignore[union-attr]
        api.on_loop(lambda: setattr(api.broker._store, "put", held.append))
        waiting = api.raw()
        body = b'{"workflow":"order"}'
        waiting.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Authorization: Bearer {api.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert any(api.on_loop(lambda: bool(held)) for _ in range(10_000))
        before = api.call("GET", "/v1/tasks?limit=1").json["tasks"]
        task_id = next(iter(api.on_loop(lambda: list(api.broker.state.tasks))[::-1]))
        assert task_id not in [task["task_id"] for task in before]
        assert api.call("GET", f"/v1/tasks/{task_id}/events").status == 404
        api.on_loop(lambda: (setattr(api.broker._store, "put", put), put(held[0])))
        told = until(lambda event: event["kind"] == "submitted")
        assert told[-1]["task_id"] == task_id
        waiting.close()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?kind=nothing", "bad_query"),
        ("?kind=", "bad_query"),
        ("?task_id=x", "bad_query"),
        ("?after=x", "bad_query"),
        ("?after=1.2.3", "bad_query"),
        ("?after=1.2.3.4,", "bad_query"),
        ("?after=" + "1.1.1.1," * 1000 + "1.1.1.1", "bad_query"),
        ("?after=1.99999999.0.0", "cursor_unknown"),
        ("?after=77.1.0.0", "cursor_unknown"),
        ("?until=1", "bad_query"),
    ],
)
def test_an_invalid_filter_is_refused_before_the_stream_begins(api: Api, query: str, code: str) -> None:
    assert api.call("GET", f"/v1/events{query}").code == code


def test_the_events_of_an_unknown_task_are_not_found(api: Api) -> None:
    assert api.call("GET", "/v1/tasks/999999/events").code == "not_found"
    assert api.call("GET", "/v1/tasks/1/events?cursor=x").code == "bad_query"


def test_the_number_of_followers_is_limited_and_one_that_disconnects_frees_its_place(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CLIENTS_MAX", 1)
    with following(api):
        assert api.call("GET", "/v1/events").code == "too_many_followers"
    assert any(api.on_loop(lambda: not api.broker.core_loop.commit_listeners) for _ in range(10_000))
    with following(api):
        pass


def test_a_stream_without_events_sends_comments_with_a_position(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.01)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {api.token}"})
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(6)]
    assert lines[3] == b": keep-alive\n"
    assert lines[4] == lines[1]
    last_id = lines[4][4:].strip().decode()
    task_id = api.call("POST", "/v1/tasks", {"workflow": "order"}).json["task_id"]
    connection.close()
    with following(api, last_id=last_id) as until:
        told = until(lambda event: event["kind"] == "readied")
    assert [event["task_id"] for event in told] == [task_id] * 2


def test_a_stream_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = settings_in(tmp_path)
    with running(tmp_path, settings) as api:
        assert api.call("POST", "/v1/workflows", WORKFLOW).status == 201
        with following(api) as until:
            task_id = api.call("POST", "/v1/tasks", {"workflow": "order"}).json["task_id"]
            until(lambda event: event["kind"] == "readied")
            last_id = until.cursors[-1]
    with running(tmp_path, settings) as api:
        assert api.call("POST", f"/v1/tasks/{task_id}/cancel").status == 200
        with following(api, last_id=last_id) as until:
            told = until(ended(task_id))
    assert [event["kind"] for event in told] == ["cancel_asked", "cancelled", "cancelled", "ended"]
