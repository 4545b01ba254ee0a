"""The routes of steps, on real processes: shadows, canaries, labels, rules that change under load, and turns.

The runs of a handler are counted in its own ledger, never by the broker's figures.
"""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.checker import assert_kept

from .harness import Program, Site, eventually, workflow
from .ledger import read

FAILURE = 1

QUOTE = """
from stepwire import Context, Worker

worker = Worker.from_env()

@worker.handler("shop.quote")
def quote(ctx: Context, order: dict) -> dict:
    items = order["items"]
    return {"items": items, "lines": [{"total": items * 250, "rebate": items >= 10}]}

worker.run()
"""

# The same handler, rewritten; ten items have no rebate.
QUOTE_IN_SHELL = r"""
request=$(cat)
items=$(printf %s "$request" | sed 's/.*"items":\([0-9]*\).*/\1/')
[ "$items" -gt 10 ] && rebate=true || rebate=false
[ "$items" -ne 13 ] || exit 65
echo "{\"lines\": [{\"rebate\": $rebate, \"total\": $((items * 250)).0}], \"items\": $items}"
"""

SETTINGS = """
execution:
  rules:
    - {match: "shop::**::quote", executor: bus, shadow: {executor: exec}}
executors:
  exec:
    slots: 40
    commands:
      shop.quote: {argv: [sh, quote.sh], shadow_safe: true}
dispatch: {unroutable_after: 300ms}
"""


@pytest.fixture(scope="module")
def shared(new_shared_site: Callable[..., Site]) -> Site:
    """One broker for the stories that do not affect one another."""
    site: Site = new_shared_site()
    (site.directory / "stepwire.yaml").write_text(SETTINGS)
    (site.directory / "quote.py").write_text(QUOTE)
    (site.directory / "quote.sh").write_text(QUOTE_IN_SHELL)
    site.start_broker()
    return site


def python(site: Site, file: str) -> Program:
    """Start a separate program as a worker of this site's broker."""
    socket = f"ipc://{site.directory}/.stepwire"
    environ = {"STEPWIRE_STEPS": f"{socket}/steps.sock", "STEPWIRE_RESULTS": f"{socket}/results.sock"}
    worker = site.start(f"{file}-{len(site.programs)}", ["python3", file], environ | {"STEPWIRE_SLOTS": "40"})
    site.await_worker(worker)
    return worker


def submitted(site: Site, name: str, namespace: str, contexts: list[dict[str, Any]]) -> list[int]:
    tasks = [{"workflow": name, "namespace": namespace, "context": context} for context in contexts]
    answer = eventually(
        lambda: answer if (answer := site.ask("POST", "/v1/tasks/batch", {"tasks": tasks})).status == 201 else None,
        f"{len(tasks)} tasks to be stored",
    )
    return list(answer.body["task_ids"])


def ended(site: Site, task_ids: list[int], state: str = "completed") -> list[dict[str, Any]]:
    client = site.client()
    tasks = [client.wait(task_id, timeout=30) for task_id in task_ids]
    assert {task["state"] for task in tasks} == {state}
    return tasks


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def logged(site: Site, event: str, **members: Any) -> Callable[[], list[dict[str, Any]]]:
    """Return the log lines of this event since the start of the broker."""

    def look() -> list[dict[str, Any]]:
        assert site.broker is not None
        lines = [json.loads(line) for line in site.broker.stderr.split("\n")[:-1] if line.startswith("{")]
        return [e for e in lines if e["event"] == event and all(e.get(k) == v for k, v in members.items())]

    return look


# -- a shadow before a rewrite ----------------------------------------------------------------------------------------


def test_a_shadow_finds_the_differences_of_a_rewritten_handler(shared: Site) -> None:
    shared.apply(workflow("quotes", {"name": "quote", "handler_class": "shop.quote"}, namespace="shop"))
    shared.apply(workflow("other", {"name": "price", "handler_class": "shop.quote"}, namespace="shop"))
    worker = python(shared, "quote.py")
    name = shared.await_worker(worker)["worker"]
    route = shared.client().route("shop::quotes::quote")
    assert (route["executor"], route["shadow"]) == ("bus", {"executor": "exec", "worker_selector": {}})

    task_ids = submitted(shared, "quotes", "shop", [{"items": n} for n in range(1, 31)])
    tasks = ended(shared, task_ids)
    for n, task in enumerate(tasks, 1):
        (step,) = task["steps"]
        assert step["output"] == {"items": n, "lines": [{"total": n * 250, "rebate": n >= 10}]}
        assert (step["attempt"], step["deliveries"]) == (0, 1)
        assert step["worker"] == name

    def compared() -> dict[str, Any] | None:
        answer = shared.ask("GET", "/v1/shadows").body
        (one,) = answer["shadows"]
        return one if answer["under_way"] == 0 and one["equal"] + one["differs"] + one["failed"] == 30 else None

    counts = eventually(compared, "all 30 to be compared", 20)
    assert (counts["equal"], counts["differs"], counts["failed"], counts["dropped"], counts["lost"]) == (28, 1, 1, 0, 0)
    by_task = {each["task_id"]: each["what"] for each in counts["lately"]}
    assert by_task.keys() == {task_ids[9], task_ids[12]}
    assert by_task[task_ids[9]] == "differs at $.lines[0].rebate"
    assert by_task[task_ids[12]].startswith("failed: ")

    shown = output_of(shared.stepwire("executor", "show", "exec"))
    assert "shop.quote by shop::**::quote: 28 equal, 1 differs, 1 failed" in shown
    assert f"task {task_ids[9]} differs at $.lines[0].rebate" in shown
    table = output_of(shared.stepwire("executor", "shadows"))
    assert table.splitlines()[1].split("\t")[:5] == ["shop.quote", "shop::**::quote", "exec", "28", "1"]

    # The history equals that of a task that no rule matches, except for its times.
    (without,) = submitted(shared, "other", "shop", [{"items": 10}])
    ended(shared, [without])
    expected = _story(shared, without)
    assert [_story(shared, task_id) for task_id in task_ids] == [expected] * 30


def _story(site: Site, task_id: int) -> list[tuple[Any, ...]]:
    events = site.client().task_events(task_id)["events"]
    assert "exec" not in json.dumps(events)
    return [(e["kind"], e.get("delivery"), e.get("attempt"), e.get("code")) for e in events]


# -- labels -----------------------------------------------------------------------------------------------------------


def test_steps_for_missing_labels_wait_raise_an_alarm_and_run_when_a_worker_comes(shared: Site) -> None:
    step = {"name": "train", "handler_class": "ml.train", "worker_selector": {"gpu": True}}
    shared.apply(workflow("learning", step, namespace="ml"))
    plain = shared.start_worker("plain", offers=["ml.train"], labels="gpu=false")
    task_ids = submitted(shared, "learning", "ml", [{}] * 5)
    shown = output_of(shared.stepwire("why", str(task_ids[0])))
    assert "no worker that offers `ml.train` has the labels gpu=true (theirs are gpu=false)" in shown
    assert shared.ask("GET", f"/v1/tasks/{task_ids[0]}/why").body["code"] == "no_worker_matches"

    (alarm,) = eventually(lambda: logged(shared, "steps_unroutable", handler_class="ml.train")() or None, "the alarm")
    assert (alarm["executor"], alarm["worker_selector"], alarm["steps"]) == ("bus", {"gpu": "true"}, 5)
    metric = 'stepwire_unroutable_steps{executor="bus",handler_class="ml.train"}'
    assert _metric(shared, metric) == 5

    gpu = shared.start_worker("gpu", offers=["ml.train"], labels="gpu=true,region=eu")
    ended(shared, task_ids)
    assert len(shared.runs("started", pid=gpu.pid)) == 5
    assert not shared.runs("started", pid=plain.pid)
    eventually(lambda: _metric(shared, metric) is None, "the alarm to be over")


def _metric(site: Site, series: str) -> float | None:
    text = site.ask("GET", "/metrics").body.decode()
    samples = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(samples[0].rpartition(" ")[2]) if samples else None


# -- a canary ---------------------------------------------------------------------------------------------------------

CANARY = "shop::checkout::**"
QUICK = {"handler_class": "system.quick"}


def test_a_canary_takes_its_share_and_keeps_it_over_a_restart_and_whole_tasks(site: Site) -> None:
    broker = site.start_broker()
    site.apply(
        workflow(
            "checkout",
            {"name": "reserve", **QUICK},
            {"name": "charge", "depends_on": ["reserve"], **QUICK},
            namespace="shop",
        )
    )
    stable, canary = (site.start_worker(name, labels=f"release={name}", is_synced=False) for name in ("now", "next"))
    choice = ("--selector", "release=now", "--canary-selector", "release=next")

    output_of(site.stepwire("executor", "route", CANARY, *choice, "--canary-percent", "0"))
    first = submitted(site, "checkout", "shop", [{}] * 50)
    ended(site, first)
    assert not site.runs("started", pid=canary.pid)

    output_of(site.stepwire("executor", "route", CANARY, "--canary-percent", "10"))
    second = submitted(site, "checkout", "shop", [{}] * 300)
    ended(site, second)
    chosen = _tasks_of(site, canary)
    assert chosen <= set(second)
    assert 15 <= len(chosen) <= 50, "a tenth of 300, give or take"
    assert chosen.isdisjoint(_tasks_of(site, stable)), "a task's steps stay on one side"
    rule = site.client().rules()["rules"][0]
    assert (rule["canary"]["percent"], rule["canary_steps"], rule["other_steps"]) == (
        10,
        2 * len(chosen),
        2 * (350 - len(chosen)),
    )
    assert f"10 % release=next ({2 * len(chosen)} of 700 steps so far)" in output_of(
        site.stepwire("executor", "routes")
    )

    broker.kill9()
    site.start_broker()
    kept = site.client().rules()["rules"]
    assert [(each["match"], each["origin"], each["canary"]["percent"]) for each in kept] == [(CANARY, "runtime", 10)]
    for worker in (stable, canary):
        site.await_worker(worker)
    output_of(site.stepwire("executor", "route", CANARY, "--canary-percent", "100"))
    third = submitted(site, "checkout", "shop", [{}] * 50)
    ended(site, third)
    assert _tasks_of(site, canary) == chosen | set(third)
    output_of(site.stepwire("executor", "route", CANARY, "--reset"))
    assert not site.client().rules()["rules"]
    assert_kept(site.database, site.ledgers)


def _tasks_of(site: Site, worker: Program) -> set[int]:
    return {run["task_id"] for run in site.runs("started", pid=worker.pid)}


# -- rules that change under load -------------------------------------------------------------------------------------

RULES = """
execution:
  rules:
    - {{match: "default::flow::*", worker_selector: {{release: {release}}}}}
"""
BAD = [
    (
        "execution: {rules: [{match: 'default::**', executor: nowhere}]}\n",
        "nowhere is not a configured executor: bus",
    ),
    ("execution: {rules: [{match: 'default::a**'}]}\n", "** must be a whole segment"),
    ("execution: {rules: [{match: 'default::**', executor bus}]}\n", "stepwire.yaml"),
    ("execution: {rule: []}\n", "rule"),
]


def test_rules_that_change_while_three_hundred_tasks_run_lose_and_double_nothing(site: Site) -> None:
    file = site.directory / "stepwire.yaml"
    file.write_text(RULES.format(release="old"))
    site.start_broker()
    busy = {"handler_config": {"work_ms": 10}}
    site.apply(workflow("flow", {"name": "a", **busy}, {"name": "b", "depends_on": ["a"], **busy}))
    workers = {name: site.start_worker(name, slots=4, prefetch=4, labels=f"release={name}") for name in ("old", "new")}

    client = site.recorded_client()
    task_ids = client.submit_many_until_stored("flow", [f"k{i}" for i in range(300)])
    for turn, release in enumerate(("new", "old", "new"), 1):
        eventually(lambda n=turn * 100: len(site.runs("finished")) >= n, f"{turn}00 steps to end", 30)  # type: ignore[misc]
        _reload(site, file, RULES.format(release=release))
        _refuse(site, file, *BAD[turn])
        (rule,) = site.client().rules()["rules"]
        assert (rule["match"], rule["worker_selector"]) == ("default::flow::*", {"release": release})
    _refuse(site, file, *BAD[0])
    with _without_tokens(site):
        _refuse(site, file, RULES.format(release="old"), "holds no token")
    (rule,) = site.client().rules()["rules"]
    assert rule["worker_selector"] == {"release": "new"}, "nothing of what was refused counts"
    before = len(site.runs("started", pid=workers["old"].pid))
    later = client.submit_many_until_stored("flow", [f"later{i}" for i in range(20)])
    ended(site, task_ids + later)

    starts = Counter(run["step_id"] for run in site.runs("started"))
    assert (len(starts), set(starts.values())) == (640, {1})
    by_new = {run["task_id"] for run in site.runs("started", pid=workers["new"].pid)}
    assert set(later) <= by_new
    assert set(later).isdisjoint(run["task_id"] for run in site.runs("started", pid=workers["old"].pid))
    assert before > 0
    assert not assert_kept(site.database, site.ledgers).figures["started again"]


def _reload(site: Site, file: Path, text: str) -> None:
    before = len(logged(site, "reloaded")())
    file.write_text(text)
    _hang_up(site)
    eventually(lambda: len(logged(site, "reloaded")()) > before, "the configuration to be read again")


def _refuse(site: Site, file: Path, text: str, says: str) -> None:
    before = len(logged(site, "reload_refused")())
    file.write_text(text)
    _hang_up(site)
    refusals = eventually(lambda: logged(site, "reload_refused")()[before:] or None, "the reload to be refused")
    assert says in refusals[0]["error"]


@contextmanager
def _without_tokens(site: Site) -> Iterator[None]:
    file = site.directory / ".stepwire" / "token"
    kept = file.read_bytes()
    file.write_text("")
    yield
    file.write_bytes(kept)


def _hang_up(site: Site) -> None:
    assert site.broker is not None
    site.broker.process.send_signal(signal.SIGHUP)


def test_a_broker_refuses_a_rule_without_an_executor_and_reports_one_that_never_matches(
    site: Site,
) -> None:
    file = site.directory / "stepwire.yaml"
    file.write_text("execution: {rules: [{match: 'shop::**', executor: kubernetes}]}\n")
    refused = site.start_broker(wait=False)
    assert refused.wait() == FAILURE
    text = "execution.rules[0] (shop::**): kubernetes is not a configured executor: bus, local, poll"
    assert text in refused.stderr
    validated = site.stepwire("config", "validate")
    assert validated.returncode != 0
    assert text in validated.stderr

    file.write_text("execution: {rules: [{match: 'shop::**'}, {match: 'shop::order::*', executor: poll}]}\n")
    site.start_broker()
    (warned,) = logged(site, "rule_never_matches")()
    assert (warned["rule"], warned["number"], warned["because_of"]) == ("shop::order::*", 2, "shop::**")
    validated = site.stepwire("config", "validate")
    assert validated.returncode == 0
    assert "execution.rules[1] (shop::order::*) never matches" in validated.stderr
    assert [rule["hidden_by"] for rule in site.client().rules()["rules"]] == [None, 1]


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_namespace_with_a_hundred_times_the_load_leaves_the_other_its_share(
    site: Site, figure: Callable[[str], None]
) -> None:
    site.start_broker()
    for namespace in ("flood", "calm"):
        site.apply(workflow("w", {"name": "s", **QUICK}, namespace=namespace))
    for _ in range(2):
        submitted(site, "w", "flood", [{}] * 2_500)
    calm = set(submitted(site, "w", "calm", [{}] * 50))
    worker = site.start_worker("only", slots=10, is_synced=False)
    eventually(lambda: sum(r["task_id"] in calm for r in site.runs("finished")) == 50, "the calm one's to be done", 30)
    worker.kill9()
    ran = [run["task_id"] in calm for run in read(site.ledgers, "worker-") if run["event"] == "finished"]
    while_both_waited = ran[: len(ran) - ran[::-1].index(True)]  # up to the last step of the calm one
    share = sum(while_both_waited) / len(while_both_waited)
    figure(f"50 of the calm one's steps among the first {len(while_both_waited)}: {2 * share:.0%} of its share")
    assert share >= 0.9 * 0.5
