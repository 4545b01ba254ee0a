"""Clients and commands continue over kill -9 of the broker: nothing is lost, and nothing is submitted twice.

The programs contain no code for this. The broker is killed at any moment, and just before or just after a COMMIT: just
after it, the submission is stored and its answer is lost.
"""

import itertools
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .handlers import GATES
from .harness import Program, Site, eventually, workflow

KILLS = 10
CLI_KILLS = 4
FAULTS = ("kill_after", "kill_before", None)
OK, WRONG_STATE, UNREACHABLE = 0, 4, 5


def all_tasks(site: Site) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    client = site.client()
    while True:
        page = client.tasks(limit=500, cursor=cursor)
        yield from page["tasks"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def kill_and_restart(site: Site, fault: str | None, chance: random.Random) -> None:
    """Kill the broker at a commit of the work that goes on meanwhile, or at once."""
    broker = site.broker
    assert broker is not None
    if fault is None:
        broker.kill9()
    else:
        (site.faults / fault).write_text(str(chance.randrange(12)))
        broker.wait()
    site.start_broker(with_faults=True)


class Producer:
    """Calls `submit` for more and more tasks in a thread. `task_ids` are those that it was given."""

    def __init__(self, submit: Callable[[int], list[int]]) -> None:
        self.task_ids: list[int] = []
        self.error: BaseException | None = None
        self._submit = submit
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                self.task_ids += self._submit(number)
        except BaseException as error:
            self.error = error

    def goes_on(self, what: str) -> None:
        """Wait until the producer has submitted more."""
        before = len(self.task_ids)
        eventually(lambda: self.error is not None or len(self.task_ids) > before + 2, what, 60)
        assert self.error is None, self.error

    def end(self) -> list[int]:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None, self.error
        return self.task_ids


def test_a_producer_loses_and_doubles_no_submission_through_ten_kills_of_the_broker(
    site: Site, figure: Callable[[str], None]
) -> None:
    site.start_broker(with_faults=True)
    site.apply(workflow("short", {"name": "a"}))
    site.start_worker("w")
    client = site.client()

    def submit(number: int) -> list[int]:
        if number % 3 == 0:
            return client.submit_many([{"workflow": "short", "context": {"n": number}}] * 3)
        if number % 3 == 1:
            return [client.run("short", {"n": number})["task_id"]]
        return [client.submit("short", {"n": number}).task_id]

    producer = Producer(submit)
    chance = random.Random(41)
    for number in range(KILLS):
        producer.goes_on(f"submissions before kill {number}")
        kill_and_restart(site, FAULTS[number % len(FAULTS)], chance)
    producer.goes_on("submissions after the last kill")
    task_ids = producer.end()
    tasks = {task["task_id"]: task for task in all_tasks(site)}
    figure(f"{len(task_ids)} tasks submitted through {KILLS} kills")
    assert sorted(tasks) == sorted(task_ids)
    assert all(task["idempotency_key"].startswith("auto-") for task in tasks.values())
    eventually(lambda: all(task["state"] == "completed" for task in all_tasks(site)), "all tasks to complete", 60)


def test_the_submit_command_loses_and_doubles_no_submission_when_the_broker_is_killed(site: Site) -> None:
    site.start_broker(with_faults=True)
    site.apply(workflow("short", {"name": "a"}))

    def submit(number: int) -> list[int]:
        done = site.stepwire("task", "submit", "short", "--json")
        assert done.returncode == OK, done
        printed = json.loads(done.stdout)
        assert printed["created"], printed
        return [printed["task_id"]]

    producer = Producer(submit)
    for number in range(CLI_KILLS):
        producer.goes_on(f"submissions before kill {number}")
        assert site.broker is not None
        if number % 2:
            site.broker.kill9()
        else:
            (site.faults / "kill_after").write_text("0")  # the next commit is one of a submission
            site.broker.wait()
        site.start_broker(with_faults=True)
    producer.goes_on("submissions after the last kill")
    task_ids = producer.end()
    assert sorted(task["task_id"] for task in all_tasks(site)) == sorted(task_ids)


WAITING = {
    "submit-wait": ("task", "submit", "gated", "--wait", "--json"),
    "submit-follow": ("task", "submit", "gated", "--follow"),
    "result": ("task", "result", "{task_id}", "--wait"),
    "watch": ("task", "watch", "{task_id}"),
    "events": ("task", "events", "{task_id}", "--follow"),
}


def test_every_waiting_command_continues_over_a_kill_of_the_broker(site: Site) -> None:
    site.start_broker()
    site.apply(workflow("gated", {"name": "a", "handler_config": {"gate": "open"}, "timeout": "5m"}))
    worker = site.start_worker("w", slots=len(WAITING) + 1)
    task_id = site.client().submit("gated").task_id
    programs = {name: start(site, name, task_id, *words) for name, words in WAITING.items()}
    eventually(lambda: len(site.runs("started", pid=worker.pid)) == 3 or None, "all tasks to run", 30)
    for name, printed in [("watch", "is dispatched"), ("submit-follow", "is dispatched"), ("events", "dispatched")]:
        eventually(lambda name=name, printed=printed: printed in programs[name].stdout or None, name, 30)  # type: ignore[misc]
    eventually(lambda: "runs on" in programs["result"].stderr or None, "the reason why the task does not move", 30)
    for kill in range(1, 3):
        assert site.broker is not None
        site.broker.kill9()
        for name, program in programs.items():
            await_lines(program, "trying again for up to 30 s", kill, name)
        site.start_broker()
        for name, program in programs.items():
            await_lines(program, "the broker answers again", kill, name)
    site.open_gate("open")
    for name, program in programs.items():
        assert program.wait(60) == OK, (name, program.stderr)
        assert program.stderr.count("trying again") == 2, (name, program.stderr)
        assert program.stderr.count("the broker answers again") == 2, (name, program.stderr)
    submitted = json.loads(programs["submit-wait"].stdout)
    assert (submitted["state"], submitted["attention"]) == ("completed", None)
    assert programs["submit-wait"].stderr.startswith(f"task {submitted['task_id']}\n")
    assert f"task {task_id} is completed" in programs["watch"].stdout
    assert programs["events"].stdout.count("  ended  ") == 1
    assert len(site.runs("started", pid=worker.pid)) == 3, "no step ran again"


@pytest.mark.parametrize("outage", ["0s", "400ms"])
def test_a_submission_whose_outcome_is_unknown_names_the_key_that_repeats_it(site: Site, outage: str) -> None:
    site.start_broker(with_faults=True)
    site.apply(workflow("short", {"name": "a"}))
    (site.faults / "kill_after").write_text("0")
    lost = site.stepwire("task", "submit", "short", "--outage", outage)
    assert lost.returncode == UNREACHABLE, lost
    assert "the submission may be stored" in lost.stderr
    key = lost.stderr.split("--key ")[1].split()[0]
    site.start_broker(with_faults=True)
    again = site.stepwire("task", "submit", "short", "--key", key, "--json")
    assert json.loads(again.stdout)["created"] is False
    assert [task["idempotency_key"] for task in all_tasks(site)] == [key]


def await_lines(program: Program, text: str, count: int, name: str) -> None:
    eventually(lambda: program.stderr.count(text) >= count or None, f"{name}: {text}", 30)


def test_a_retry_is_sent_again_only_if_it_was_not_sent(site: Site) -> None:
    """A second retry could run the steps again."""
    site.start_broker(with_faults=True)
    config = {"failures": 99, "gate": "open"}
    site.apply(workflow("failing", {"name": "a", "handler_config": config, "retry_limit": 0, "timeout": "5m"}))
    site.start_worker("w")
    client = site.client()
    site.open_gate("open")
    task_id = client.submit("failing").task_id
    # A read of the task itself would be recorded in the audit: a commit that is not the retry's.
    eventually(lambda: [task for task in client.tasks()["tasks"] if task["state"] == "failed"] or None, "the failure")
    (site.directory / GATES / "open").unlink()
    (site.faults / "kill_after").write_text("0")
    lost = site.stepwire("task", "retry", str(task_id))
    assert lost.returncode == UNREACHABLE, lost
    assert "the broker may have carried out the command: look at the state before you repeat it" in lost.stderr
    refused = start(site, "retry", task_id, "task", "retry", "{task_id}", "--outage", "30s")
    eventually(lambda: "connection refused; trying again" in refused.stderr or None, "the refused connection")
    site.start_broker(with_faults=True)
    assert refused.wait() == WRONG_STATE, "it was sent, and the first retry still runs"
    retries = [event for event in client.task_events(task_id)["events"] if event["kind"] == "operated"]
    assert len(retries) == 1


def test_a_cancel_whose_answer_is_lost_is_sent_again_and_succeeds(site: Site) -> None:
    site.start_broker(with_faults=True)
    site.apply(workflow("idle", {"name": "a", "handler_class": "not.offered"}))
    task_id = site.client().submit("idle").task_id
    (site.faults / "kill_after").write_text("0")
    cancelling = start(site, "cancel", task_id, "task", "cancel", "{task_id}")
    assert site.broker is not None
    site.broker.wait()
    site.start_broker(with_faults=True)
    assert cancelling.wait() == OK, cancelling.stderr
    assert cancelling.stdout == f"task {task_id} is cancelled\n"
    cancels = [event for event in site.client().task_events(task_id)["events"] if event["kind"] == "cancel_asked"]
    assert len(cancels) == 1


def start(site: Site, name: str, task_id: int, *words: str) -> Program:
    filled = [word.format(task_id=task_id) for word in words]
    return site.start(name, [sys.executable, "-m", "stepwire", *filled, "--url", site.url])
