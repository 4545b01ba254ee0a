"""The examples of level 0, each with a broker and without an SDK: their results are those of the README."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.system.harness import Program, Site, eventually, workflow

from .languages import LANGUAGES, LEVEL0, require

ORDER = {
    "items": [
        {"name": "kettle ☕", "cents": 4500, "grams": 1200, "millilitres": 9000, "count": 2},
        {"name": "tea", "cents": 700, "grams": 250, "millilitres": 900, "count": 3},
    ]
}
SUMS = {"goods": 11_100, "weight": 3_150, "volume": 20_700}
TOTAL = {"cents": 11_100 + 1_102, "parcels": 2}
UNKNOWN = workflow("unknown", {"name": "a", "handler_class": "quote.wish"})
ROUNDS = 20


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("level0")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.start_broker()
        applied = site.stepwire("workflow", "apply", str(LEVEL0 / "workflow.yaml"))
        assert applied.returncode == 0, applied.stderr
        yield site


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_alone_runs_a_task_to_its_end(language: str, site: Site, builds: Path) -> None:
    start(site, {language: require(language, builds)})
    task = run(site, ORDER)
    assert task["state"] == "completed", task
    outputs = {step["name"]: step["output"] for step in task["steps"]}
    assert outputs == {name: {"sum": sum_, "language": language} for name, sum_ in SUMS.items()} | {
        "total": {**TOTAL, "language": language}
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_impossible_step_fails_once_and_the_loop_goes_on(language: str, site: Site, builds: Path) -> None:
    """A missing number, and missing items."""
    program = start(site, {language: require(language, builds)})[0]
    for order in ({"items": [{"name": "tea", "count": 3}]}, {}):
        task = run(site, order)
        assert task["state"] == "failed", task
        for step in task["steps"][:3]:
            assert (step["state"], step["attempt"]) == ("failed", 0), step  # not retried: a retry cannot help
            assert step["error"]["message"], step
    assert run(site, ORDER)["state"] == "completed"
    assert program.is_running


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_step_that_the_example_does_not_know_waits_for_a_program_that_does(
    language: str, site: Site, builds: Path
) -> None:
    site.apply(UNKNOWN)
    start(site, {language: require(language, builds)})
    client = site.client()
    task_id = client.submit("unknown", {}).task_id
    eventually(lambda: peers(site)[0]["unknown_handlers"] == ["quote.wish"] or None, "the program to refuse the step")
    # The list of peers is live, and the task is read from the database, which may be a commit behind.
    step = eventually(
        lambda: one if (one := client.task(task_id)["steps"][0])["state"] == "ready" else None, "the step to wait"
    )
    assert step["attempt"] == 0
    assert "answered that it does not know `quote.wish`" in client.why(task_id)["message"]
    assert run(site, ORDER)["state"] == "completed"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_skips_frames_of_other_topics(language: str, builds: Path) -> None:
    """The subscription of the examples has no space at its end, so such a frame arrives although libzmq filters."""
    with (
        Site() as site,
        zmq.Context() as context,
        context.socket(zmq.XPUB) as steps,
        context.socket(zmq.SUB) as results,
    ):
        endpoints = {f"STEPWIRE_{name}": f"ipc://{site.directory}/played-{name}.sock" for name in ("STEPS", "RESULTS")}
        steps.bind(endpoints["STEPWIRE_STEPS"])
        results.bind(endpoints["STEPWIRE_RESULTS"])
        results.subscribe(b"results ")
        program = site.start(language, require(language, builds), endpoints)
        assert steps.poll(20_000), program.stderr
        for number in range(100):  # the first ones can be earlier than the subscription of `results`
            steps.send(b'steps-of-another-kind {"type":"here"}')
            steps.send(b"steps-of-another-kind")
            steps.send(b"steps " + json.dumps(batch(number)).encode())
            if results.poll(100):
                break
        answer = json.loads(results.recv(zmq.NOBLOCK).partition(b" ")[2])
        assert answer["results"][0]["status"] == "completed"
        assert program.is_running


def batch(number: int) -> dict[str, Any]:
    step = {
        "step_id": 1,
        "handler_class": "quote.sum",
        "handler_config": {"of": "cents"},
        "task_context": ORDER,
        "previous_results": {},
    }
    return {"to": "1.1", "batch_id": f"batch_x_{number}", "protocol_version": "1.0", "steps": [step]}


def test_three_languages_share_a_task(site: Site, builds: Path) -> None:
    """Three steps can run at the same time and each program runs one at a time, so each program runs one of them."""
    languages = ("python", "ruby", "node")
    start(site, {language: require(language, builds) for language in languages})
    # Each program gets its first step half a second after its subscription.
    eventually(lambda: run(site, ORDER) and all(counts(site)), "all three to take part", 20)
    before = counts(site)
    shared = 0
    for _ in range(ROUNDS):
        task = run(site, ORDER)
        assert task["state"] == "completed", task
        outputs = {step["name"]: step["output"] for step in task["steps"]}
        assert {name: outputs[name]["sum"] for name in SUMS} == SUMS
        shared += {outputs[name]["language"] for name in SUMS} == set(languages)
    assert shared, "no task of them all ran in three languages"
    done = [after - earlier for after, earlier in zip(counts(site), before, strict=True)]
    assert sum(done) == ROUNDS * 4
    assert min(done) >= ROUNDS // 2, done


def start(site: Site, commands: dict[str, list[str]]) -> list[Program]:
    """Start the programs, and wait until the broker dispatches to them."""
    endpoints = {f"STEPWIRE_{name.upper()}": site.ready[name] for name in ("steps", "results")}
    programs = [site.start(language, argv, endpoints) for language, argv in commands.items()]

    def are_known() -> bool:
        for program in programs:
            assert program.is_running, f"{program.name} ended:\n{program.stderr[-3_000:]}"
        return len(peers(site)) == len(programs)

    eventually(are_known, "the broker to know all programs", 20)
    return programs


def peers(site: Site) -> list[dict[str, Any]]:
    return [one for one in site.workers() if one["level"] == 0]


def counts(site: Site) -> list[int]:
    """The number of completed steps of each program."""
    return [one["completed"] for one in sorted(peers(site), key=lambda one: str(one["worker"]))]


def run(site: Site, order: dict[str, Any]) -> dict[str, Any]:
    client = site.client()
    return client.wait(client.submit("quote", order, namespace="level0").task_id, 20)
