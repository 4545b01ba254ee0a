"""What is over and old leaves the database: tasks with their steps, history and keys, and input that was refused.

It is done in the writer's thread between groups, a small piece at a time, each a transaction of its own: a group waits
for one piece at the most. What a piece cannot finish in its time (a task may have ten thousand steps) is noted in
the same transaction: from then on nobody is given that task any more, and the next piece, or the next process, goes on.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.states import STEP_FINAL, TaskState

from . import sqlite
from .errors import StoreRefused
from .lane import Trouble
from .migrate import HEAD, revision
from .sqlite_writes import PAGES_A_GROUP, ROWS_A_PAGE, SqliteWriter

PIECE_S: Final = 0.002  # of work, and then a commit
STEPS_MIN: Final = 64  # looked at in one go, of a piece that is to take no longer
STEPS_MAX: Final = 1_024
BYTES_MAX: Final = 1024 * 1024  # of payloads
TASKS_MAX: Final = 256
SHARE: Final = 0.1  # of the writer's time
SHARE_BEHIND: Final = 0.5  # when told to, or when what is too old was left lying for long
BEHIND_MS: Final = 3_600_000
LOOK_EVERY_S: Final = 60.0
LOOK_EVERY_MIN_S: Final = 0.1
TROUBLE_PAUSE_S: Final = 10.0

PARKED_ROWS_MAX: Final = 1_000
PARKED_BYTES_MAX: Final = 64 * 1024 * 1024

GOING: Final = "pruning"  # in `meta`: the tasks that are partly gone, as JSON
LAST: Final = "pruned"  # in `meta`: the last run that removed something, as JSON

log = structlog.get_logger("stepwire.store")


class Pruned(Struct):
    """What a run removed."""

    started_ms: int
    ended_ms: int = 0
    tasks: int = 0
    steps: int = 0
    history: int = 0
    keys: int = 0
    parked: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.steps or self.history or self.parked)


class Retention:
    """The lane's Upkeep. Everything but `ask` is called in the writer's thread."""

    def __init__(
        self,
        writer: SqliteWriter,
        settings: RetentionSettings,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._execute = writer.execute
        self._kept_ms = kept_ms(settings)
        self._wall_ms = wall_ms
        self._mono_s = mono_s
        self._look_every_s = min(max(min(self._kept_ms.values()) / 1000, LOOK_EVERY_MIN_S), LOOK_EVERY_S)
        self._next_at_s = mono_s()
        self._was_asked = False
        self._run: Pruned | None = None
        self._share = SHARE
        self._steps = 2 * STEPS_MIN  # looked at in one go
        self._going: set[int] | None = None  # partly gone; None: to be read
        self._unended: set[int] = set()  # said to be over, and they have a step that is not
        self._parked_seen = 0  # the newest parked row when their bound of bytes was last looked at

    def ask(self) -> None:
        """Begin a run now. From any thread."""
        self._was_asked = True

    def pause_s(self) -> float:
        """For how long there is nothing to do."""
        if self._was_asked and self._run is None:
            return 0.0
        return max(0.0, self._next_at_s - self._mono_s())

    def work(self) -> Pruned | None:
        """One piece. The run that ends with it, if one does."""
        started_s = self._mono_s()
        run = self._run or self._begin()
        try:
            is_over = self._piece(run, started_s + PIECE_S)
        except NotOver as error:
            self._unended.add(error.task_id)
            log.error("task_is_not_over", task_id=error.task_id, hint="stepwire db check")
            is_over = False
        took_s = self._mono_s() - started_s
        if is_over:
            self._run = None
            self._next_at_s = started_s + took_s + self._look_every_s
            return run
        self._next_at_s = started_s + took_s / self._share
        return None

    @property
    def so_far(self) -> Pruned:
        return self._run or Pruned(0)

    def is_hindered(self, trouble: Trouble) -> None:
        """A piece came to nothing, or nobody knows. Later, then."""
        self._going = None
        self._next_at_s = self._mono_s() + TROUBLE_PAUSE_S
        log.warning("prune_hindered", code=trouble.code, error=trouble.error)

    def _begin(self) -> Pruned:
        now = self._wall_ms()
        late_ms = max((now - kept_ms - self._oldest(state, now) for state, kept_ms in self._kept_ms.items()), default=0)
        self._share = SHARE_BEHIND if self._was_asked or late_ms > BEHIND_MS else SHARE
        self._was_asked = False
        self._run = Pruned(started_ms=now)
        return self._run

    def _oldest(self, state: str, default_ms: int) -> int:
        (at,) = self._execute(
            "SELECT min(finished_ms) FROM tasks WHERE state = ? AND finished_ms IS NOT NULL", (state,)
        ).fetchone()
        return default_ms if at is None else int(at)

    # -- a piece ------------------------------------------------------------------------------------------------------

    def _piece(self, run: Pruned, until_s: float) -> bool:
        """One transaction. True: there was nothing left to do, and the run is noted."""
        writer = self._writer
        done = msgspec.structs.replace(run)
        writer.begin()
        try:
            was_going = going(self._execute) if self._going is None else self._going
            chosen = was_going or self._ended(run.started_ms)
            left: set[int] = set()
            if chosen:
                left = self._remove(chosen, done, until_s, are_sound=bool(was_going))
            else:
                self._remove_parked(done, run.started_ms)
            is_over = not chosen and done == run
            if left != was_going:
                self._note_going(left)
            if is_over and not run.is_empty:
                done.ended_ms = self._wall_ms()
                self._note(LAST, msgspec.json.encode(done).decode())
            self._adapt(until_s, is_whole=not left)
            writer.going = was_going | left
            writer.commit()
        except BaseException:
            writer.abandon()
            raise
        writer.going = self._going = left
        rows = done.steps + done.history - run.steps - run.history
        for name in Pruned.__struct_fields__:
            setattr(run, name, getattr(done, name))
        if is_over and not run.is_empty:
            counts = {name: getattr(run, name) for name in ("tasks", "steps", "history", "keys", "parked")}
            log.info("pruned", **counts, took_ms=run.ended_ms - run.started_ms)
        writer.count_pages(PAGES_A_GROUP + rows // ROWS_A_PAGE)
        return is_over

    def _adapt(self, until_s: float, *, is_whole: bool) -> None:
        left_s = until_s - self._mono_s()
        if left_s < 0 or not is_whole:
            self._steps = max(STEPS_MIN, self._steps // 2)
        elif left_s > PIECE_S / 2:
            self._steps = min(STEPS_MAX, self._steps * 2)

    def _ended(self, now_ms: int) -> set[int]:
        """The next tasks to remove: of one state, the earliest first, no more than a piece may have time for."""
        for state, kept_ms in self._kept_ms.items():
            found = self._rows(
                3,
                """
                SELECT id, context_bytes, 1 + (SELECT max(position) FROM steps WHERE task_id = tasks.id) FROM tasks
                WHERE state = :state AND finished_ms < :before_ms
                 AND id NOT IN (SELECT value FROM json_each(:unended))
                ORDER BY finished_ms LIMIT :tasks
                """,
                {
                    "state": state,
                    "before_ms": now_ms - kept_ms,
                    "unended": _json(self._unended),
                    "tasks": min(TASKS_MAX, self._steps),
                },
            )
            if found:
                return set(self._first(found))
        return set()

    def _remove(self, task_ids: set[int], done: Pruned, until_s: float, *, are_sound: bool) -> set[int]:
        """These tasks with all they have, or as much as there is time for. Those that are left, if only in part."""
        ids = _json(task_ids)
        while self._remove_steps(ids, done, are_sound) or self._remove_history(ids, done):
            if self._mono_s() > until_s:
                if not are_sound:
                    self._assure(ids)
                return task_ids
        done.keys += self._execute(
            """
            DELETE FROM keys WHERE (namespace, key) IN (
             SELECT namespace, key FROM tasks WHERE id IN (SELECT value FROM json_each(:ids)) AND key IS NOT NULL)
             AND task_id IN (SELECT value FROM json_each(:ids))
            """,
            {"ids": ids},
        ).rowcount
        done.tasks += self._execute("DELETE FROM tasks WHERE id IN (SELECT value FROM json_each(?))", (ids,)).rowcount
        return set()

    def _remove_steps(self, ids: str, done: Pruned, are_sound: bool) -> bool:
        """A slice of them. May there be more?"""
        found = self._rows(
            5,
            "SELECT id, output_bytes, 1, task_id, state FROM steps "
            "WHERE task_id IN (SELECT value FROM json_each(?)) LIMIT ?",
            (ids, self._steps + 1),
        )
        if not are_sound:
            for _, _, _, task_id, state in found:
                if state not in STEP_FINAL:
                    raise NotOver(task_id)
        if not found:
            return False
        some = self._first(found)
        done.steps += self._execute(
            "DELETE FROM steps WHERE id IN (SELECT value FROM json_each(?))", (_json(some),)
        ).rowcount
        return len(some) < len(found)

    def _assure(self, ids: str) -> None:
        """What is still there of these tasks is over too: only then may they be left like this."""
        unended = self._execute(
            "SELECT task_id FROM steps WHERE task_id IN (SELECT value FROM json_each(?)) "
            "AND state NOT IN (SELECT value FROM json_each(?)) LIMIT 1",
            (ids, _json(STEP_FINAL)),
        ).fetchone()
        if unended is not None:
            raise NotOver(unended[0])

    def _remove_history(self, ids: str, done: Pruned) -> bool:
        count = self._execute(
            """
            DELETE FROM history WHERE (lane_id, seq, position) IN (
             SELECT lane_id, seq, position FROM history WHERE task_id IN (SELECT value FROM json_each(?)) LIMIT ?)
            """,
            (ids, 2 * STEPS_MAX),
        ).rowcount
        done.history += count
        return count == 2 * STEPS_MAX

    # -- parked -------------------------------------------------------------------------------------------------------

    def _remove_parked(self, done: Pruned, now_ms: int) -> None:
        """Input that was refused is kept for inspection: as long as a failed task, and not without bound."""
        (last,) = self._execute("SELECT max(id) FROM parked").fetchone()
        if last is None:
            return
        # Numbers are given in order, so the bound of rows is one of numbers.
        unwanted = self._rows(
            3,
            "SELECT id, length(body), 1 FROM parked WHERE id <= ? OR at_ms < ? ORDER BY id LIMIT ?",
            (last - PARKED_ROWS_MAX, now_ms - self._kept_ms[TaskState.FAILED], self._steps),
        )
        if not unwanted and last > self._parked_seen:
            unwanted = self._too_many_bytes()
            self._parked_seen = 0 if unwanted else last
        if unwanted:
            done.parked += self._execute(
                "DELETE FROM parked WHERE id IN (SELECT value FROM json_each(?))", (_json(self._first(unwanted)),)
            ).rowcount

    def _too_many_bytes(self) -> list[Any]:
        room = PARKED_BYTES_MAX
        unwanted = []
        for row in self._rows(3, "SELECT id, length(body), 1 FROM parked ORDER BY id DESC LIMIT ?", (PARKED_ROWS_MAX,)):
            room -= row[1]
            if room < 0:
                unwanted.append(row)
        return unwanted[::-1]

    # -- below them ----------------------------------------------------------------------------------------------------

    def _first(self, rows: Iterable[Any]) -> list[int]:
        """The first numbers of (number, bytes, steps, …) with so many of either together; one at the least."""
        bytes_left, steps_left = BYTES_MAX, self._steps
        found: list[int] = []
        for number, size, steps, *_ in rows:
            bytes_left -= size
            steps_left -= steps or 0
            if found and (bytes_left < 0 or steps_left < 0):
                break
            found.append(number)
        return found

    def _rows(self, columns: int, select: str, values: Any) -> list[Any]:
        """As one row of JSON: beside a busy loop, every row of its own would wait to have the interpreter back."""
        names = ", ".join(f"c{i}" for i in range(columns))
        (text,) = self._execute(
            f"WITH page ({names}) AS ({select}) SELECT json_group_array(json_array({names})) FROM page",  # noqa: S608
            values,
        ).fetchone()
        found: list[Any] = msgspec.json.decode(text)
        return found

    def _note_going(self, task_ids: set[int]) -> None:
        if task_ids:
            self._note(GOING, _json(task_ids))
        else:
            self._execute("DELETE FROM meta WHERE name = ?", (GOING,))

    def _note(self, name: str, value: str) -> None:
        self._execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )


class NotOver(Exception):
    """A task that is said to be over has a step that is not. It is not touched."""

    def __init__(self, task_id: int) -> None:
        super().__init__(f"task {task_id} is said to be over and has a step that is not")
        self.task_id = task_id


def prune_now(path: Path, settings: RetentionSettings, progress: Callable[[Pruned], object]) -> Pruned:
    """A run at once, by whoever calls: while no broker has the database."""
    lock = sqlite.lock(path)
    try:
        connection = sqlite.open_writer(path)
        try:
            at = revision(connection)
            if at != HEAD:
                raise StoreRefused(f"{path} has schema {at!r}, and this program works on {HEAD!r}: `serve` upgrades it")
            retention = Retention(SqliteWriter(connection, path, 0, 0), settings)
            while (run := retention.work()) is None:
                progress(retention.so_far)
            return run
        finally:
            connection.close()
    finally:
        lock.release()


def compact(path: Path) -> None:
    """Give what is free in the file back to the file system: all of it is written anew. While no broker has it."""
    lock = sqlite.lock(path)
    try:
        connection = sqlite.open_writer(path)
        try:
            connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise sqlite.refused(path, error) from error
        finally:
            connection.close()
    finally:
        lock.release()


def kept_ms(settings: RetentionSettings) -> dict[TaskState, int]:
    """By the state a task ended in, how long it is kept."""
    return {
        TaskState.COMPLETED: settings.completed_ms,
        TaskState.FAILED: settings.failed_ms,
        TaskState.CANCELLED: settings.failed_ms,
    }


def going(execute: Callable[..., Any]) -> set[int]:
    """The tasks that are partly gone."""
    row = execute("SELECT value FROM meta WHERE name = ?", (GOING,)).fetchone()
    return set() if row is None else set(msgspec.json.decode(row[0], type=list[int]))


def _json(values: Iterable[Any]) -> str:
    return msgspec.json.encode(sorted(values)).decode()
