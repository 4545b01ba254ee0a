"""The evidence: the database, which is judged, and the witnesses, which are the ledgers by subject.

The database is read once, in one state, one task at a time. Only the ledgers and the totals over all tasks stay in
memory.
"""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from . import ledgers as lines
from .language import read_story
from .ledgers import EndLine, Ledgers, Started
from .plans import Plan, read_plan
from .story import Fact, StepStory, TaskStory

Row = TypeVar("Row")

FOR_EVER: Final = 2**63
STEADY_NS: Final = 100_000_000  # a larger drift between the two clocks, and wall times prove nothing
WORKER_FACTOR: Final = 0.97  # a worker's own lease ends this much of a lease after its last renewed beat was sent
LEVEL0_GRACE_NS: Final = 5_000_000_000  # a level-0 lease is the timeout and this
SILENT_FACTOR: Final = 0.78  # without its beats: the last may be a fifth of a lease before the silence

_decode: Final = msgspec.json.Decoder(list[Fact]).decode


class TaskRow(NamedTuple):
    id: int
    uid: str
    workflow_id: int
    namespace: str
    key: str | None
    state: str
    attention: str | None
    cancelling: int
    created_ms: int
    finished_ms: int | None


class StepRow(NamedTuple):
    id: int
    task_id: int
    position: int
    name: str
    handler_class: str
    state: str
    attempt: int
    delivery: int
    accept_from: int
    batch_id: str | None
    worker: str | None
    granted: int
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    reason: str | None
    key_number: int
    output_bytes: int
    output: str | None


class HistoryRow(NamedTuple):
    task_id: int
    lane_id: int
    seq: int
    position: int
    facts: str


class Outage(NamedTuple):
    """A time in which a process could do nothing: it was suspended or dead."""

    pid: int
    start: int
    end: int  # FOR_EVER if it was killed
    was_killed: bool


class Run(NamedTuple):
    """One start of a handler, and the end that it recorded, if any."""

    started: Started
    end: EndLine | None
    over: int  # the end of the run or of its process

    @property
    def verdict(self) -> str | None:
        return None if self.end is None else _VERDICTS[type(self.end)]

    @property
    def is_level0(self) -> bool:
        return self.started.batch_id is not None


_VERDICTS: Final = {lines.Finished: "finished", lines.Failed: "failed", lines.Stopped: "stopped"}


class Given(NamedTuple):
    """A worker received a step, for the first time or again."""

    line: lines.Received
    step: lines.GivenStep


class Sent(NamedTuple):
    """A worker sent a result, and may have received its acknowledgement."""

    line: lines.ResultsSent
    result: lines.SentResult
    acked_at: int | None


class Witnesses:
    """The ledgers, by subject."""

    def __init__(self, ledgers: Ledgers, lease_ms: int, delivery_in: Callable[[int, str], int]) -> None:
        """`delivery_in` returns a step's delivery in a batch, 0 for none: a level-0 handler knows only the batch."""
        self.delivery_in = delivery_in
        self.lease_ns = lease_ms * 1_000_000
        self.ledgers = ledgers
        self.has_clients = bool(ledgers.clients)
        self.has_handlers = bool(ledgers.handlers)
        self.wall_minus_at, self.is_wall_steady = _clocks(ledgers)
        self.has_wall_jumped = not self.is_wall_steady and self.wall_minus_at != 0
        self._read_faults()
        self._read_clients()
        self._read_handlers()
        self._read_wire()
        self.commits = {(c.lane, c.seq): c.at for c in ledgers.commits}

    def _read_faults(self) -> None:
        paused: dict[int, int] = {}
        outages: list[Outage] = []
        self.process_ends: dict[int, int] = {}
        self.asked_to_end: dict[int, int] = {}
        self.broker_pids: set[int] = set()
        for line in self.ledgers.faults:
            pid = line.pid
            if line.role == "broker":
                self.broker_pids.add(pid)
            match line:
                case lines.Paused():
                    paused[pid] = line.at
                case lines.Resumed() if pid in paused:
                    outages.append(Outage(pid, paused.pop(pid), line.at, was_killed=False))
                case lines.Killed():
                    outages.append(Outage(pid, paused.pop(pid, line.at), FOR_EVER, was_killed=True))
                    self.process_ends.setdefault(pid, line.at)
                case lines.ProcessEnded():
                    self.process_ends.setdefault(pid, line.at)
                case lines.AskedToEnd():
                    self.asked_to_end.setdefault(pid, line.at)
        outages += [Outage(pid, at, FOR_EVER, was_killed=False) for pid, at in paused.items()]
        self.outages = outages
        self.outages_of: dict[int, list[Outage]] = defaultdict(list)
        for outage in outages:
            self.outages_of[outage.pid].append(outage)
        self.broker_pauses = [o for o in outages if o.pid in self.broker_pids and not o.was_killed]

    def _read_clients(self) -> None:
        self.asked: dict[tuple[str, str], int] = {}  # by key: the first time
        self.acknowledged: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)  # by key, by task: the first time
        self.orders: dict[int, list[lines.Ordered]] = defaultdict(list)  # by task, or by step if the command names one
        self.observed: dict[int, list[lines.Observed]] = defaultdict(list)
        for line in self.ledgers.clients:
            match line:
                case lines.Asked():
                    self.asked.setdefault((line.namespace, line.key), line.at)
                case lines.AskedMany():
                    for key in line.keys:
                        self.asked.setdefault((line.namespace, key), line.at)
                case lines.Acknowledged():
                    self.acknowledged[line.namespace, line.key].setdefault(line.task_id, line.at)
                case lines.AcknowledgedMany():
                    for key, task_id in zip(line.keys, line.task_ids, strict=True):
                        self.acknowledged[line.namespace, key].setdefault(task_id, line.at)
                case lines.Ordered():
                    about = line.task_id if line.task_id is not None else line.step_id
                    if about is not None:
                        self.orders[about].append(line)
                case lines.Observed():
                    self.observed[line.task_id].append(line)
        self.keys_of: dict[int, list[tuple[str, str]]] = defaultdict(list)  # by task
        for name, tasks in self.acknowledged.items():
            for task_id in tasks:
                self.keys_of[task_id].append(name)

    def _read_handlers(self) -> None:
        ends: dict[tuple[int, int, int], EndLine] = {}
        starts: dict[int, list[Started]] = defaultdict(list)
        self.effects: dict[int, list[lines.Effect]] = defaultdict(list)
        for line in self.ledgers.handlers:
            kind = type(line)
            if line.batch_id is not None:
                line.delivery = self.delivery_in(line.step_id, line.batch_id)
            if kind is Started:
                starts[line.step_id].append(line)  # type: ignore[arg-type]
            elif kind is lines.Effect:
                self.effects[line.step_id].append(line)  # type: ignore[arg-type]
            else:
                ends[line.step_id, line.delivery, line.pid] = line  # type: ignore[assignment]
        self.ends = ends
        self.runs: dict[int, list[Run]] = {
            step_id: sorted((self._run(start, ends) for start in of_step), key=_delivery_of_run)
            for step_id, of_step in starts.items()
        }

        self._read_level0()

    def _read_level0(self) -> None:
        """Collect when level-0 handlers were busy or suspended: they run one batch after the other."""
        self._batch_begun: dict[tuple[int, str | None], int] = {}  # by process and batch
        self._occupied: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by process, latest first
        for run in (run for runs in self.runs.values() for run in runs if run.is_level0):
            began = run.started
            batch = (began.pid, began.batch_id)
            self._batch_begun[batch] = min(began.at, self._batch_begun.get(batch, FOR_EVER))
            if run.over - began.at >= LEVEL0_GRACE_NS:  # long enough that the next batch may have arrived meanwhile
                self._occupied[began.pid].append((began.at, run.over))
        for pid in {pid for pid, _ in self._batch_begun}:
            self._occupied[pid] += [(o.start, o.end) for o in self.outages_of.get(pid, ()) if not o.was_killed]
            self._occupied[pid].sort(reverse=True)

    def given_at(self, run: Run) -> int:
        """Return the earliest time at which the batch of this level-0 run can have arrived.

        The batch arrived as the run began, or while its handler was busy with another batch or suspended.
        """
        pid = run.started.pid
        at = self._batch_begun[pid, run.started.batch_id]
        for start, end in self._occupied[pid]:
            if start < at <= end + STEADY_NS:
                at = start
        return at

    def _run(self, start: Started, ends: dict[tuple[int, int, int], EndLine]) -> Run:
        end = ends.get((start.step_id, start.delivery, start.pid))
        over = self.process_ends.get(start.pid, FOR_EVER) if end is None else end.at
        return Run(start, end, over)

    def _read_wire(self) -> None:
        self.given: dict[int, list[Given]] = defaultdict(list)
        self.gone: dict[tuple[int, int, int], int] = {}  # by step, delivery and process: its first `go`
        sent: dict[tuple[int, int], dict[tuple[int, int], Sent]] = defaultdict(dict)  # by process and rid, by item
        self.sent: dict[int, list[Sent]] = defaultdict(list)
        acked: dict[tuple[int, int], int] = {}
        self.pids_of: dict[str, int] = {}  # by worker
        beats: dict[int, dict[int, int]] = defaultdict(dict)
        renewed: dict[int, list[int]] = defaultdict(list)
        stops: dict[tuple[int, int, int], int] = {}
        for line in self.ledgers.wire:
            pid = line.pid
            match line:
                case lines.Beat():
                    beats[pid][line.n] = line.at
                case lines.BeatHeard():
                    if line.n in beats[pid]:
                        renewed[pid].append(beats[pid][line.n])
                case lines.Received():
                    self.pids_of[line.worker] = pid
                    for step in line.items:
                        self.given[step.step_id].append(Given(line, step))
                case lines.ResultsSent():
                    message = sent[pid, line.rid]
                    for result in line.results:  # only the first sending counts
                        message.setdefault((result.step_id, result.delivery), Sent(line, result, None))
                case lines.ResultsAcked():
                    for rid in line.rids:
                        acked.setdefault((pid, rid), line.at)
                case lines.Go():
                    for step_id, delivery in line.items:
                        self.gone.setdefault((step_id, delivery, pid), line.at)
                case lines.ToldToStop():
                    for step_id, delivery in line.items:
                        stops.setdefault((step_id, delivery, pid), line.at)
        for number, results in sent.items():
            for each in results.values():
                self.sent[each.result.step_id].append(each._replace(acked_at=acked.get(number)))
        self.stops = stops
        self.recorded_pids = {line.pid for line in self.ledgers.wire}
        self.silences: dict[int, list[tuple[int, int]]] = {
            pid: self._silences(sorted({*renewed[pid]})) for pid in beats
        }

    def _silences(self, renewed: Sequence[int]) -> list[tuple[int, int]]:
        """Return the gaps of a whole lease between beats whose echo came back, and the time after the last of them."""
        least = self.lease_ns * WORKER_FACTOR
        return [(a, b) for a, b in pairwise([*renewed, FOR_EVER]) if b - a >= least]

    def was_silent(self, pid: int, since: int, until: int) -> bool:
        """Return whether a heartbeat gap of a whole lease overlaps this time and reaches a lease before its end."""
        if pid in self.silences:
            least = self.lease_ns * WORKER_FACTOR
            return any(min(b, until) - a >= least and b >= since for a, b in self.silences[pid])
        return any(
            not o.was_killed and o.end >= since and min(o.end, until) - o.start >= self.lease_ns * SILENT_FACTOR
            for o in self.outages_of.get(pid, ())
        )

    def was_broker_silent(self, since: int, until: int) -> bool:
        return any(
            o.end >= since and min(o.end, until) - o.start >= self.lease_ns * SILENT_FACTOR for o in self.broker_pauses
        )

    def broker_was_out(self, since_wall_ms: int, until_wall_ms: int) -> bool:
        """Return whether a broker was suspended or killed in this time."""
        since, until = (ms * 1_000_000 - self.wall_minus_at for ms in (since_wall_ms, until_wall_ms))
        return any(o.pid in self.broker_pids and o.start <= until and o.end >= since for o in self.outages)

    def last_mentions(self) -> dict[int, int]:
        """Return the wall time at which each task was last acknowledged or run."""
        shift = self.wall_minus_at
        last: dict[int, int] = defaultdict(int)
        for tasks in self.acknowledged.values():
            for task_id, at in tasks.items():
                last[task_id] = max(last[task_id], at + shift)
        for runs in self.runs.values():
            for run in runs:
                task_id, end = run.started.task_id, run.started if run.end is None else run.end
                last[task_id] = max(last[task_id], end.at + shift)
        return last

    def at_of_wall(self, wall_ms: int) -> int | None:
        """Convert a time of the database to the ledgers' clock, or None if the two drifted apart."""
        return wall_ms * 1_000_000 - self.wall_minus_at if self.is_wall_steady else None


class Case(Struct):
    """Everything about one task."""

    task: TaskRow
    steps: list[StepRow]
    story: TaskStory
    plan: Plan
    rows: list[tuple[int, list[Fact]]]  # its history: sequence of the group, facts
    lane_id: int
    # computed once, used by many rules
    runs: list[tuple[StepStory, list[Any]]] | None = None
    given: list[tuple[StepStory, list[Any]]] | None = None

    def pairs(self) -> Iterator[tuple[StepRow, StepStory]]:
        """Every step that has both a row and a position in the workflow."""
        stories = self.story.steps
        return ((row, stories[row.position]) for row in self.steps if 0 <= row.position < len(stories))

    def output_of(self, index: int) -> str | None:
        return next((row.output for row in self.steps if row.position == index), None)


class Lane(NamedTuple):
    id: int
    lane: int
    seq: int


class Database:
    """One state of the database, even while a broker continues to write."""

    def __init__(self, path: Path, kept_ms: int | None = None) -> None:
        """`kept_ms`: an ended task may be removed after this time; None: no task is removed."""
        self.kept_ms = kept_ms
        self.seen_at_wall_ns = time.time_ns()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._connection.execute("PRAGMA cache_size = -65536")
        self._connection.execute("BEGIN")
        self.plans = {
            number: read_plan(number, document)
            for number, document in self._connection.execute("SELECT id, document FROM workflows")
        }
        self.lanes = {row[0]: Lane(*row) for row in self._connection.execute("SELECT id, lane, seq FROM lanes")}
        self.keys: dict[tuple[str, str], int] = {
            (namespace, key): task_id
            for namespace, key, task_id in self._connection.execute("SELECT namespace, key, task_id FROM keys")
        }
        self.parked: list[tuple[int | None, str, str, bytes]] = self._connection.execute(
            "SELECT task_id, code, source, body FROM parked"
        ).fetchall()
        self._batches: dict[int, dict[tuple[int, str], int]] = {}  # by task: the delivery, by step and batch
        self.workflow_documents = dict(self._connection.execute("SELECT id, document FROM workflows"))

        note = self._connection.execute("SELECT value FROM meta WHERE name = 'pruning'").fetchone()
        self.going: set[int] = (
            set() if note is None else set(msgspec.json.decode(note[0]))
        )  # tasks whose removal is under way

    def close(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()

    def delivery_in(self, step_id: int, batch_id: str) -> int:
        """Return the delivery of the step in this batch; 0: none."""
        row = self._connection.execute("SELECT task_id, position FROM steps WHERE id = ?", (step_id,)).fetchone()
        if row is None:
            return 0
        task_id, position = row
        if task_id not in self._batches:
            dispatched = {}
            for (facts,) in self._connection.execute("SELECT facts FROM history WHERE task_id = ?", (task_id,)):
                for fact in _decode(facts):
                    if fact[0] == "dispatched":
                        dispatched[fact[2], fact[5]] = int(fact[3])
            self._batches[task_id] = dispatched
        return self._batches[task_id].get((position, batch_id), 0)

    def damage(self) -> Iterator[str]:
        """Yield the damage that the database finds itself: pages, indexes, references, declared conditions."""
        execute = self._connection.execute
        yield from (text for (text,) in execute("PRAGMA integrity_check") if text != "ok")
        yield from (f"a row of {row[0]} refers to a missing row: {row}" for row in execute("PRAGMA foreign_key_check"))
        # SQLite's own check tests declared conditions only with write access.
        for table, sql in execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%CHECK (%'"):
            for condition in _checks(sql):
                (count,) = execute(f"SELECT count(*) FROM {table} WHERE NOT ({condition})").fetchone()  # noqa: S608
                if count:
                    yield f"{count} rows of {table} violate their condition: {condition}"

    def strangers(self) -> list[str]:
        """Rows that belong to no task."""
        return [
            f"{what} of task {task_id}, which does not exist"
            for what, query in _STRANGERS.items()
            for (task_id,) in self._connection.execute(query)
            if task_id not in self.going
        ]

    def history_gaps(self) -> Iterator[str]:
        """A group's rows are numbered from 0 without gaps, and no group is later than its lane."""
        for lane_id, seq, count, last in self._connection.execute(
            "SELECT lane_id, seq, count(*), max(position) FROM history GROUP BY lane_id, seq"
        ):
            if last + 1 != count and self.kept_ms is None:
                yield f"group {seq} of lane {lane_id} has {count} rows, the last of them number {last}"
            lane = self.lanes.get(lane_id)
            if lane is None or seq > lane.seq:
                yield f"group {seq} of lane {lane_id} exists, and the lane is at {lane and lane.seq}"

    def cases(self) -> Iterator[Case]:
        """Yield every task, in order of ids."""
        steps = _Grouped(self._select(StepRow, "steps", "task_id, position"))
        history = _Grouped(self._select(HistoryRow, "history", "task_id, lane_id, seq, position"))
        for row in self._select(TaskRow, "tasks", "id"):
            plan = self.plans.get(row.workflow_id)
            rows = history.of(row.id)
            if plan is None or row.id in self.going:
                continue  # the check of references reports it, or the task is being removed
            facts = [(h.seq, _decode(h.facts)) for h in rows]
            yield Case(row, steps.of(row.id), read_story(plan, facts), plan, facts, rows[0].lane_id if rows else 0)

    def _select(self, row: Any, table: str, order: str) -> Iterator[Any]:
        rows = self._connection.execute(f"SELECT {', '.join(row._fields)} FROM {table} ORDER BY {order}")  # noqa: S608
        return map(row._make, rows)


_STRANGERS: Final = {
    f"a row of {table}": f"SELECT DISTINCT task_id FROM {table} WHERE task_id NOT IN (SELECT id FROM tasks)"  # noqa: S608
    for table in ("steps", "history", "keys")
}


def _checks(sql: str) -> Iterator[str]:
    """Yield the conditions in a table's declaration."""
    for part in sql.split("CHECK (")[1:]:
        depth = 1
        for end, character in enumerate(part):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                yield part[:end]
                break


class _Grouped:
    """Rows in order of `task_id`, read in that order."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._groups = groupby(rows, key=attrgetter("task_id"))
        self._next = next(self._groups, None)

    def of(self, task_id: int) -> list[Any]:
        while self._next is not None and self._next[0] < task_id:
            self._next = next(self._groups, None)
        if self._next is None or self._next[0] != task_id:
            return []
        rows = list(self._next[1])
        self._next = next(self._groups, None)
        return rows


def _clocks(ledgers: Ledgers) -> tuple[int, bool]:
    """Return the wall clock minus the other clock, and whether that difference stayed the same."""
    differences = [
        line.wall - line.at
        for of_kind in (ledgers.clients, ledgers.handlers, ledgers.wire, ledgers.faults, ledgers.commits)
        for line in of_kind
        if line.wall
    ]
    if not differences:
        return 0, False
    return min(differences), max(differences) - min(differences) <= STEADY_NS


def _delivery_of_run(run: Run) -> tuple[int, int]:
    return run.started.delivery, run.started.at
