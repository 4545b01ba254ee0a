"""The second limit: a bare durable loop. A task is a chain of four steps. A step is published after the commit of its
dispatch and of its predecessor's result. A commit contains everything that arrived during the previous commit.

The loop has no HTTP, general graph, retries, timeouts, leases, acks or history. The loop is not a broker, but a bound
that no broker can exceed.
"""

import queue
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq
from msgspec import Raw
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import ResultsLevel0, StepMetadataLevel0, StepRequestLevel0, StepsLevel0

from .load import CONTEXT, HANDLER, STEPS, BenchFailed, Progress, Throughput, Workload
from .peer import ANSWER, TIMEOUT_S, TOPIC, Sockets

TABLES: Final = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY, state TEXT NOT NULL, context TEXT NOT NULL);
CREATE TABLE steps (
  id INTEGER PRIMARY KEY, task_id INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, output TEXT
);
CREATE INDEX steps_of_task ON steps (task_id);
"""
# In the order of a group's lists. Each statement takes one JSON parameter: the thread needs the interpreter once per
# statement, not once per row.
WRITES: Final = (
    "INSERT INTO tasks SELECT value->>0, 'running', value->>1 FROM json_each(?)",
    "INSERT INTO steps SELECT value->>0, value->>1, value->>2, 'waiting', NULL FROM json_each(?)",
    "UPDATE steps SET state = 'completed', output = v.value->1 FROM json_each(?) v WHERE steps.id = v.value->>0",
    "UPDATE steps SET state = 'dispatched' WHERE id IN (SELECT value FROM json_each(?))",
    "UPDATE tasks SET state = 'completed' WHERE id IN (SELECT value FROM json_each(?))",
)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ResultsLevel0).decode
_context: Final = Raw(_encode(CONTEXT))
_metadata: Final = StepMetadataLevel0(attempt=0, retry_limit=3, timeout_ms=30_000)


class BareGroup:
    """The rows of the next transaction, and the steps to publish after its commit."""

    def __init__(self) -> None:
        self.rows: tuple[list[Any], ...] = ([], [], [], [], [])
        self.steps: list[StepRequestLevel0] = []


class BareWriter:
    """One thread with one connection. Every commit is synced; then one byte is sent on `done`."""

    def __init__(self, path: Path) -> None:
        self.done, self._notify = socket.socketpair()
        self._groups: queue.SimpleQueue[tuple[list[Any], ...] | None] = queue.SimpleQueue()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(TABLES)
        self._thread = threading.Thread(target=self._run, name="bench-writer", daemon=True)
        self._thread.start()

    def put(self, rows: tuple[list[Any], ...]) -> None:
        self._groups.put(rows)

    def finished_tasks(self) -> int:
        """The number of tasks whose steps all have their outputs. The thread must be idle."""
        query = """
        SELECT count(*) FROM tasks WHERE state = 'completed' AND 4 =
         (SELECT count(*) FROM steps WHERE task_id = tasks.id AND steps.state = 'completed' AND output LIKE '%carrier%')
        """
        return int(self._connection.execute(query).fetchone()[0])

    def close(self) -> None:
        self._groups.put(None)
        self._thread.join()
        self._connection.close()
        self.done.close()
        self._notify.close()

    def _run(self) -> None:
        while (rows := self._groups.get()) is not None:
            self._connection.execute("BEGIN IMMEDIATE")
            for statement, part in zip(WRITES, rows, strict=True):
                if part:
                    self._connection.execute(statement, (_encode(part).decode(),))
            self._connection.execute("COMMIT")
            self._notify.send(b".")


class BareLoop:
    """The loop that decides: it receives results, and produces rows and steps."""

    def __init__(self, sockets: Sockets, writer: BareWriter, batch_steps: int) -> None:
        self._to_peer, self._from_peer = sockets
        self._writer = writer
        self._batch_steps = batch_steps
        self._poller = zmq.Poller()
        self._poller.register(self._from_peer, zmq.POLLIN)
        self._poller.register(writer.done, zmq.POLLIN)
        self._open = BareGroup()
        self._writing: BareGroup | None = None
        self._outputs: dict[int, dict[str, Raw]] = {}
        self._tasks = 0
        self._batches = 0
        self.finished = 0  # tasks whose last commit is done

    def submit(self) -> None:
        self._tasks += 1
        task_id = self._tasks
        self._outputs[task_id] = {}
        tasks, steps, *_ = self._open.rows
        tasks.append((task_id, _context))
        steps.extend((task_id * 4 + i, task_id, name) for i, name in enumerate(STEPS))
        self._dispatch(task_id, 0)

    def turn(self) -> None:
        """Wait for results or a commit, and process all that have arrived."""
        ready = dict(self._poller.poll(int(TIMEOUT_S * 1000)))
        if not ready:
            raise BenchFailed(f"the bare loop got neither a result nor a commit for {TIMEOUT_S:g} s")
        if self._writer.done.fileno() in ready:
            self._writer.done.recv(1)
            self._committed()
        while True:
            try:
                frame = self._from_peer.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            for result in _decode(frame[len(ANSWER) :]).results:
                self._completed(result.step_id, result.output)
        self.hand_over()

    def hand_over(self) -> None:
        """Pass the collected rows to the writer, unless the writer is busy."""
        if self._writing is None and any(self._open.rows):
            self._writing, self._open = self._open, BareGroup()
            self._writer.put(self._writing.rows)

    def _committed(self) -> None:
        group, self._writing = self._writing, None
        assert group is not None
        self.hand_over()  # first, so that the writer works while this group is published
        self.finished += len(group.rows[4])
        for start in range(0, len(group.steps), self._batch_steps):
            self._batches += 1
            batch = StepsLevel0(
                batch_id=f"batch_{self._batches}",
                protocol_version=limits.PROTOCOL_LEVEL_0,
                steps=group.steps[start : start + self._batch_steps],
            )
            self._to_peer.send(TOPIC + codec.encode(batch))

    def _completed(self, step_id: int, output: Raw) -> None:
        task_id, position = divmod(step_id, 4)
        self._open.rows[2].append((step_id, output))
        if position + 1 < len(STEPS):
            self._outputs[task_id] = {STEPS[position]: output}
            self._dispatch(task_id, position + 1)
        else:
            self._open.rows[4].append(task_id)
            del self._outputs[task_id]

    def _dispatch(self, task_id: int, position: int) -> None:
        step_id = task_id * 4 + position
        self._open.rows[3].append(step_id)
        self._open.steps.append(
            StepRequestLevel0(
                step_id=step_id,
                task_id=task_id,
                step_name=STEPS[position],
                handler_class=HANDLER,
                task_context=_context,
                previous_results=Raw(_encode(self._outputs[task_id])),
                metadata=_metadata,
            )
        )


def run(sockets: Sockets, directory: Path, load: Workload, progress: Progress) -> tuple[Throughput, list[float]]:
    """Run `load.tasks` tasks with `load.window` in flight, then `load.lone_tasks` one at a time.

    Returns the throughput, and the milliseconds that each lone task took. Every row is checked afterwards.
    """
    writer = BareWriter(directory / "bare.db")
    try:
        loop = BareLoop(sockets, writer, load.batch_steps)
        submitted = shown = 0
        started = time.perf_counter()
        while loop.finished < load.tasks:
            while submitted < load.tasks and submitted - loop.finished < load.window:
                loop.submit()
                submitted += 1
            loop.hand_over()
            loop.turn()
            progress(loop.finished - shown)
            shown = loop.finished
        seconds = time.perf_counter() - started
        latencies_ms = [_lone_ms(loop) for _ in range(load.lone_tasks)]
        if writer.finished_tasks() != loop.finished:
            raise BenchFailed(
                f"the bare loop stored only {writer.finished_tasks()} of {loop.finished} tasks completely"
            )
        return Throughput(load.tasks * len(STEPS), seconds), latencies_ms
    finally:
        writer.close()


def _lone_ms(loop: BareLoop) -> float:
    """The time of one task on an idle loop, from before its submission until its last commit."""
    started = time.perf_counter()
    before = loop.finished
    loop.submit()
    loop.hand_over()
    while loop.finished == before:
        loop.turn()
    return (time.perf_counter() - started) * 1000
