"""`/v1/tap`: messages of the bus are shown, dropped ones are counted, and disconnected clients are removed."""

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stepwire_broker.api import tap

from .running_api import Api


@contextmanager
def tapped(api: Api, query: str = "") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("GET", f"/v1/tap{query}", headers={"Authorization": f"Bearer {api.token}"})
    try:
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("Content-Type") == "text/event-stream"
        assert answer.readline() == b": the messages of the bus\n"
        yield answer
    finally:
        connection.close()


def messages(answer: http.client.HTTPResponse, until: Callable[[Any], bool]) -> list[Any]:
    """The messages up to the expected one."""
    seen = []
    while not (seen and until(seen[-1])):
        line = answer.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            seen.append(json.loads(line[6:]))
    return seen


def kind(message: Any) -> str | None:
    body = message.get("message")
    return body.get("type") if isinstance(body, dict) else None


def submit(api: Api, **members: object) -> int:
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": "order", **members}).json["task_id"]
    return task_id


def test_the_tap_shows_the_messages_of_a_task(served: Api) -> None:
    with tapped(served) as answer:
        task_id = submit(served)
        seen = messages(answer, lambda message: kind(message) == "ack")
    steps = next(message for message in seen if kind(message) == "steps")
    assert (steps["direction"], steps["topic"][:3]) == ("out", "@w:")
    assert steps["message"]["steps"][0]["task_id"] == task_id
    assert steps["at"].endswith("Z")
    assert "results" in [kind(message) for message in seen if message["direction"] == "in"]


def test_the_tap_filters_by_topic(served: Api) -> None:
    with tapped(served, "?topic=results*") as answer:
        submit(served)
        seen = messages(answer, lambda message: kind(message) == "results")
    assert all(message["topic"].startswith("results") for message in seen)


def test_the_tap_filters_by_task(served: Api) -> None:
    task_id = submit(served, context={"network": "down"})
    task = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json
    step_ids = {step["step_id"] for step in task["steps"]}
    with tapped(served, f"?task={task_id}") as answer:
        served.call("GET", f"/v1/tasks/{submit(served)}?wait_ms=20000")  # another one, which passes unseen
        order = {"outcome": "retry", "reason": "once more"}
        assert served.call("POST", f"/v1/steps/{task['steps'][1]['step_id']}/resolve", order).status == 200
        seen = messages(answer, lambda message: kind(message) == "results")
    for message in seen:
        body = json.dumps(message["message"])
        assert any(str(number) in body for number in step_ids), message


@pytest.mark.parametrize(
    ("query", "status"), [("?task=x", 400), ("?task=999999", 404), ("?tpoic=x", 400), ("?topic=*****", 400)]
)
def test_an_invalid_tap_filter_is_refused_before_the_stream_begins(api: Api, query: str, status: int) -> None:
    assert api.call("GET", f"/v1/tap{query}").status == status


def test_a_disconnected_client_is_removed(api: Api) -> None:
    with tapped(api):
        pass
    assert any(api.on_loop(lambda: not api.broker.core_loop.taps.are_open) for _ in range(10_000))


def test_the_number_of_tap_clients_is_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "CLIENTS_MAX", 1)
    assert any(api.on_loop(lambda: not api.broker.core_loop.taps.are_open) for _ in range(10_000))
    with tapped(api):
        answer = api.call("GET", "/v1/tap")
        assert (answer.status, answer.code) == (429, "too_many_taps")


def test_a_client_that_is_too_slow_receives_the_number_of_dropped_messages(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "QUEUE_MAX", 3)
    with tapped(api) as answer:
        assert any(api.on_loop(lambda: api.broker.core_loop.taps.are_open) for _ in range(10_000))

        def flood() -> None:
            for n in range(10):
                api.broker.core_loop.taps.show("in", b"results ", b"%d" % n, None)

        api.on_loop(flood)
        seen = messages(answer, lambda message: "dropped" in message)
    assert [message.get("message", message.get("dropped")) for message in seen] == [0, 1, 2, 7]


# -- the queue of one client, without a client ------------------------------------------------------------------------


def taken(*puts: tuple[str, bytes, bytes, str | None]) -> tuple[list[tap.TapEntry], int]:
    async def take() -> tuple[list[tap.TapEntry], int]:
        queue = tap.Queue()
        for put in puts:
            queue.put(*put, None)
        return await queue.take(0)

    return asyncio.run(take())


def test_messages_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "QUEUE_MAX", 3)
    seen, dropped = taken(*[("in", b"results ", b"%d" % n, None) for n in range(10)])
    assert ([one.body for one in seen], dropped) == ([b"0", b"1", b"2"], 7)


def test_the_bytes_in_the_queue_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "QUEUE_BYTES_MAX", 10)
    seen, dropped = taken(*[("in", b"results ", b"x" * 8, None)] * 10)
    assert (len(seen), dropped) == (2, 8)


def test_a_queue_without_messages_returns_nothing_and_drops_nothing() -> None:
    assert taken() == ([], 0)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a": 1}', {"message": {"a": 1}}),
        (b'{"a":\n"\\n"}', {"message": {"a": "\n"}}),
        (b"no json", {"text": "no json"}),
        (b"\xff\xfe", {"text": "\ufffd\ufffd"}),
        (b"[" * 5000, {"text": "[" * 4096}),
        (b'{"a":"' + b"x" * 5000 + b'"}', {"text": '{"a":"' + "x" * 4090}),
        (b"", {"text": ""}),
    ],
)
def test_a_message_is_one_line_of_json_with_any_content(body: bytes, shown: dict[str, Any]) -> None:
    line = tap._event(b"message", tap.encode(tap._message(tap.TapEntry(0.0, "in", b"results@b1 ", body, "not_json"))))
    assert line.count(b"\n") == 3
    decoded = json.loads(line.split(b"\n")[1].removeprefix(b"data: "))
    assert decoded == {
        "at": "1970-01-01T00:00:00.000Z",
        "direction": "in",
        "topic": "results@b1",
        "bytes": len(body),
        "refused": "not_json",
        **shown,
    }


@pytest.mark.parametrize(
    ("glob", "topic", "matches"),
    [
        ("*", b"anything ", True),
        ("results*", b"results@b1 ", True),
        ("results", b"results ", True),
        ("results", b"results@b1 ", False),
        ("@ruby-*", b"@ruby-1:00000000000000aa ", True),
        ("*:*aa", b"@ruby-1:00000000000000aa ", True),
        ("[a]", b"a ", False),
        ("a.b", b"axb ", False),
        ("*y*y*y*x", b"y" * 1_000_000, False),
    ],
)
def test_a_topic_filter_knows_one_wildcard(glob: str, topic: bytes, matches: bool) -> None:
    assert tap._of_topic(glob)(tap.TapEntry(0.0, "in", topic, b"", None)) is matches
