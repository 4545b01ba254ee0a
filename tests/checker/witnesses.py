"""The witnesses: the ledgers by subject, in memory."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from . import ledgers as lines
from .ledgers import EndLine, Ledgers, Started
from .polled import FOR_EVER, WORKER_FACTOR, PolledSessions

STEADY_NS: Final = 100_000_000  # a larger drift between the two clocks, and wall times prove nothing
LEVEL0_GRACE_NS: Final = 5_000_000_000  # a level-0 lease is the timeout and this
SILENT_FACTOR: Final = 0.78  # without its beats: the last may be a fifth of a lease before the silence


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
        self.polled = PolledSessions(ledgers, self.lease_ns)
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
