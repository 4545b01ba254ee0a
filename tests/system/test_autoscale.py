"""`stepwire worker autoscale` with real copies on bad days: it loses no step, and leaves no process."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from stepwire_broker.autoscale.guard import mark_of
from stepwire_protocol import host

from .harness import Program, Site, eventually, workflow

PATIENCE_S = 120.0
LOUD_BYTES = int(os.environ.get("TEST_LOUD_BYTES", 100_000_000))
ORPHANS_S = 30.0  # the guard needs one second; a slow machine more


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        site.start_broker()
        yield site


class Autoscaler(NamedTuple):
    """A running command, and the lines that it printed."""

    site: Site
    program: Program

    @property
    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self.program.stdout.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def copies(self) -> list[int]:
        """The first processes of the copies that run, from the kernel."""
        return [
            pid
            for pid in processes()
            if mark_of(pid)
            and (seen := host.process(pid))
            and seen.session == pid
            and parent_of(pid) == self.program.pid
        ]

    def await_event(self, kind: str, number: int = 1) -> list[dict[str, Any]]:
        def find() -> list[dict[str, Any]] | None:
            found = self.of(kind)
            if len(found) >= number:
                return found
            assert self.program.is_running, (
                f"the autoscaler ended:\n{self.program.stdout}\n{self.program.stderr[-2000:]}"
            )
            return None

        return eventually(find, f"event {kind}", PATIENCE_S)

    def end(self) -> int:
        self.program.ask_to_end()
        return self.program.wait(PATIENCE_S)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        return int(stat[stat.rindex(b")") + 2 :].split()[1])
    except OSError:
        return 0


def autoscale(site: Site, name: str, handler: str, command: Sequence[str], *options: str) -> Autoscaler:
    words = [sys.executable, "-m", "stepwire", "worker", "autoscale", "-o", "jsonl", "--url", site.url]
    program = site.start(f"autoscale-{name}", [*words, "--handler", handler, *options, "--", *command])
    return Autoscaler(site, program)


def handlers(site: Site, name: str, offers: str, slots: int) -> list[str]:
    module = [sys.executable, "-m", "tests.system.handlers", str(site.directory), name]
    return [*module, "--slots", str(slots), "--offers", offers]


def submit(site: Site, name: str, count: int, **step: Any) -> list[int]:
    site.apply(workflow(name, {"name": "only", "handler_class": f"scaled.{name}", **step}))
    client = site.client()
    return [client.submit(name).task_id for _ in range(count)]


def await_completed(site: Site, tasks: Sequence[int]) -> None:
    for task in tasks:
        eventually(lambda task=task: site.task(task)["state"] == "completed" or None, f"task {task}", PATIENCE_S)


def test_a_copy_that_holds_a_step_finishes_it_before_the_autoscaler_ends(site: Site) -> None:
    (task,) = submit(site, "last", 1, handler_config={"work_ms": 1_500})
    scaler = autoscale(site, "last", "scaled.last", handlers(site, "last", "scaled.last", 1), "--slots", "1")
    eventually(lambda: (site.runs("started") and site.task(task)["steps"][0]["state"] == "dispatched") or None, "a run")
    eventually(lambda: any(r["task_id"] == task for r in site.runs("started")) or None, "a run", PATIENCE_S)
    assert scaler.end() == 0
    await_completed(site, [task])
    assert len([run for run in site.runs("started") if run["task_id"] == task]) == 1


def test_a_killed_copy_is_reported_and_replaced_and_its_step_runs_again(site: Site) -> None:
    (task,) = submit(site, "killed", 1, handler_config={"gate": "killed"})
    scaler = autoscale(site, "killed", "scaled.killed", handlers(site, "killed", "scaled.killed", 1), "--slots", "1")
    (run,) = eventually(lambda: [r for r in site.runs("started") if r["task_id"] == task] or None, "a run", PATIENCE_S)
    scaler.await_event("serving")
    os.kill(run["pid"], signal.SIGKILL)
    (died,) = scaler.await_event("died")
    assert died["worker"] in scaler.of("serving")[0]["text"]
    scaler.await_event("serving", 2)
    site.open_gate("killed")
    await_completed(site, [task])
    assert scaler.end() == 0


def test_a_command_that_ends_at_once_stops_the_autoscaler_with_its_output(site: Site) -> None:
    command = ["sh", "-c", "(setsid sleep 1000 &); echo the module is missing; exit 3"]
    scaler = autoscale(site, "fails", "scaled.fails", command)
    assert scaler.program.wait(PATIENCE_S) == 1
    assert len(scaler.of("died")) == 5
    assert "before it opened a session, 5 times in a row" in scaler.program.stderr
    assert "the module is missing" in scaler.program.stderr.partition("5 times in a row")[2]


def test_a_program_that_does_not_exist_is_named(site: Site) -> None:
    scaler = autoscale(site, "missing", "scaled.missing", ["no-such-program"])
    assert scaler.program.wait(PATIENCE_S) == 1
    assert "no-such-program cannot be started: No such file or directory" in scaler.program.stderr


def test_a_copy_that_ignores_term_and_forks_is_killed_when_the_autoscaler_ends(site: Site) -> None:
    command = ["sh", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo forked; wait; wait"]
    scaler = autoscale(site, "deaf", "scaled.deaf", command, "--drain", "100ms")
    (first,) = eventually(lambda: scaler.copies() or None, "a copy", PATIENCE_S)
    eventually(lambda: "forked" in scaler.program.stderr or None, "its children", PATIENCE_S)
    mark = mark_of(first)
    assert len(marked(mark)) >= 3
    assert scaler.end() == 0
    assert marked(mark) == []


def marked(mark: str) -> list[int]:
    return [pid for pid in processes() if mark_of(pid) == mark]


def test_a_copy_that_prints_without_end_is_read_and_costs_no_memory(site: Site) -> None:
    command = ["sh", "-c", f"echo begun; head -c {LOUD_BYTES} /dev/zero; echo; echo all is printed; sleep 1000"]
    scaler = autoscale(site, "loud", "scaled.loud", command, "--drain", "100ms")
    eventually(lambda: "begun" in scaler.program.stderr or None, "the beginning of the output", PATIENCE_S)
    before = scaler.program.rss_bytes()
    eventually(lambda: "all is printed" in scaler.program.stderr[-1_000:] or None, "the end of the output", PATIENCE_S)
    assert scaler.program.rss_peak_bytes() - before < LOUD_BYTES / 2
    assert scaler.end() == 0


def test_no_process_is_left_when_the_autoscaler_is_killed(site: Site) -> None:
    command = ["sh", "-c", "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo forked; wait; wait"]
    scaler = autoscale(site, "shot", "scaled.shot", command, "--min", "2")
    copies = eventually(lambda: found if len(found := scaler.copies()) == 2 else None, "two copies", PATIENCE_S)
    marks = [mark_of(pid) for pid in copies]
    eventually(lambda: all(len(marked(mark)) >= 3 for mark in marks) or None, "their children", PATIENCE_S)
    scaler.program.kill9()
    eventually(lambda: not any(map(marked, marks)) or None, "no process of a copy", ORPHANS_S)


def test_two_autoscalers_exceed_the_backlog_by_at_most_one_step(site: Site) -> None:
    tasks = submit(site, "shared", 4, handler_config={"gate": "shared"})
    options = ("--min", "0", "--step", "2", "--slots", "1", "--cooldown", "60s")
    scalers = [
        autoscale(site, f"shared-{n}", "scaled.shared", handlers(site, f"shared-{n}", "scaled.shared", 1), *options)
        for n in (1, 2)
    ]
    most = 0

    def running() -> bool | None:
        nonlocal most
        most = max(most, sum(len(scaler.copies()) for scaler in scalers))
        return len([run for run in site.runs("started") if run["task_id"] in tasks]) == 4 or None

    eventually(running, "all steps to run", PATIENCE_S)
    assert 4 <= most <= 4 + 2
    site.open_gate("shared")
    await_completed(site, tasks)
    for scaler in scalers:
        assert scaler.end() == 0


def test_steps_that_the_labels_do_not_fit_start_no_copy_and_the_reason_is_printed(site: Site) -> None:
    submit(site, "unfit", 3, worker_selector={"gpu": "true"})
    scaler = autoscale(site, "unfit", "scaled.unfit", ["sleep", "1000"], "--min", "0", "--labels", "gpu=false")
    (event,) = scaler.await_event("because")
    assert "3 steps of `scaled.unfit` need the labels gpu=true, and these workers have gpu=false" in event["text"]
    assert scaler.copies() == []
    assert scaler.end() == 0
    assert scaler.of("grown") == []


def test_copies_that_do_not_offer_the_handler_are_not_multiplied(site: Site) -> None:
    submit(site, "other", 9)
    command = handlers(site, "other", "scaled.another", 1)
    scaler = autoscale(site, "other", "scaled.other", command, "--slots", "1", "--step", "1")
    (event,) = scaler.await_event("other")
    assert "none of them offers the handler with these labels" in event["text"]
    assert scaler.end() == 0
    assert scaler.of("grown")[-1]["copies"] <= 3  # of ten


def test_a_wrong_token_is_refused_at_the_start(site: Site) -> None:
    words = [sys.executable, "-m", "stepwire", "worker", "autoscale", "--url", site.url, "--handler", "x", "--", "true"]
    program = site.start("autoscale-denied", words, {"STEPWIRE_TOKEN": "wrong"})
    assert program.wait(PATIENCE_S) == 6
    assert "is not one of the broker's" in program.stderr


def test_the_copies_go_on_while_the_broker_restarts(site: Site) -> None:
    scaler = autoscale(site, "stays", "scaled.stays", handlers(site, "stays", "scaled.stays", 1), "--slots", "1")
    scaler.await_event("serving")
    copies = scaler.copies()
    assert site.broker is not None
    site.broker.kill9()
    scaler.await_event("broker")
    site.start_broker()
    (task,) = submit(site, "stays", 1)
    await_completed(site, [task])
    assert scaler.copies() == copies
    assert scaler.of("died") == []
    assert scaler.end() == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--min", "5", "--max", "2"), "--min 5 is more than --max 2"),
        (("--labels", "gpu"), "--labels has 'gpu': it needs a form like gpu=true,region=eu"),
        (("--step", "0"), "0 is not in the range"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(site: Site, options: tuple[str, ...], sentence: str) -> None:
    ended = site.stepwire("worker", "autoscale", "--handler", "x", *options, "--", "true")
    assert ended.returncode == 2
    assert sentence in ended.stderr
