"""Metrics as a scraper reads them: the documented ones, in the text format, with correct values."""

import re
from collections.abc import Callable

from stepwire_broker.api import core_views, metric_text, metrics
from stepwire_broker.api.app import Application
from stepwire_broker.core.model.commit_group import Stalled
from stepwire_broker.core.model.targets import Route, Target
from stepwire_broker.loop_measures import Histogram

from .running_api import WORKFLOW, Api

SAMPLE = re.compile(r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (?P<value>\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def scrape(api: Api) -> dict[tuple[str, ...], float]:
    """The values by name and label values. Every line is checked."""
    answer = api.call("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert text.endswith("\n")
    known = {metric.name: metric for metric in metrics.METRICS}
    found: dict[tuple[str, ...], float] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            assert name in known
            assert rest == (known[name].kind if word == "TYPE" else known[name].help)
            current = name
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert re.fullmatch(rf"{current}(_bucket|_sum|_count)?", sample["name"]), line
        labels = LABEL.findall(sample["labels"] or "")
        if known[current].kind != "histogram":
            assert tuple(name for name, _ in labels) == known[current].labels
        key = (sample["name"], *(value for _, value in labels))
        assert key not in found
        found[key] = float(sample["value"])
    return found


def test_the_lanes_of_the_broker_are_counted(api: Api) -> None:
    before = scrape(api)
    lanes = [key[1] for key in before if key[0] == "stepwire_lane_open_steps"]
    assert len(lanes) == before["stepwire_lanes",] > 0
    assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
    after = scrape(api)
    for name, least in (("stepwire_lane_open_steps", 2), ("stepwire_lane_transactions_total", 1)):
        assert sum(after[name, lane] - before[name, lane] for lane in lanes) >= least, name
    assert {after["stepwire_lane_stalled", lane] for lane in lanes} == {0}
    assert after["stepwire_lane_changes_total", "lost"] == 0


def eventually(api: Api, look: Callable[[], bool]) -> bool:
    return any(api.on_loop(look) for _ in range(10_000))


def test_ready_steps_are_counted_by_handler(api: Api) -> None:
    before = scrape(api)
    task_id = api.call("POST", "/v1/tasks", {"workflow": "order"}).json["task_id"]
    after = scrape(api)
    ready = ("stepwire_ready_steps", "shop.reserve")
    assert after[ready] == before.get(ready, 0) + 1
    assert after["stepwire_ready_oldest_age_seconds", "shop.reserve"] >= 0
    for name, more in [("open_steps", 2), ("open_tasks", 1), ("loaded_tasks", 1), ("submitted_tasks_total", 1)]:
        assert after[f"stepwire_{name}",] == before[f"stepwire_{name}",] + more
    assert after["stepwire_resident_bytes",] == before["stepwire_resident_bytes",] + 2
    api.call("POST", f"/v1/tasks/{task_id}/cancel")
    assert scrape(api)["stepwire_open_steps",] == before["stepwire_open_steps",]


def test_every_commit_and_its_rows_are_counted(api: Api) -> None:
    before = scrape(api)
    assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201
    after = scrape(api)
    for name in ("stepwire_commit_duration_seconds", "stepwire_group_rows"):
        assert after[f"{name}_count",] >= before[f"{name}_count",] + 1
        assert after[f"{name}_bucket", "+Inf"] == after[f"{name}_count",]
        buckets = [value for key, value in after.items() if key[0] == f"{name}_bucket"]
        assert buckets == sorted(buckets)
    # the task, its two steps and its history are four rows at least
    assert after["stepwire_group_rows_sum",] >= before["stepwire_group_rows_sum",] + 4
    assert eventually(api, lambda: sum(api.broker.measures.loop_lag_s.counts) > 0)


def test_a_histogram_puts_a_value_into_the_first_bucket_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 5.5)
    assert metric_text._histogram("m", histogram) == [
        'm_bucket{le="1.0"} 2',
        'm_bucket{le="2.0"} 3',
        'm_bucket{le="+Inf"} 4',
        "m_sum 5.5",
        "m_count 4",
    ]


def test_requests_are_counted_by_known_route_and_status(api: Api) -> None:
    api.call("GET", "/v1/tasks/999999")
    api.call("GET", "/nowhere")
    api.call("PROPFIND", "/v1/tasks")
    api.call("GET", "/v1/tasks", headers={"Authorization": None})
    found = scrape(api)
    requests = "stepwire_http_requests_total"
    assert found[requests, "/v1/tasks/{task_id}", "GET", "404"] >= 1
    assert found[requests, "none", "GET", "404"] >= 1
    assert found[requests, "none", "GET", "401"] >= 1
    assert found[requests, "/v1/tasks", "other", "405"] >= 1
    assert {key[1] for key in found if key[0] == requests} <= {*Application(api.broker).paths, "none"}


def test_work_and_workers_are_counted(served: Api) -> None:
    before = scrape(served)
    for context in ({}, {"network": "down"}):
        task_id = served.call("POST", "/v1/tasks", {"workflow": "order", "context": context}).json["task_id"]
        served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000")
    after = scrape(served)
    more = {"dispatched_steps_total": 4, "completed_steps_total": 3, "held_steps_total": 1, "held_steps": 1}
    for name, count in more.items():
        assert after[f"stepwire_{name}",] == before[f"stepwire_{name}",] + count, name
    assert after["stepwire_sessions",] == 1
    assert after["stepwire_worker_slots",] >= 1
    for direction in ("in", "out"):
        assert after["stepwire_bus_messages_total", direction] > before["stepwire_bus_messages_total", direction]
        assert after["stepwire_bus_bytes_total", direction] > before["stepwire_bus_bytes_total", direction]
    assert after["stepwire_broker_info", "b1", metrics.VERSION, str(served.broker.epoch)] == 1


def test_a_stall_of_the_database_is_counted_once_and_metrics_still_answer(api: Api) -> None:
    lane, *others = api.broker.state.outbox.lanes.values()
    before = scrape(api).get(("stepwire_database_stalls_total", "disk_full"), 0)
    for _ in range(3):  # the writer says it again with every try
        stalled = Stalled(lane.number, lane.handed, "disk_full", "for the test")
        api.on_loop(lambda stalled=stalled: api.broker.core_loop.on_outcome(stalled))
    assert scrape(api)["stepwire_database_stalls_total", "disk_full"] == before + 1
    for each in others:  # the broker is stalled when all its lanes are
        api.on_loop(lambda each=each: setattr(each, "stalled", "disk_full"))
    assert scrape(api)["stepwire_database_stalled",] == 1
    for each in (lane, *others):
        api.on_loop(lambda each=each: setattr(each, "stalled", None))
    assert scrape(api)["stepwire_database_stalled",] == 0


def test_a_label_value_of_any_characters_stays_in_its_line(api: Api) -> None:
    assert metric_text._escaped('a"b\\c\nd') == r"a\"b\\c\nd"
    assert api.call("POST", "/v1/workflows", {**WORKFLOW, "name": "odd", "steps": [
        {"name": "a", "handler_class": "Module::Klass"}
    ]}).status == 201  # fmt: skip
    assert api.call("POST", "/v1/tasks", {"workflow": "odd"}).status == 201
    assert scrape(api)["stepwire_ready_steps", "Module::Klass"] == 1


def test_many_handlers_do_not_make_many_series() -> None:
    routes = [(Route(Target("bus"), f"h{n}"), 2, 1000 + n) for n in range(metrics.HANDLERS_MAX + 3)]
    ready = core_views.ready_figures(routes, metrics.HANDLERS_MAX, metrics.OTHER_HANDLERS)
    assert len(ready) == metrics.HANDLERS_MAX + 1
    assert ready[metrics.OTHER_HANDLERS] == (6, 1000 + metrics.HANDLERS_MAX)
