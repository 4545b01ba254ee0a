"""Forgeries of order: messages before their commit, effects before their cause."""

from typing import Final

from .forger import (
    HOUR_NS,
    MS_NS,
    SECOND_NS,
    Fact,
    Forger,
    Line,
    add,
    client_lines,
    facts_of,
    later,
    pretends,
    removed,
    replaced,
)

SOONER = "nothing_is_sent_before_its_commit"
CAUSES = "causes_come_before_effects"

FAILURE: Final = ("failed", "declined")
SUCCESS: Final = ("completed", None)


def send_late(f: Forger, key: str, outcome: tuple[str, str | None], acked_at: int) -> None:
    """Add a result of the first step's delivery 1, sent by its worker and acknowledged at `acked_at`."""
    (step_id,) = f.sql("SELECT id FROM steps WHERE task_id = ? AND position = 0", f.task(key))[0]
    rid = 10**6

    def send(line: Line) -> list[Line]:
        by = {"pid": line["pid"], "worker": line["worker"], "wall": 0}
        sent = by | {"event": "results_sent", "rid": rid, "results": [[step_id, 1, *outcome, 0, 0]]}
        return [line, sent | {"at": acked_at - MS_NS}, by | {"event": "results_acked", "rids": [rid], "at": acked_at}]

    f.wire("received", lambda x: send(x) if [step_id, 1] in [i[:2] for i in x["items"]] else x, step_id)


def retry_undelivered(f: Forger, key: str) -> None:
    """Add an operator's retry of the first step between its first delivery and its second."""
    again: list[Fact] = [["operated", "retry", None, "from the start"], ["reopened", 0, False], ["readied", 0]]

    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, "undelivered", 0)[0]
        row[i + 1 : i + 1] = [[fact[0], row[i][1], *fact[1:]] for fact in again]

    f.history(key, change)


add(
    "an acknowledgement before its commit",
    SOONER,
    lambda f: client_lines(f, "acknowledged", "chain-0", later(-SECOND_NS)),
)
add("a dispatch before its commit", SOONER, lambda f: f.wire("received", later(-SECOND_NS), f.step("chain-0", "a")))
add("a go before its commit", SOONER, lambda f: f.wire("go", later(-SECOND_NS), f.step("chain-0", "pay")))


@pretends("a result acknowledged before its commit", SOONER)
def _acked_early(f: Forger) -> None:
    step_id = f.step("chain-0", "a")
    sent = [x for x in f.read("wire") if x["event"] == "results_sent" and x["results"][0][0] == step_id]
    rids = [(x["pid"], x["rid"]) for x in sent]
    f.wire("results_acked", lambda x: later(-SECOND_NS)(x) if (x["pid"], x["rids"][0]) in rids else x)


@pretends("a late failure acknowledged before the loss of its delivery was committed", SOONER)
def _late_failure_acked_early(f: Forger) -> None:
    send_late(f, "slept-0", FAILURE, f.committed_at("slept-0", "undelivered", 0) - MS_NS)


@pretends("a late success acknowledged before the operator's retry was committed", SOONER)
def _late_success_acked_early(f: Forger) -> None:
    retry_undelivered(f, "slept-0")
    send_late(f, "slept-0", SUCCESS, f.committed_at("slept-0", "reopened", 0) - MS_NS)


@pretends("a failure that decided a held step, acknowledged before its commit", SOONER)
def _deciding_failure_acked_early(f: Forger) -> None:
    f.history("held-0", removed("operated"))
    f.history("held-0", replaced("completed", 0, ["failed", 0, 1, FAILURE[1]]))
    send_late(f, "held-0", FAILURE, f.committed_at("held-0", "failed", 0) - MS_NS)


@pretends("a task stored before any client submitted it", CAUSES)
def _asked_late(f: Forger) -> None:
    client_lines(f, "asked", "chain-0", later(HOUR_NS))


@pretends("a run before its dispatch", CAUSES)
def _run_early(f: Forger) -> None:
    f.run("chain-0", "a", "started", later(-HOUR_NS))


@pretends("a completion before its handler had finished", CAUSES)
def _finished_late(f: Forger) -> None:
    f.run("chain-0", "b", "finished", later(HOUR_NS))


add(
    "an undone commit",
    "no_commit_is_undone",
    lambda f: f.lines("commits", lambda line: [line, line | {"seq": line["seq"] + 1_000}]),
)
