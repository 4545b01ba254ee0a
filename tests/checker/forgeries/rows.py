"""Forgeries of rows, which no longer match the history."""

from .forger import add, member, removed

ROWS = "the_rows_match_the_history"
REPLAY = "the_history_replays"
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
add("a row that its replay does not produce", REPLAY, lambda f: f.set_step("chain-0", "b", ready_ms=1))
add("a history that cannot be replayed", REPLAY, lambda f: f.history("chain-0", removed("readied", 0)))
add(
    "the last group of the history missing",
    ROWS,
    lambda f: f.sql("DELETE FROM history WHERE seq = (SELECT max(seq) FROM history)"),
)
add(
    "an output other than the one that was applied",
    "an_output_is_the_one_that_was_applied",
    lambda f: f.sql("UPDATE steps SET output = replace(output, '/', '-') WHERE id = ?", f.step("chain-0", "a")),
)
add("a missing step", WHOLE, lambda f: f.sql("DELETE FROM steps WHERE id = ?", f.step("chain-0", "b")))
add("a step under another name", WHOLE, lambda f: f.set_step("chain-0", "b", name="c"))
add("a step for another handler", WHOLE, lambda f: f.set_step("chain-0", "b", handler_class="system.evil"))
add(
    "a missing row of a group",
    GAP,
    lambda f: f.sql(
        "DELETE FROM history WHERE (seq, position) = (SELECT seq, 0 FROM history WHERE position = 1 LIMIT 1)"
    ),
)
add(
    "a history that is ahead of its lane",
    GAP,
    lambda f: f.sql("UPDATE lanes SET seq = (SELECT max(seq) FROM history) - 1"),  # later groups have no history
)
add("an unknown state", SOUND, lambda f: f.set_step("chain-0", "b", state="confused"))
add(
    "a step without a task",
    SOUND,
    lambda f: f.sql("UPDATE steps SET task_id = 999999 WHERE id = ?", f.step("chain-0", "b")),
)
add(
    "a history without a task",
    SOUND,
    lambda f: f.sql("UPDATE history SET task_id = 999999 WHERE task_id = ?", f.task("chain-0")),
)
add("a key without a task", SOUND, lambda f: f.sql("UPDATE keys SET task_id = 999999 WHERE key = 'chain-0'"))
add(
    "a parked result",
    "nothing_is_parked",
    lambda f: f.sql("INSERT INTO parked (at_ms, code, source, body) VALUES (0, 'unstorable', 'result', x'00')"),
)
add(
    "a first step with another id",
    ROWS,
    lambda f: f.history("chain-0", member("submitted", None, 5, lambda id: id + 1)),
)
