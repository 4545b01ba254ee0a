"""The forger: each forgery changes a copy of the evidence in one place, and names the rule that must find it.

Other rules may find the forgery too.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from tests.checker.good_run import Evidence

Line = dict[str, Any]
Fact = list[Any]

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * SECOND_NS
MS_NS: Final = 1_000_000

decode: Final = msgspec.json.Decoder().decode
encode: Final = msgspec.json.Encoder().encode


class Forger:
    """Changes a copy of the evidence. A change without an effect is a mistake, and raises."""

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
        """Change the facts of a task's history: `change` receives those of every group, and edits them in place."""
        task_id = self.task(key)
        history_rows = self.sql(
            "SELECT lane_id, seq, position, facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position",
            task_id,
        )
        rows = [decode(row[3]) for row in history_rows]
        before = encode(rows)
        change(rows)
        assert encode(rows) != before
        for row, facts in zip(history_rows, rows, strict=True):
            where = "WHERE lane_id = ? AND seq = ? AND position = ?"
            self.sql(f"UPDATE history SET facts = ? {where}", encode(facts).decode(), *row[:3])  # noqa: S608

    def facts(self, key: str) -> list[Fact]:
        rows = self.sql("SELECT facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position", self.task(key))
        return [fact for row in rows for fact in decode(row[0])]

    # -- the ledgers --------------------------------------------------------------------------------------------------

    def lines(self, prefix: str, change: Callable[[Line], Line | list[Line] | None]) -> None:
        """Replace every line of the ledgers with this prefix by what `change` returns; None removes the line."""
        has_changed = False
        for path in self.evidence.ledgers.glob(f"{prefix}-*.jsonl"):
            before = path.read_bytes()
            made: list[Line] = []
            for line in map(decode, before.splitlines()):
                after = change(dict(line))
                made += [] if after is None else after if isinstance(after, list) else [after]
            after_all = b"".join(encode(line) + b"\n" for line in made)
            path.write_bytes(after_all)
            has_changed |= after_all != before
        assert has_changed, f"no line of {prefix} is changed"

    def run(
        self, key: str, name: str, event: str, change: Callable[[Line], Line | list[Line] | None], **of: Any
    ) -> None:
        """Change the lines of a step's runs."""
        step_id = self.step(key, name)

        def change_its(line: Line) -> Line | list[Line] | None:
            is_it = line["step_id"] == step_id and line["event"] == event
            return change(line) if is_it and all(line[k] == v for k, v in of.items()) else line

        self.lines("worker", change_its)

    def wire(self, event: str, change: Callable[[Line], Line | list[Line] | None], step_id: int | None = None) -> None:
        """Change the lines of the workers' wire; with `step_id`, only those that name it."""

        def change_its(line: Line) -> Line | list[Line] | None:
            named = [item[0] for item in line.get("items") or line.get("results") or ()]
            return change(line) if line["event"] == event and step_id in (None, *named) else line

        self.lines("wire", change_its)

    def read(self, prefix: str) -> list[Line]:
        paths = self.evidence.ledgers.glob(f"{prefix}-*.jsonl")
        return [decode(line) for path in paths for line in path.read_bytes().splitlines()]

    def committed_at(self, key: str, kind: str, step: int) -> int:
        """Return when the first group with such a fact was committed."""
        groups = self.sql(
            "SELECT lane_id, seq, facts FROM history WHERE task_id = ? ORDER BY lane_id, seq, position",
            self.task(key),
        )
        lane, seq = next(row[:2] for row in groups if facts_of([decode(row[2])], kind, step))
        (at,) = (x["at"] for x in self.read("commits") if (x["lane"], x["seq"]) == (lane, seq))
        return int(at)

    def started(self, key: str, name: str, delivery: int = 1) -> Line:
        what = (self.step(key, name), "started", delivery)
        (line,) = (x for x in self.read("worker") if (x["step_id"], x["event"], x.get("delivery")) == what)
        return line


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
    """Return the place of each fact of a kind: its group, and its position in the group."""
    return [
        (row, i) for row in rows for i, fact in enumerate(row) if fact[0] == kind and (step is None or fact[2] == step)
    ]


def removed(kind: str, step: int | None = None) -> Callable[[list[list[Fact]]], None]:
    """Remove the first such fact."""

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
    """Replace the first such fact by these, at the same time, which is inserted."""

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
    """Set a member of the first such fact. A function as `value` receives the old value."""

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


# -- shared changes --------------------------------------------------------------------------------------------------


def client_lines(f: Forger, event: str, key: str, change: Callable[[Line], Line | list[Line] | None]) -> None:
    f.lines("client", lambda line: change(line) if (line["event"], line.get("key")) == (event, key) else line)


def without_commands(f: Forger, order: str) -> None:
    f.lines("client", lambda line: None if line.get("order") == order else line)


def without_fault(event: str) -> Callable[[Line], Line | None]:
    return lambda line: None if line["event"] == event and line["role"] == "worker" else line
