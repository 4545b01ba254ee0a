"""Forgeries of the history alone."""

from .forger import Fact, add, at_the_end, before, facts_of, member, removed, repeated, replaced

BEGINS = "the_history_begins_with_the_submission"
OF_WORKFLOW = "the_history_fits_the_workflow"
FINAL = "a_final_state_is_final"
FOLLOWS = "each_fact_follows_from_the_state"
COUNTS = "only_a_current_delivery_changes_state"
OPERATOR = "only_an_operator_reopens"

add("a history without its submission", BEGINS, lambda f: f.history("chain-0", removed("submitted")))
add("a task submitted twice", BEGINS, lambda f: f.history("chain-0", repeated("submitted")))
add("no history at all", BEGINS, lambda f: f.sql("DELETE FROM history WHERE task_id = ?", f.task("chain-0")))
add("a fact of a step that is not there", OF_WORKFLOW, lambda f: f.history("chain-0", member("completed", 0, 2, 9)))
add("a fact of an unknown kind", OF_WORKFLOW, lambda f: f.history("chain-0", before("completed", 0, ["dreamt", 0])))
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
add("a start reported twice", FOLLOWS, lambda f: f.history("doomed-0", repeated("started")))
add("an attention that changes nothing", FOLLOWS, lambda f: f.history("held-0", repeated("noticed")))
add("a command without its effect", FOLLOWS, lambda f: f.history("held-0", removed("completed", 0)))
add(
    "an attention without a held step",
    FOLLOWS,
    lambda f: f.history("chain-0", before("ended", None, ["noticed", "held"])),
)
add("a failure without a run", FOLLOWS, lambda f: f.history("flaky-0", _fail_while_waiting))
add("a resolution of a step that was not held", FOLLOWS, lambda f: f.history("held-0", _never_held))
add("a delivery without its end before the next", FOLLOWS, lambda f: f.history("doomed-0", removed("undelivered")))
add("a completion of a step that was never ready", FOLLOWS, lambda f: f.history("chain-0", removed("readied", 1)))
add("a grant given twice", FOLLOWS, lambda f: f.history("held-0", repeated("granted")))
add("a step cancelled without a command", FOLLOWS, lambda f: f.history("cancelled-0", removed("cancel_asked")))
add(
    "a step dispatched while its task is not loaded",
    FOLLOWS,
    lambda f: f.history("chain-0", member("submitted", None, 4, "pending")),
)
add("an end before the last step's end", "a_task_ends_with_its_steps", lambda f: f.history("chain-1", _end_first))
add("no end after the last step's end", "a_task_ends_with_its_steps", lambda f: f.history("chain-0", removed("ended")))
add(
    "a failed end of completed steps",
    "a_task_ends_as_its_steps_ended",
    lambda f: f.history("chain-0", member("ended", None, 2, "failed")),
)
add(
    "a completed end of a failed step",
    "a_task_ends_as_its_steps_ended",
    lambda f: f.history("slow-0", member("ended", None, 2, "completed")),
)
add(
    "a step ready before its dependencies",
    "no_step_is_ready_before_its_dependencies",
    lambda f: f.history("chain-0", lambda rows: _move_first(rows, ("readied", 1), before=("completed", 0))),
)
add(
    "a step ready although its rule is false",
    "no_step_is_ready_before_its_dependencies",
    lambda f: f.history("rescued-0", replaced("skipped", 2, ["readied", 2])),
)
add(
    "a retry before its back-off is over",
    "no_retry_starts_before_its_back_off_ends",
    lambda f: f.history("flaky-0", member("backed_off", 0, 5, lambda until: until + 500)),
)
add(
    "a delivery left out", "delivery_numbers_rise_by_one", lambda f: f.history("chain-0", member("dispatched", 0, 3, 2))
)
add(
    "a delivery used again",
    "delivery_numbers_rise_by_one",
    lambda f: f.history("flaky-0", _second_dispatch_is_the_first),
)
add(
    "a dispatch while paused",
    "nothing_is_dispatched_while_paused",
    lambda f: f.history("chain-0", before("dispatched", 0, ["paused"])),
)
add(
    "a dispatch after a cancel",
    "nothing_is_dispatched_after_a_cancel",
    lambda f: f.history("chain-0", before("dispatched", 2, ["cancel_asked", "enough"])),
)
add(
    "an at_most_once step that starts without a grant",
    "an_at_most_once_step_starts_only_when_granted",
    lambda f: f.history("held-0", removed("granted")),
)
add(
    "an at_most_once step that completes without a grant",
    "an_at_most_once_step_starts_only_when_granted",
    lambda f: f.history("chain-0", removed("granted")),
)
add(
    "a granted delivery dispatched again on a guess",
    "a_granted_delivery_is_not_dispatched_again",
    lambda f: f.history("held-0", replaced("held", 0, ["undelivered", 0, 1, "session_lost", True])),
)
add(
    "an at_most_once step tried again",
    "a_granted_delivery_is_not_dispatched_again",
    lambda f: f.history("held-0", replaced("held", 0, ["backed_off", 0, 1, "told_to", 0])),
)
add(
    "one retry too many",
    "retries_are_bounded",
    lambda f: f.history("slow-0", replaced("failed", 0, ["backed_off", 0, 2, "timeout", 0])),
)
add("one lost session too many", "lost_sessions_are_bounded", lambda f: f.history("doomed-0", _lose_three_more))
add("a result of a delivery that was never made", COUNTS, lambda f: f.history("chain-0", member("completed", 0, 3, 9)))
add("a failure of an earlier delivery", COUNTS, lambda f: f.history("slow-0", member("failed", 0, 3, 1)))
add("a success from before the step was reopened", COUNTS, lambda f: f.history("slow-0", member("completed", 0, 3, 2)))
add(
    "an at_least_once step held",
    "only_a_granted_at_most_once_step_is_held",
    lambda f: f.history("doomed-0", replaced("undelivered", 0, ["held", 0, 1, "outcome_unknown"])),
)
add(
    "a step skipped although its rule is true",
    "only_a_step_that_cannot_run_is_skipped",
    lambda f: f.history("rescued-0", replaced("readied", 1, ["skipped", 1])),
)
add("a step reopened without a command", OPERATOR, lambda f: f.history("flaky-0", _reopen_for_its_retry))
add("a task reopened without a command", OPERATOR, lambda f: f.history("slow-0", _reopen_only_the_task))


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
