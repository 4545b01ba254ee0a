"""A follower of the events receives each of them once, even if the broker is killed repeatedly."""

import threading
from typing import Any

from .harness import Site, eventually, workflow

KILLS = 3
TASKS_EACH = 10


def test_a_follower_receives_every_event_once_when_the_broker_is_killed(site: Site) -> None:
    site.start_broker()
    site.apply(workflow("short", {"name": "a"}, {"name": "b", "depends_on": ["a"]}))
    site.start_worker("w", slots=4)
    received: list[dict[str, Any]] = []
    follower = site.client()

    def follow() -> None:
        for event in follower.events(after="0"):
            received.append(event)
            ended = sum(each["kind"] == "ended" for each in received)
            if event["kind"] == "ended" and ended == TASKS_EACH * (KILLS + 1):
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    client = site.recorded_client()
    for number in range(KILLS + 1):
        for task in range(TASKS_EACH):
            client.submit_until_acknowledged("short", f"{number}/{task}")
        if number < KILLS:
            assert site.broker is not None
            eventually(lambda: bool(received) or None, "the first event")
            site.broker.kill9()
            site.start_broker()
    thread.join(30)
    assert not thread.is_alive(), f"{len(received)} events were received"
    task_ids = sorted({event["task_id"] for event in received})
    assert len(task_ids) == TASKS_EACH * (KILLS + 1)
    listed = [event for task_id in task_ids for event in follower.task_events(task_id, limit=500)["events"]]
    by_id = {event["id"]: event for event in received}
    assert len(by_id) == len(received), "an event was received twice"
    assert by_id == {event["id"]: event for event in listed}
    assert [event["id"] for event in received] == sorted(by_id, key=lambda text: [*map(int, text.split("."))])
