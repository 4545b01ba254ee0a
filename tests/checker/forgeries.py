"""Good evidence, forged in one place at a time: each forgery is named for what it pretends, and for the rule that has
to find it. Another rule may find it too; this one must.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from .good_run import Evidence

Line = dict[str, Any]
Fact = list[Any]

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * SECOND_NS
MS_NS: Final = 1_000_000

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class Forger:
    """What is done to a copy of the evidence. A forgery that changes nothing is a mistake, and raises."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    # -- the database -------------------------------------------------------------------------------------------------

    def sql(self, statement: str, *values: Any) -> list[Any]:
        connection = sqlite3.connect(self.evidence.database)
        try:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA ignore_check_constraints=ON")
            cursor = connection.execute(statement, values)
            rows = cursor.fetchall()
            assert rows or cursor.rowcount > 0, statement
            connection.commit()
            return rows
        finally:
            connection.close()

    def task(self, key: str) -> int:
        return int(self.sql("SELECT id FROM tasks WHERE key = ?", key)[0][0])

    def step(self, key: str, name: str) -> int:
        return int(self.sql("SELECT id FROM steps WHERE task_id = ? AND name = ?", self.task(key), name)[0][0])

    def set_step(self, key: str, step: str, **columns: Any) -> None:
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self.sql(f"UPDATE steps SET {assignments} WHERE id = ?", *columns.values(), self.step(key, step))  # noqa: S608

    def history(self, key: str, change: Callable[[list[list[Fact]]], Any]) -> None:
        """`change` gets the facts of every group, and changes them in place."""
        task_id = self.task(key)
        found = self.sql(
            "SELECT lane_id, seq, position, facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position",
            task_id,
        )
        rows = [_decode(row[3]) for row in found]
        before = _encode(rows)
        change(rows)
        assert _encode(rows) != before
        for row, facts in zip(found, rows, strict=True):
            where = "WHERE lane_id = ? AND seq = ? AND position = ?"
            self.sql(f"UPDATE history SET facts = ? {where}", _encode(facts).decode(), *row[:3])  # noqa: S608

    # -- the ledgers --------------------------------------------------------------------------------------------------

    def lines(self, prefix: str, change: Callable[[Line], Line | list[Line] | None]) -> None:
        """Every line of the ledgers whose names begin so becomes what `change` makes of it: None for nothing."""
        has_changed = False
        for path in self.evidence.ledgers.glob(f"{prefix}-*.jsonl"):
            before = path.read_bytes()
            made: list[Line] = []
            for line in map(_decode, before.splitlines()):
                after = change(dict(line))
                made += [] if after is None else after if isinstance(after, list) else [after]
            after_all = b"".join(_encode(line) + b"\n" for line in made)
            path.write_bytes(after_all)
            has_changed |= after_all != before
        assert has_changed, f"no line of {prefix} is changed"

    def run(
        self, key: str, name: str, event: str, change: Callable[[Line], Line | list[Line] | None], **of: Any
    ) -> None:
        """The lines of a step's runs."""
        step_id = self.step(key, name)

        def change_its(line: Line) -> Line | list[Line] | None:
            is_it = line["step_id"] == step_id and line["event"] == event
            return change(line) if is_it and all(line[k] == v for k, v in of.items()) else line

        self.lines("worker", change_its)

    def wire(self, event: str, change: Callable[[Line], Line | list[Line] | None], step_id: int | None = None) -> None:
        """The lines of a worker's wire; with `step_id`, those that name it."""

        def change_its(line: Line) -> Line | list[Line] | None:
            named = [item[0] for item in line.get("items") or line.get("results") or ()]
            return change(line) if line["event"] == event and step_id in (None, *named) else line

        self.lines("wire", change_its)

    def read(self, prefix: str) -> list[Line]:
        paths = self.evidence.ledgers.glob(f"{prefix}-*.jsonl")
        return [_decode(line) for path in paths for line in path.read_bytes().splitlines()]

    def committed_at(self, key: str, kind: str, step: int) -> int:
        """Return when the first group with such a fact was committed."""
        groups = self.sql(
            "SELECT lanes.lane, history.seq, facts FROM history JOIN lanes ON lanes.id = lane_id "
            "WHERE task_id = ? ORDER BY lane_id, history.seq, position",
            self.task(key),
        )
        lane, seq = next(row[:2] for row in groups if facts_of([_decode(row[2])], kind, step))
        (at,) = (x["at"] for x in self.read("commits") if (x["lane"], x["seq"]) == (lane, seq))
        return int(at)

    def started(self, key: str, name: str, delivery: int = 1) -> Line:
        what = (self.step(key, name), "started", delivery)
        (found,) = (x for x in self.read("worker") if (x["step_id"], x["event"], x.get("delivery")) == what)
        return found


class Forgery(NamedTuple):
    name: str
    rule: str
    forge: Callable[[Forger], Any]


FORGERIES: Final[list[Forgery]] = []


def pretends(name: str, rule: str) -> Callable[[Callable[[Forger], Any]], Callable[[Forger], Any]]:
    def add(forge: Callable[[Forger], Any]) -> Callable[[Forger], Any]:
        FORGERIES.append(Forgery(name, rule, forge))
        return forge

    return add


def add(name: str, rule: str, forge: Callable[[Forger], Any]) -> None:
    FORGERIES.append(Forgery(name, rule, forge))


# -- finding and changing facts ---------------------------------------------------------------------------------------


def facts_of(rows: list[list[Fact]], kind: str, step: int | None = None) -> list[tuple[list[Fact], int]]:
    """Where the facts of a kind are: their group, and their place in it."""
    return [
        (row, i) for row in rows for i, fact in enumerate(row) if fact[0] == kind and (step is None or fact[2] == step)
    ]


def removed(kind: str, step: int | None = None) -> Callable[[list[list[Fact]]], None]:
    """The first of them."""

    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind, step)[0]
        del row[i]

    return change


def repeated(kind: str, step: int | None = None) -> Callable[[list[list[Fact]]], None]:
    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind, step)[0]
        row.insert(i, row[i])

    return change


def replaced(kind: str, step: int | None, *by: Fact) -> Callable[[list[list[Fact]]], None]:
    """By these, at the same time: `at` is written for them."""

    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind, step)[0]
        row[i : i + 1] = [[fact[0], row[i][1], *fact[1:]] for fact in by]

    return change


def before(kind: str, step: int | None, *new: Fact) -> Callable[[list[list[Fact]]], None]:
    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind, step)[0]
        row[i:i] = [[fact[0], row[i][1], *fact[1:]] for fact in new]

    return change


def at_the_end(*new: Fact) -> Callable[[list[list[Fact]]], None]:
    def change(rows: list[list[Fact]]) -> None:
        rows[-1] += [[fact[0], rows[-1][-1][1], *fact[1:]] for fact in new]

    return change


def member(kind: str, step: int | None, position: int, value: Any) -> Callable[[list[list[Fact]]], None]:
    """A member of the first such fact; a function changes what is there."""

    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind, step)[0]
        row[i][position] = value(row[i][position]) if callable(value) else value

    return change


def swapped(kind: str, with_next: int = 1) -> Callable[[list[list[Fact]]], None]:
    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, kind)[0]
        row[i], row[i + with_next] = row[i + with_next], row[i]

    return change


def later(ns: int) -> Callable[[Line], Line]:
    return lambda line: line | {"at": line["at"] + ns, "wall": line["wall"] + ns}


def with_members(**members: Any) -> Callable[[Line], Line]:
    return lambda line: line | members


def twice(**members: Any) -> Callable[[Line], list[Line]]:
    return lambda line: [line, line | members]


def nothing(line: Line) -> None:
    return None


# -- the history by itself --------------------------------------------------------------------------------------------

BEGINS = "the_history_begins_with_the_submission"
OF_WORKFLOW = "the_history_is_of_the_workflow"
FINAL = "a_final_state_is_final"
FOLLOWS = "facts_follow_from_facts"
COUNTS = "only_a_delivery_that_counts_changes_state"
OPERATOR = "only_an_operator_opens_again"

add("a history without its submission", BEGINS, lambda f: f.history("chain-0", removed("submitted")))
add("a task submitted twice", BEGINS, lambda f: f.history("chain-0", repeated("submitted")))
add("no history at all", BEGINS, lambda f: f.sql("DELETE FROM history WHERE task_id = ?", f.task("chain-0")))
add("a fact of a step that is not there", OF_WORKFLOW, lambda f: f.history("chain-0", member("completed", 0, 2, 9)))
add("a fact that nobody knows", OF_WORKFLOW, lambda f: f.history("chain-0", before("completed", 0, ["dreamt", 0])))
add("a task of another workflow", OF_WORKFLOW, lambda f: f.history("chain-0", member("submitted", None, 2, 99)))
add("a result applied twice", FINAL, lambda f: f.history("chain-0", repeated("completed", 0)))
add(
    "a completed step that fails later",
    FINAL,
    lambda f: f.history("chain-0", before("ended", None, ["failed", 0, 1, "told_to"])),
)
add(
    "a step dispatched after its task had ended",
    FINAL,
    lambda f: f.history("slow-0", lambda rows: rows[-1].append(["dispatched", rows[-1][0][1], 0, 4, "w:1", "b"])),
)
add("a task that ends twice", FINAL, lambda f: f.history("chain-0", repeated("ended")))
add("a cancel after the end", FINAL, lambda f: f.history("chain-0", at_the_end(["cancel_asked", "late"])))
add("a step readied after its task had ended", FINAL, lambda f: f.history("chain-1", _end_early))
add("a task paused after it had ended", FINAL, lambda f: f.history("chain-0", at_the_end(["paused"])))
add("a task resumed that ran", FOLLOWS, lambda f: f.history("chain-0", before("dispatched", 0, ["resumed"])))
add("a start told twice", FOLLOWS, lambda f: f.history("doomed-0", repeated("started")))
add("an attention that changes nothing", FOLLOWS, lambda f: f.history("held-0", repeated("noticed")))
add("an operator's word without its deed", FOLLOWS, lambda f: f.history("held-0", removed("completed", 0)))
add(
    "an attention without a held step",
    FOLLOWS,
    lambda f: f.history("chain-0", before("ended", None, ["noticed", "held"])),
)
add("a failure without a run", FOLLOWS, lambda f: f.history("flaky-0", _fail_while_waiting))
add("a resolution of what was not held", FOLLOWS, lambda f: f.history("held-0", _never_held))
add("a delivery without its end before the next", FOLLOWS, lambda f: f.history("doomed-0", removed("undelivered")))
add("a completion of what was never ready", FOLLOWS, lambda f: f.history("chain-0", removed("readied", 1)))
add("a grant given twice", FOLLOWS, lambda f: f.history("held-0", repeated("granted")))
add("a step cancelled that nobody cancelled", FOLLOWS, lambda f: f.history("cancelled-0", removed("cancel_asked")))
add(
    "a step dispatched while its task is not loaded",
    FOLLOWS,
    lambda f: f.history("chain-0", member("submitted", None, 4, "pending")),
)
add("an end before the last step's", "a_task_ends_with_its_steps", lambda f: f.history("chain-1", _end_first))
add("no end after the last step's", "a_task_ends_with_its_steps", lambda f: f.history("chain-0", removed("ended")))
add(
    "a failed end of completed steps",
    "a_task_ends_as_its_steps_did",
    lambda f: f.history("chain-0", member("ended", None, 2, "failed")),
)
add(
    "a completed end of a failed step",
    "a_task_ends_as_its_steps_did",
    lambda f: f.history("slow-0", member("ended", None, 2, "completed")),
)
add(
    "a step ready before what it depends on",
    "no_step_is_ready_before_what_it_depends_on",
    lambda f: f.history("chain-0", lambda rows: _move_first(rows, ("readied", 1), before=("completed", 0))),
)
add(
    "a step ready although its rule is false",
    "no_step_is_ready_before_what_it_depends_on",
    lambda f: f.history("rescued-0", replaced("skipped", 2, ["readied", 2])),
)
add(
    "a retry before its back-off is over",
    "a_back_off_is_waited_for",
    lambda f: f.history("flaky-0", member("backed_off", 0, 5, lambda until: until + 500)),
)
add("a delivery left out", "deliveries_rise_by_one", lambda f: f.history("chain-0", member("dispatched", 0, 3, 2)))
add("a delivery used again", "deliveries_rise_by_one", lambda f: f.history("flaky-0", _second_dispatch_is_the_first))
add(
    "a dispatch while paused",
    "nothing_is_dispatched_while_paused",
    lambda f: f.history("chain-0", before("dispatched", 0, ["paused"])),
)
add(
    "a dispatch after a cancel",
    "nothing_is_dispatched_after_cancel",
    lambda f: f.history("chain-0", before("dispatched", 2, ["cancel_asked", "enough"])),
)
add(
    "an at_most_once step that starts without a grant",
    "at_most_once_starts_when_granted",
    lambda f: f.history("held-0", removed("granted")),
)
add(
    "an at_most_once step that completes without a grant",
    "at_most_once_starts_when_granted",
    lambda f: f.history("chain-0", removed("granted")),
)
add(
    "a granted delivery given to somebody else on a guess",
    "at_most_once_is_granted_once",
    lambda f: f.history("held-0", replaced("held", 0, ["undelivered", 0, 1, "session_lost", True])),
)
add(
    "an at_most_once step tried again",
    "at_most_once_is_granted_once",
    lambda f: f.history("held-0", replaced("held", 0, ["backed_off", 0, 1, "told_to", 0])),
)
add(
    "one retry too many",
    "attempts_are_bounded",
    lambda f: f.history("slow-0", replaced("failed", 0, ["backed_off", 0, 2, "timeout", 0])),
)
add("one lost session too many", "attempts_are_bounded", lambda f: f.history("doomed-0", _lose_three_more))
add("a result of a delivery that never was", COUNTS, lambda f: f.history("chain-0", member("completed", 0, 3, 9)))
add("a failure of an earlier delivery", COUNTS, lambda f: f.history("slow-0", member("failed", 0, 3, 1)))
add("a success of before it was opened again", COUNTS, lambda f: f.history("slow-0", member("completed", 0, 3, 2)))
add(
    "an at_least_once step held",
    "only_a_granted_at_most_once_step_is_held",
    lambda f: f.history("doomed-0", replaced("undelivered", 0, ["held", 0, 1, "outcome_unknown"])),
)
add(
    "a step skipped although its rule is true",
    "only_what_cannot_run_is_skipped",
    lambda f: f.history("rescued-0", replaced("readied", 1, ["skipped", 1])),
)
add("a step opened again by nobody", OPERATOR, lambda f: f.history("flaky-0", _reopen_for_its_retry))
add("a task opened again by nobody", OPERATOR, lambda f: f.history("slow-0", _reopen_only_the_task))


def _reopen_for_its_retry(rows: list[list[Fact]]) -> None:
    row, i = facts_of(rows, "readied")[1]
    row.insert(i, ["reopened", row[i][1], 0, False])


def _reopen_only_the_task(rows: list[list[Fact]]) -> None:
    removed("operated")(rows)
    removed("reopened")(rows)


def _never_held(rows: list[list[Fact]]) -> None:
    for kind in ("held", "noticed", "noticed"):
        removed(kind)(rows)


def _fail_while_waiting(rows: list[list[Fact]]) -> None:
    row, i = facts_of(rows, "readied")[1]
    row[i] = ["failed", row[i][1], 0, 1, "told_to"]


def _end_early(rows: list[list[Fact]]) -> None:
    _move_first(rows, ("ended", None), before=("readied", 2))


def _end_first(rows: list[list[Fact]]) -> None:
    _move_first(rows, ("ended", None), before=("completed", 2))


def _move_first(rows: list[list[Fact]], what: tuple[str, int | None], before: tuple[str, int]) -> None:
    row, i = facts_of(rows, *what)[0]
    fact = row.pop(i)
    into, k = facts_of(rows, *before)[0]
    into.insert(k, fact)


def _second_dispatch_is_the_first(rows: list[list[Fact]]) -> None:
    row, i = facts_of(rows, "dispatched")[1]
    row[i][3] = 1


def _lose_three_more(rows: list[list[Fact]]) -> None:
    row, i = facts_of(rows, "undelivered")[0]
    at = row[i][1]
    for number in (2, 3, 4):
        lost = [
            ["dispatched", at, 0, number, "w:1", f"b{number}"],
            ["undelivered", at, 0, number, "session_lost", True],
        ]
        row[i + 1 : i + 1] = lost


# -- rows that the history does not add up to -------------------------------------------------------------------------

ROWS = "the_rows_are_what_the_history_adds_up_to"
REPLAY = "the_broker_can_replay_its_history"
WHOLE = "a_task_is_stored_whole"
SOUND = "the_database_is_sound"
GAP = "the_history_has_no_gap"

add("a row with another attempt", ROWS, lambda f: f.set_step("chain-0", "a", attempt=1))
add("a row with another delivery", ROWS, lambda f: f.set_step("chain-0", "a", delivery=2))
add("a row with another worker", ROWS, lambda f: f.set_step("chain-0", "a", worker="other:0000000000000000"))
add("a row with another state", ROWS, lambda f: f.set_step("chain-0", "a", state="failed"))
add("a row that forgot its grant", ROWS, lambda f: f.set_step("chain-0", "pay", granted=0))
add("a task's row with another state", ROWS, lambda f: f.sql("UPDATE tasks SET state = 'failed' WHERE key = 'chain-0'"))
add("a task's row with attention", ROWS, lambda f: f.sql("UPDATE tasks SET attention = 'held' WHERE key = 'chain-0'"))
add("a row that its replay does not give", REPLAY, lambda f: f.set_step("chain-0", "b", ready_ms=1))
add("a history that cannot be replayed", REPLAY, lambda f: f.history("chain-0", removed("readied", 0)))
add(
    "the last group of the history gone",
    ROWS,
    lambda f: f.sql("DELETE FROM history WHERE seq = (SELECT max(seq) FROM history)"),
)
add(
    "another output than the one that was applied",
    "an_output_is_the_one_that_was_applied",
    lambda f: f.sql("UPDATE steps SET output = replace(output, '/', '-') WHERE id = ?", f.step("chain-0", "a")),
)
add("a step gone", WHOLE, lambda f: f.sql("DELETE FROM steps WHERE id = ?", f.step("chain-0", "b")))
add("a step under another name", WHOLE, lambda f: f.set_step("chain-0", "b", name="c"))
add("a step for another handler", WHOLE, lambda f: f.set_step("chain-0", "b", handler_class="system.evil"))
add(
    "one row of a group gone",
    GAP,
    lambda f: f.sql(
        "DELETE FROM history WHERE (seq, position) = (SELECT seq, 0 FROM history WHERE position = 1 LIMIT 1)"
    ),
)
add("a history that is ahead of its lane", GAP, lambda f: f.sql("UPDATE lanes SET seq = seq - 1"))
add("a state that is none", SOUND, lambda f: f.set_step("chain-0", "b", state="confused"))
add(
    "a step of no task",
    SOUND,
    lambda f: f.sql("UPDATE steps SET task_id = 999999 WHERE id = ?", f.step("chain-0", "b")),
)
add(
    "a history of no task",
    SOUND,
    lambda f: f.sql("UPDATE history SET task_id = 999999 WHERE task_id = ?", f.task("chain-0")),
)
add("a key of no task", SOUND, lambda f: f.sql("UPDATE keys SET task_id = 999999 WHERE key = 'chain-0'"))
add(
    "something parked",
    "nothing_is_parked",
    lambda f: f.sql("INSERT INTO parked (at_ms, code, source, body) VALUES (0, 'unstorable', 'result', x'00')"),
)

# -- submissions ------------------------------------------------------------------------------------------------------

LOST = "nothing_acknowledged_is_lost"
KEY = "a_task_is_under_its_key"
ONE = "a_key_makes_one_task"
OBSERVED = "what_was_observed_stays_so"
ORDER = "no_order_is_made_up"


@pretends("an acknowledged task gone", LOST)
def _task_gone(f: Forger) -> None:
    task_id = f.task("chain-0")
    for table in ("keys", "history", "steps"):
        f.sql(f"DELETE FROM {table} WHERE task_id = ?", task_id)  # noqa: S608
    f.sql("DELETE FROM tasks WHERE id = ?", task_id)


def _client(f: Forger, event: str, key: str, change: Callable[[Line], Line | list[Line] | None]) -> None:
    f.lines("client", lambda line: change(line) if (line["event"], line.get("key")) == (event, key) else line)


add("a task under another key", KEY, lambda f: f.sql("UPDATE tasks SET key = 'chain-9' WHERE key = 'chain-0'"))
add("a key that was let go", KEY, lambda f: f.sql("DELETE FROM keys WHERE key = 'chain-0'"))
add(
    "a key that is another task's",
    KEY,
    lambda f: f.sql("UPDATE keys SET task_id = ? WHERE key = 'chain-0'", f.task("chain-1")),
)
add(
    "a task acknowledged for another key",
    KEY,
    lambda f: _client(f, "acknowledged", "chain-0", with_members(task_id=f.task("chain-1"))),
)
add("two tasks under one key", ONE, lambda f: f.sql("UPDATE tasks SET key = 'chain-0' WHERE key = 'chain-1'"))
add("one key acknowledged as two tasks", ONE, lambda f: _client(f, "acknowledged", "chain-0", twice(task_id=1)))
add("a task that nobody asked for", "no_task_is_made_up", lambda f: _client(f, "asked", "chain-0", nothing))
add(
    "a task shown as failed that completed",
    OBSERVED,
    lambda f: f.lines("client", lambda x: x | {"state": "failed"} if _is_shown(x, f.task("chain-0")) else x),
)
add(
    "a task shown in two ends that ended once",
    OBSERVED,
    lambda f: f.lines("client", lambda x: [x, x | {"state": "failed"}] if _is_shown(x, f.task("chain-0")) else x),
)
add(
    "a task that never ended",
    "what_was_acknowledged_has_ended",
    lambda f: f.sql("UPDATE tasks SET state = 'running', finished_ms = NULL WHERE key = 'chain-0'"),
)
add(
    "a task shown in its two ends the wrong way round",
    OBSERVED,
    lambda f: f.lines("client", lambda x: [x, x | {"state": "failed"}] if _is_shown_completed(f, x, "slow-0") else x),
)
add("a resolution that nobody ordered", ORDER, lambda f: _order(f, "resolve"))
add("a retry that nobody ordered", ORDER, lambda f: _order(f, "retry"))
add("a cancel that nobody ordered", ORDER, lambda f: _order(f, "cancel"))


def _is_shown(line: Line, task_id: int) -> bool:
    return bool(line["event"] == "observed" and line["task_id"] == task_id)


def _is_shown_completed(f: Forger, line: Line, key: str) -> bool:
    return _is_shown(line, f.task(key)) and bool(line["state"] == "completed")


def _order(f: Forger, order: str) -> None:
    f.lines("client", lambda line: None if line.get("order") == order else line)


# -- runs -------------------------------------------------------------------------------------------------------------

ONCE = "at_most_once_is_started_once"
AGAIN = "no_step_is_run_again_without_cause"
OVERLAP = "runs_overlap_only_for_cause"
RUN = "only_what_was_dispatched_is_run"
GO = "at_most_once_starts_on_a_go"
EARLY = "no_step_starts_before_what_it_depends_on"
OWN_KEY = "an_idempotency_key_is_a_steps_own"

add("one delivery run twice", "a_delivery_is_run_once", lambda f: f.run("chain-0", "a", "started", twice()))
add("an at_most_once step run twice", ONCE, lambda f: f.run("chain-0", "pay", "started", twice(delivery=2)))
add("a step run again for nothing", AGAIN, lambda f: f.run("chain-0", "a", "started", twice(delivery=2)))
add("a killed worker that was not killed", AGAIN, lambda f: f.lines("faults", _no_fault("killed")))
add("a failed run that had finished", AGAIN, lambda f: f.run("flaky-0", "a", "failed", with_members(event="finished")))
add("a run out of time that had time left", AGAIN, lambda f: _hurry(f, delivery=1))
add("an operator's word that nobody gave", AGAIN, lambda f: _hurry(f, delivery=2))


def _no_fault(event: str) -> Callable[[Line], Line | None]:
    return lambda line: None if line["event"] == event and line["role"] == "worker" else line


def _hurry(f: Forger, delivery: int) -> None:
    """It began only just before the next one, so its time was not over; and no operator had it run again."""
    began = f.started("slow-0", "a", delivery)["at"]
    ns = f.started("slow-0", "a", delivery + 1)["at"] - 50_000_000 - began
    f.run("slow-0", "a", "started", later(ns), delivery=delivery)
    _order(f, "retry")


@pretends("a silence shorter than a lease", AGAIN)
def _spoken(f: Forger) -> None:
    """Heartbeats go on, and are echoed, while the worker is said to be silent."""
    pid = f.started("slept-0", "a")["pid"]

    def speak(line: Line) -> Line | list[Line]:
        if line["event"] != "beat_heard" or line["pid"] != pid:
            return line
        more: list[Line] = []
        for number in range(1, 30):
            n = 10_000 + line["n"] * 100 + number
            moment = later(number * 100_000_000)(line)
            more += [moment | {"event": "beat", "n": n}, moment | {"n": n}]
        return [line, *more]

    f.lines("wire", speak)


@pretends("a pause shorter than a lease, of a worker whose wire nobody recorded", AGAIN)
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


add("two runs at once for nothing", OVERLAP, lambda f: f.run("chain-0", "a", "started", twice(delivery=2)))
add(
    "attempts that fall",
    "attempts_never_fall",
    lambda f: f.run("flaky-0", "a", "started", with_members(attempt=3), delivery=1),
)
add(
    "a first attempt that says it is the second",
    "attempts_never_fall",
    lambda f: f.run("chain-0", "a", "started", with_members(attempt=1)),
)
add(
    "a delivery that came as another attempt",
    "a_step_is_given_its_attempt",
    lambda f: f.wire("received", _given(f.step("chain-0", "a"), 2, 1), f.step("chain-0", "a")),
)
add(
    "a run that outlived its deadline",
    "a_run_ends_by_its_deadline",
    lambda f: f.history("slow-0", member("started", 0, 1, lambda at: at - 7_000)),
)
add(
    "attention for nothing",
    "attention_is_for_a_held_step",
    lambda f: f.sql("UPDATE tasks SET attention = 'held' WHERE key = 'chain-0'"),
)
add(
    "attempts of deliveries that nobody knows that fall",
    "attempts_never_fall",
    lambda f: f.run(
        "chain-0", "a", "started", lambda x: [x, x | {"delivery": 8, "attempt": 2}, x | {"delivery": 9, "attempt": 1}]
    ),
)
add(
    "a run of a delivery that was never made", RUN, lambda f: f.run("chain-0", "b", "started", with_members(delivery=7))
)
add("a run that was never granted", RUN, lambda f: f.history("chain-0", removed("granted")))
add(
    "a delivery that came to another worker",
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
    "a start before what it depends on had finished",
    EARLY,
    lambda f: f.run("chain-0", "a", "finished", later(SECOND_NS)),
)
add("a start without what it depends on", EARLY, lambda f: f.run("chain-0", "pay", "started", with_members(seen={})))
add(
    "a start with another's output",
    EARLY,
    lambda f: f.run("chain-0", "pay", "started", with_members(seen={"a": "1/1/1"})),
)
add("a start with what is no token", EARLY, lambda f: f.run("chain-0", "pay", "started", with_members(seen={"a": "x"})))
add(
    "a step given other inputs than were committed",
    "a_step_is_given_what_was_committed",
    lambda f: f.wire("received", _given(f.step("chain-0", "pay"), 3, {"a": 1}), f.step("chain-0", "pay")),
)
add(
    "a step given nothing",
    "a_step_is_given_what_was_committed",
    lambda f: f.wire("received", _given(f.step("chain-0", "pay"), 3, {}), f.step("chain-0", "pay")),
)
add("a run under another's key", OWN_KEY, lambda f: f.run("chain-0", "a", "started", with_members(key="0/a")))
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
    "a run of a step that is not there",
    "no_run_is_of_nothing",
    lambda f: f.run("chain-0", "a", "started", twice(step_id=10**9, key="its own")),
)
add(
    "one key for two steps",
    "no_run_is_of_nothing",
    lambda f: f.run("chain-0", "pay", "started", lambda line: line | {"key": f.started("chain-1", "pay")["key"]}),
)


@pretends("a start with an output that was not the one applied", EARLY)
def _other_output(f: Forger) -> None:
    """Of the sleeper's run, which is made to have finished too."""
    late = f.started("slept-0", "a", 1)
    its = (late["step_id"], 1)
    f.lines("worker", lambda x: None if (x["step_id"], x.get("delivery")) == its and x["event"] != "started" else x)
    f.run("slept-0", "a", "started", lambda x: [x, x | {"event": "finished"}], delivery=1)
    f.run("slept-0", "b", "started", with_members(seen={"a": f"{late['step_id']}/1/{late['pid']}"}))


def _given(step_id: int, position: int, value: Any) -> Callable[[Line], Line]:
    """A member of what a worker received of this step."""

    def change(line: Line) -> Line:
        items = [[*i[:position], value, *i[position + 1 :]] if i[0] == step_id else i for i in line["items"]]
        return line | {"items": items}

    return change


# -- level 0 ----------------------------------------------------------------------------------------------------------

LANGUAGE_ONCE = "at_most_once_is_granted_once"

add("one level-0 batch run twice", "a_delivery_is_run_once", lambda f: f.run("looped-0", "pay", "started", twice()))
add(
    "a level-0 at_most_once step started twice",
    ONCE,
    lambda f: f.run("looped-0", "pay", "started", twice(batch_id="batch_2")),
)
add(
    "a level-0 at_most_once step started again when its lease was over",
    ONCE,
    lambda f: f.run("unanswered-0", "pay", "started", lambda x: [x, later(6 * SECOND_NS)(x | {"batch_id": "batch_2"})]),
)
add(
    "a level-0 step run again before its lease was over",
    AGAIN,
    lambda f: f.run("late-1", "a", "started", lambda x: _sooner(f, x), attempt=0),
)
add(
    "a level-0 handler that was still at it when its step ran elsewhere, before its lease was over",
    OVERLAP,
    lambda f: f.run("late-0", "a", "started", lambda x: _sooner(f, x), attempt=0),
)
add("a failed level-0 run that had finished", AGAIN, lambda f: f.run("looped-0", "a", "failed", _as_finished))
add(
    "a run of a batch that was never made", RUN, lambda f: f.run("looped-0", "a", "started", with_members(batch_id="b"))
)
add("a level-0 run that was never granted", RUN, lambda f: f.history("looped-0", removed("granted")))
add(
    "a level-0 delivery that a worker ran",
    RUN,
    lambda f: f.run("looped-0", "pay", "started", lambda x: _without(x, "batch_id") | {"delivery": 1}),
)
add(
    "a batch that never left, and was run",
    RUN,
    lambda f: f.history("late-0", member("undelivered", 0, 4, "unsent")),
)
add(
    "a granted level-0 delivery given to somebody else",
    LANGUAGE_ONCE,
    lambda f: f.history("unanswered-0", replaced("held", 0, ["undelivered", 0, 1, "unanswered", True])),
)
add(
    "a granted delivery to a worker that never left",
    LANGUAGE_ONCE,
    lambda f: f.history("held-0", replaced("held", 0, ["undelivered", 0, 1, "unsent", False])),
)
add(
    "a level-0 step held before its lease was over",
    "a_held_step_has_its_fault",
    lambda f: f.run("unanswered-0", "pay", "started", later(3 * SECOND_NS)),
)
add(
    "a level-0 start with another's output",
    EARLY,
    lambda f: f.run("looped-0", "pay", "started", with_members(seen={"a": "1/batch_1/1"})),
)
add(
    "an output that no level-0 handler made",
    "an_outcome_is_what_its_handler_said",
    lambda f: f.run("looped-0", "pay", "finished", nothing),
)
add(
    "a level-0 run before its dispatch was committed",
    "nothing_is_said_before_its_commit",
    lambda f: f.run("looped-0", "pay", "started", later(-SECOND_NS)),
)


def _sooner(f: Forger, line: Line) -> Line:
    """The second run of it began only two seconds after the first."""
    step_runs = [x for x in f.read("worker") if x["step_id"] == line["step_id"] and x["event"] == "started"]
    first, second = sorted(step_runs, key=lambda x: int(x["at"]))
    return line if line["at"] == first["at"] else later(first["at"] + 2 * SECOND_NS - second["at"])(line)


def _as_finished(line: Line) -> Line:
    return line | {"event": "finished"}


def _without(line: Line, member: str) -> Line:
    return {name: value for name, value in line.items() if name != member}


# -- results ----------------------------------------------------------------------------------------------------------

SAID = "an_outcome_is_what_its_handler_said"
APPLIED = "an_acknowledged_result_is_applied"
FAULT = "a_held_step_has_its_fault"


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
add("an output that nobody made", SAID, lambda f: f.run("chain-0", "b", "finished", nothing))
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
    found = f.sql("SELECT facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position", f.task(key))
    return [_decode(row[0]) for row in found]


add(
    "a step held for a restore that nobody did",
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
    f.lines("faults", _no_fault("killed"))
    f.lines("wire", lambda line: None if line["event"] in ("beat", "beat_heard") else line)


@pretends("a held step whose worker spoke, and was killed only later", FAULT)
def _killed_later(f: Forger) -> None:
    f.lines("wire", lambda line: None if line["event"] in ("beat", "beat_heard") else line)
    f.lines("faults", lambda x: later(SECOND_NS)(x) if (x["event"], x["role"]) == ("killed", "worker") else x)


# -- before and after -------------------------------------------------------------------------------------------------

SOONER = "nothing_is_said_before_its_commit"
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
    again = [["operated", "retry", None, "from the start"], ["reopened", 0, False], ["readied", 0]]

    def change(rows: list[list[Fact]]) -> None:
        row, i = facts_of(rows, "undelivered", 0)[0]
        row[i + 1 : i + 1] = [[fact[0], row[i][1], *fact[1:]] for fact in again]

    f.history(key, change)


add("an acknowledgement before its commit", SOONER, lambda f: _client(f, "acknowledged", "chain-0", later(-SECOND_NS)))
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


@pretends("a task stored before anybody asked for it", CAUSES)
def _asked_late(f: Forger) -> None:
    _client(f, "asked", "chain-0", later(HOUR_NS))


@pretends("a run before its dispatch", CAUSES)
def _run_early(f: Forger) -> None:
    f.run("chain-0", "a", "started", later(-HOUR_NS))


@pretends("a completion before its handler had finished", CAUSES)
def _finished_late(f: Forger) -> None:
    f.run("chain-0", "b", "finished", later(HOUR_NS))


add(
    "a commit taken back",
    "no_commit_is_taken_back",
    lambda f: f.lines("commits", lambda line: [line, line | {"seq": line["seq"] + 1_000}]),
)
