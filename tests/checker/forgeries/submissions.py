"""Forgeries of submissions, keys, observed ends and commands."""

from .forger import Forger, Line, add, client_lines, nothing, pretends, twice, with_members, without_commands

LOST = "nothing_acknowledged_is_lost"
KEY = "a_task_has_its_key"
ONE = "a_key_makes_one_task"
OBSERVED = "an_observed_end_is_kept"
COMMAND = "every_command_was_sent"


@pretends("a missing acknowledged task", LOST)
def _task_gone(f: Forger) -> None:
    task_id = f.task("chain-0")
    for table in ("keys", "history", "steps"):
        f.sql(f"DELETE FROM {table} WHERE task_id = ?", task_id)  # noqa: S608
    f.sql("DELETE FROM tasks WHERE id = ?", task_id)


add("a task under another key", KEY, lambda f: f.sql("UPDATE tasks SET key = 'chain-9' WHERE key = 'chain-0'"))
add("a missing key", KEY, lambda f: f.sql("DELETE FROM keys WHERE key = 'chain-0'"))
add(
    "a key that is another task's",
    KEY,
    lambda f: f.sql("UPDATE keys SET task_id = ? WHERE key = 'chain-0'", f.task("chain-1")),
)
add(
    "a task acknowledged for another key",
    KEY,
    lambda f: client_lines(f, "acknowledged", "chain-0", with_members(task_id=f.task("chain-1"))),
)
add("two tasks under one key", ONE, lambda f: f.sql("UPDATE tasks SET key = 'chain-0' WHERE key = 'chain-1'"))
add("one key acknowledged as two tasks", ONE, lambda f: client_lines(f, "acknowledged", "chain-0", twice(task_id=1)))
add(
    "a task that no client submitted",
    "every_task_was_submitted",
    lambda f: client_lines(f, "asked", "chain-0", nothing),
)
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
    "every_acknowledged_task_ends",
    lambda f: f.sql("UPDATE tasks SET state = 'running', finished_ms = NULL WHERE key = 'chain-0'"),
)
add(
    "a task shown in its two ends in the wrong order",
    OBSERVED,
    lambda f: f.lines("client", lambda x: [x, x | {"state": "failed"}] if _is_shown_completed(f, x, "slow-0") else x),
)
add("a resolution without a command", COMMAND, lambda f: without_commands(f, "resolve"))
add("a retry without a command", COMMAND, lambda f: without_commands(f, "retry"))
add("a cancel without a command", COMMAND, lambda f: without_commands(f, "cancel"))


def _is_shown(line: Line, task_id: int) -> bool:
    return bool(line["event"] == "observed" and line["task_id"] == task_id)


def _is_shown_completed(f: Forger, line: Line, key: str) -> bool:
    return _is_shown(line, f.task(key)) and bool(line["state"] == "completed")
