"""Forgeries of runs and of what workers received."""

from collections.abc import Callable
from typing import Any

from .forger import (
    SECOND_NS,
    Forger,
    Line,
    add,
    later,
    member,
    nothing,
    pretends,
    removed,
    twice,
    with_members,
    without_commands,
    without_fault,
)

ONCE = "an_at_most_once_step_starts_once"
AGAIN = "no_step_runs_again_without_a_cause"
OVERLAP = "runs_overlap_only_with_a_cause"
RUN = "only_a_dispatched_delivery_runs"
GO = "an_at_most_once_step_starts_on_a_go"
EARLY = "no_step_starts_before_its_dependencies"
OWN_KEY = "an_idempotency_key_belongs_to_one_step"

add("one delivery run twice", "a_delivery_runs_once", lambda f: f.run("chain-0", "a", "started", twice()))
add("an at_most_once step run twice", ONCE, lambda f: f.run("chain-0", "pay", "started", twice(delivery=2)))
add("a step run again without a cause", AGAIN, lambda f: f.run("chain-0", "a", "started", twice(delivery=2)))
add("a killed worker that was not killed", AGAIN, lambda f: f.lines("faults", without_fault("killed")))
add("a failed run that had finished", AGAIN, lambda f: f.run("flaky-0", "a", "failed", with_members(event="finished")))
add("a run out of time that had time left", AGAIN, lambda f: _hurry(f, delivery=1))
add("a run on a command that was never sent", AGAIN, lambda f: _hurry(f, delivery=2))


def _hurry(f: Forger, delivery: int) -> None:
    """Start a run only just before the next one, so that its time was not over, and remove the operator's retry."""
    began = f.started("slow-0", "a", delivery)["at"]
    ns = f.started("slow-0", "a", delivery + 1)["at"] - 50_000_000 - began
    f.run("slow-0", "a", "started", later(ns), delivery=delivery)
    without_commands(f, "retry")


@pretends("a silence shorter than a lease", AGAIN)
def _not_silent(f: Forger) -> None:
    """The worker's heartbeats continue and are echoed while it is supposed to be silent."""
    pid = f.started("slept-0", "a")["pid"]

    def add_beats(line: Line) -> Line | list[Line]:
        if line["event"] != "beat_heard" or line["pid"] != pid:
            return line
        more: list[Line] = []
        for number in range(1, 30):
            n = 10_000 + line["n"] * 100 + number
            moment = later(number * 100_000_000)(line)
            more += [moment | {"event": "beat", "n": n}, moment | {"n": n}]
        return [line, *more]

    f.lines("wire", add_beats)


@pretends("a pause shorter than a lease, of a worker whose wire was not recorded", AGAIN)
def _short_pause(f: Forger) -> None:
    for path in f.evidence.ledgers.glob("wire-*"):
        path.unlink()
    paused: dict[int, Line] = {}

    def shorten(line: Line) -> Line:
        if line["event"] == "paused":
            paused[line["pid"]] = line
        elif line["event"] == "resumed" and line["pid"] in paused:
            return later(paused[line["pid"]]["at"] + 500_000_000 - line["at"])(line)
        return line

    f.lines("faults", shorten)


@pretends("a killed worker's run that went on", OVERLAP)
def _went_on(f: Forger) -> None:
    second = f.started("doomed-0", "a", 2)
    over = {"event": "finished", "at": second["at"] + 50_000_000, "wall": second["wall"] + 50_000_000}
    f.run("doomed-0", "a", "started", lambda line: [line, line | over], delivery=1)
    f.lines("wire", lambda line: None if line["event"] in ("beat", "beat_heard") else line)


add("two runs at once without a cause", OVERLAP, lambda f: f.run("chain-0", "a", "started", twice(delivery=2)))
add(
    "attempts that decrease",
    "attempts_never_decrease",
    lambda f: f.run("flaky-0", "a", "started", with_members(attempt=3), delivery=1),
)
add(
    "a first attempt that is reported as the second",
    "attempts_never_decrease",
    lambda f: f.run("chain-0", "a", "started", with_members(attempt=1)),
)
add(
    "a delivery that arrived as another attempt",
    "a_step_receives_its_attempt",
    lambda f: f.wire("received", _given(f.step("chain-0", "a"), 2, 1), f.step("chain-0", "a")),
)
add(
    "a run that outlived its deadline",
    "a_run_ends_by_its_deadline",
    lambda f: f.history("slow-0", member("started", 0, 1, lambda at: at - 7_000)),
)
add(
    "attention without a held step",
    "attention_is_for_a_held_step",
    lambda f: f.sql("UPDATE tasks SET attention = 'held' WHERE key = 'chain-0'"),
)
add(
    "attempts of unknown deliveries that decrease",
    "attempts_never_decrease",
    lambda f: f.run(
        "chain-0", "a", "started", lambda x: [x, x | {"delivery": 8, "attempt": 2}, x | {"delivery": 9, "attempt": 1}]
    ),
)
add(
    "a run of a delivery that was never made", RUN, lambda f: f.run("chain-0", "b", "started", with_members(delivery=7))
)
add("a run that was never granted", RUN, lambda f: f.history("chain-0", removed("granted")))
add(
    "a delivery that arrived at another worker",
    RUN,
    lambda f: f.wire("received", with_members(worker="other:00"), f.step("chain-0", "a")),
)
add(
    "a delivery in another batch",
    RUN,
    lambda f: f.wire("received", with_members(batch_id="b_1"), f.step("chain-0", "a")),
)
add(
    "a delivery that was never made",
    RUN,
    lambda f: f.wire("received", _given(f.step("chain-0", "a"), 1, 5), f.step("chain-0", "a")),
)
add("an at_most_once start without a go", GO, lambda f: f.wire("go", nothing, f.step("chain-0", "pay")))
add("an at_most_once start before its go", GO, lambda f: f.wire("go", later(SECOND_NS), f.step("chain-0", "pay")))
add(
    "a start before its dependency had finished",
    EARLY,
    lambda f: f.run("chain-0", "a", "finished", later(SECOND_NS)),
)
add(
    "a start without its dependency's output",
    EARLY,
    lambda f: f.run("chain-0", "pay", "started", with_members(seen={})),
)
add(
    "a start with another step's output",
    EARLY,
    lambda f: f.run("chain-0", "pay", "started", with_members(seen={"a": "1/1/1"})),
)
add("a start with an invalid token", EARLY, lambda f: f.run("chain-0", "pay", "started", with_members(seen={"a": "x"})))
add(
    "a step given inputs other than those committed",
    "a_step_receives_the_committed_outputs",
    lambda f: f.wire("received", _given(f.step("chain-0", "pay"), 3, {"a": 1}), f.step("chain-0", "pay")),
)
add(
    "a step given no inputs",
    "a_step_receives_the_committed_outputs",
    lambda f: f.wire("received", _given(f.step("chain-0", "pay"), 3, {}), f.step("chain-0", "pay")),
)
add("a run under another step's key", OWN_KEY, lambda f: f.run("chain-0", "a", "started", with_members(key="0/a")))
add(
    "a run under a key that begins like its own",
    OWN_KEY,
    lambda f: f.run("chain-0", "a", "started", lambda x: x | {"key": x["key"] + "a"}),
)
add(
    "a second run under a second key",
    OWN_KEY,
    lambda f: f.run("doomed-0", "a", "started", lambda x: x | {"key": x["key"] + "/1"}, delivery=2),
)
add(
    "a run of a step that does not exist",
    "every_run_has_a_step",
    lambda f: f.run("chain-0", "a", "started", twice(step_id=10**9, key="its own")),
)
add(
    "one key for two steps",
    "every_run_has_a_step",
    lambda f: f.run("chain-0", "pay", "started", lambda line: line | {"key": f.started("chain-1", "pay")["key"]}),
)


@pretends("a start with an output that was not the one applied", EARLY)
def _other_output(f: Forger) -> None:
    """The dependent starts with the output of the suspended worker's run, which is changed to have finished too."""
    late = f.started("slept-0", "a", 1)
    its = (late["step_id"], 1)
    f.lines("worker", lambda x: None if (x["step_id"], x.get("delivery")) == its and x["event"] != "started" else x)
    f.run("slept-0", "a", "started", lambda x: [x, x | {"event": "finished"}], delivery=1)
    f.run("slept-0", "b", "started", with_members(seen={"a": f"{late['step_id']}/1/{late['pid']}"}))


def _given(step_id: int, position: int, value: Any) -> Callable[[Line], Line]:
    """Set a member of the step in the messages that a worker received."""

    def change(line: Line) -> Line:
        items = [[*i[:position], value, *i[position + 1 :]] if i[0] == step_id else i for i in line["items"]]
        return line | {"items": items}

    return change
