"""Forgeries of results and outcomes."""

from collections.abc import Callable
from typing import Any

from .forger import (
    SECOND_NS,
    Fact,
    Forger,
    Line,
    add,
    decode,
    later,
    member,
    nothing,
    pretends,
    removed,
    replaced,
    without_fault,
)

SAID = "an_outcome_is_what_its_handler_returned"
APPLIED = "an_acknowledged_result_is_applied"
FAULT = "a_held_step_has_a_cause"


def _sent(step_id: int, position: int, value: Any) -> Callable[[Line], Line]:
    def change(line: Line) -> Line:
        results = [[*r[:position], value, *r[position + 1 :]] if r[0] == step_id else r for r in line["results"]]
        return line | {"results": results}

    return change


add(
    "an output changed on the way",
    SAID,
    lambda f: f.wire("results_sent", _sent(f.step("chain-0", "a"), 5, 1), f.step("chain-0", "a")),
)
add("a result that was never sent", SAID, lambda f: f.wire("results_sent", nothing, f.step("chain-0", "a")))
add("an output that no handler made", SAID, lambda f: f.run("chain-0", "b", "finished", nothing))
add(
    "a success that was a failure",
    SAID,
    lambda f: f.wire("results_sent", _sent(f.step("chain-0", "a"), 2, "failed"), f.step("chain-0", "a")),
)
add("a failure with another code", SAID, lambda f: f.history("flaky-0", member("backed_off", 0, 4, "something_else")))
add("a failure that was never reported", SAID, lambda f: f.wire("results_sent", nothing, f.step("rescued-0", "try")))


@pretends("an acknowledged success that was never applied", APPLIED)
def _not_applied(f: Forger) -> None:
    def forget(rows: list[list[Fact]]) -> None:
        removed("completed", 2)(rows)
        removed("ended")(rows)

    f.history("chain-0", forget)
    (batch_id,) = {g[5] for r in _history(f, "chain-0") for g in r if g[0] == "dispatched" and g[2] == 2}
    f.set_step("chain-0", "b", state="dispatched", finished_ms=None, output=None, output_bytes=0, batch_id=batch_id)
    f.sql("UPDATE tasks SET state = 'running', finished_ms = NULL WHERE key = 'chain-0'")


@pretends("an acknowledged failure that was never applied", APPLIED)
def _failure_not_applied(f: Forger) -> None:
    def forget(rows: list[list[Fact]]) -> None:
        removed("failed", 0)(rows)
        for kind, step in (("readied", 1), ("skipped", 2), ("dispatched", 1), ("completed", 1)):
            removed(kind, step)(rows)
        removed("ended")(rows)

    f.history("rescued-0", forget)


def _history(f: Forger, key: str) -> list[list[Fact]]:
    rows = f.sql("SELECT facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position", f.task(key))
    return [decode(row[0]) for row in rows]


add(
    "a step held for a restore that never happened",
    FAULT,
    lambda f: f.history("held-0", replaced("held", 0, ["restored", 0])),
)
add(
    "an at_least_once step held for a restore",
    "only_a_granted_at_most_once_step_is_held",
    lambda f: f.history("doomed-0", replaced("undelivered", 0, ["restored", 0])),
)


@pretends("a held step whose worker lived", FAULT)
def _nothing_had_happened(f: Forger) -> None:
    f.lines("faults", without_fault("killed"))
    f.lines("wire", lambda line: None if line["event"] in ("beat", "beat_heard") else line)


@pretends("a held step whose worker sent heartbeats, and was killed only later", FAULT)
def _killed_later(f: Forger) -> None:
    f.lines("wire", lambda line: None if line["event"] in ("beat", "beat_heard") else line)
    f.lines("faults", lambda x: later(SECOND_NS)(x) if (x["event"], x["role"]) == ("killed", "worker") else x)
