"""Load of chains of four steps, as the groups that a broker writes for them."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
from stepwire_broker.core.model.commit_group import (
    CommitGroup,
    Committed,
    HistoryRow,
    StepCompleted,
    StepDispatched,
    StepNew,
    Submission,
    TaskChanged,
    TaskNew,
)
from stepwire_broker.store.lane import Writing
from stepwire_broker.store.postgres.fence import Fence, Position
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.statements import HotStatements
from stepwire_broker.store.postgres.writer import PostgresWriter

from tests.store.stored_rows import step_new, task_changed, task_new

STEPS: Final = 4
BLOCK: Final = 1 << 20
NOW: Final = 1_700_000_000_000
CONTEXT: Final = msgspec.json.encode({"order_id": 12345, "note": "x" * 80}).decode()
OUTPUT: Final = '{"ok":true,"amount":12.5}'


class Chains:
    """The tasks of one lane. Each group takes some of them one event further: a dispatch or a result."""

    def __init__(self, schema: str, lane: int, tasks: int, epoch: int = 0) -> None:
        self._fence = Fence(schema)
        self._statements = HotStatements(schema)
        self._lane = lane
        self._epoch = epoch
        self._seq = 0
        self._ids = (BLOCK * lane + number for number in count(1, STEPS + 1))
        self._events = [iter(()) for _ in range(tasks)]
        self._next = 0
        self.steps = 0  # that were completed

    def group(self, events: int) -> list[StatementCall]:
        """The statements of the next group, with this number of events."""
        self._seq += 1
        lists: dict[str, list[dict[str, Any]]] = {}
        for _ in range(events):
            at = self._next = (self._next + 1) % len(self._events)
            event = next(self._events[at], None)
            if event is None:
                self._events[at] = self._life(next(self._ids))
                event = next(self._events[at])
            for name, rows in event.items():
                lists.setdefault(name, []).extend(rows)
        self.steps += len(lists.get("steps_completed", ()))
        for position, row in enumerate(lists["history"]):
            row.update(lane_id=self._lane, seq=self._seq, position=position)
        statements = self._statements.of_groups()
        calls = [_call(statements[name], lists[name]) for name in ORDER if name in lists]
        return [BEGIN, self._fence.call(Position(self._lane, self._epoch, self._seq)), *calls, COMMIT]

    def _life(self, task_id: int) -> Iterator[dict[str, list[dict[str, Any]]]]:
        """The events of a task: stored, and for each step dispatched and completed."""
        steps = [task_id + number for number in range(1, STEPS + 1)]
        yield {
            "tasks_new": [_task(task_id, self._lane)],
            "steps_new": [_step(step, task_id, position) for position, step in enumerate(steps)],
            "history": [_fact(task_id, f'[["submitted","order","1",{steps[0]}]]')],
        }
        for position, step in enumerate(steps):
            yield {
                "steps_dispatched": [_dispatched(step)],
                "history": [_fact(task_id, f'[["dispatched",{position},1,"batch_{step}","worker-1"]]')],
            }
            is_last = position == STEPS - 1
            changed = {"tasks_changed": [_finished(task_id)]} if is_last else {}
            yield {
                "steps_completed": [_completed(step)],
                "history": [_fact(task_id, f'[["completed",{position},0,25,3]]')],
                **changed,
            }


class GroupChains:
    """The same chains as groups of the core, for the product's own writer."""

    def __init__(self, lane: int, tasks: int) -> None:
        self._lane = lane
        self._seq = 0
        self._ids = (BLOCK * lane + number for number in count(1, STEPS + 1))
        self._lives: list[Iterator[_Event]] = [iter(()) for _ in range(tasks)]
        self._next = 0
        self.steps = 0  # that were completed

    def group(self, events: int) -> CommitGroup:
        """The next group, with this number of events."""
        self._seq += 1
        group = CommitGroup(lane=self._lane, seq=self._seq)
        tasks: list[TaskNew] = []
        steps: list[StepNew] = []
        for _ in range(events):
            at = self._next = (self._next + 1) % len(self._lives)
            event = next(self._lives[at], None)
            if event is None:
                self._lives[at] = _life(next(self._ids), self._lane)
                event = next(self._lives[at])
            tasks += event.tasks
            steps += event.steps
            group.steps_dispatched += event.dispatched
            group.steps_completed += event.completed
            group.tasks_changed += event.changed
            group.history += event.history
        self.steps += len(group.steps_completed)
        if tasks:
            group.submissions.append(Submission(1, [], tasks, steps, []))
        return group


class _Event(NamedTuple):
    history: Sequence[HistoryRow]
    tasks: Sequence[TaskNew] = ()
    steps: Sequence[StepNew] = ()
    dispatched: Sequence[StepDispatched] = ()
    completed: Sequence[StepCompleted] = ()
    changed: Sequence[TaskChanged] = ()


def _life(task_id: int, lane: int) -> Iterator[_Event]:
    """The events of a task: stored, and for each step dispatched and completed."""
    ids = [task_id + number for number in range(1, STEPS + 1)]
    yield _Event(
        [HistoryRow(task_id, NOW, b'[["submitted","order","1",%d]]' % ids[0])],
        tasks=[
            task_new(task_id, lane=lane, context=CONTEXT.encode(), context_bytes=len(CONTEXT), rank_ms=NOW + task_id)
        ],
        steps=[
            step_new(step, task_id, i, state="waiting" if i else "ready", ready_ms=None if i else NOW)
            for i, step in enumerate(ids)
        ],
    )
    for i, step in enumerate(ids):
        yield _Event(
            [HistoryRow(task_id, NOW, b'[["dispatched",%d,1,"batch_%d","worker-1"]]' % (i, step))],
            dispatched=[StepDispatched(step, 1, f"batch_{step}", "worker-1", NOW, NOW + 1)],
        )
        is_last = i == STEPS - 1
        yield _Event(
            [HistoryRow(task_id, NOW, b'[["completed",%d,0,25,3]]' % i)],
            completed=[StepCompleted(step, OUTPUT.encode(), len(OUTPUT), NOW + 5, 3)],
            changed=[task_changed(task_id, state="completed", finished_ms=NOW)] if is_last else [],
        )


def write_groups(writer: PostgresWriter, chains: GroupChains, lane: int, groups: int, events: int) -> None:
    for _ in range(groups):
        outcome = Writing(lane, writer, chains.group(events)).attempt()
        assert isinstance(outcome, Committed), outcome


ORDER: Final = ("tasks_new", "steps_new", "steps_dispatched", "steps_completed", "tasks_changed", "history")


def write(pipeline: Pipeline, chains: Chains, groups: int, events: int) -> None:
    for _ in range(groups):
        pipeline.run(chains.group(events))


def _call(statement: Statement, rows: list[dict[str, Any]]) -> StatementCall:
    body = msgspec.json.encode(rows)
    return StatementCall(statement, (body, len(rows)) if statement.name == "tasks_changed" else (body,))


def _task(task_id: int, lane: int) -> dict[str, Any]:
    return {
        "id": task_id,
        "uid": f"{task_id:032x}",
        "workflow_id": 1,
        "lane": lane,
        "namespace": "default",
        "state": "running",
        "cancelling": False,
        "stored": False,
        "priority": 0,
        "rank_ms": NOW + task_id,
        "context_bytes": len(CONTEXT),
        "created_ms": NOW + task_id,
        "context": CONTEXT,
    }


def _finished(task_id: int) -> dict[str, Any]:
    return {
        "id": task_id,
        "state": "completed",
        "cancelling": False,
        "stored": False,
        "finished_ms": NOW,
    }


def _step(step_id: int, task_id: int, position: int) -> dict[str, Any]:
    first = {"state": "ready", "ready_ms": NOW} if position == 0 else {"state": "waiting"}
    named = {"name": f"step_{position}", "handler_class": "shop::Handler"}
    return {"id": step_id, "task_id": task_id, "position": position, **named, **first}


def _dispatched(step_id: int) -> dict[str, Any]:
    times = {"ready_ms": NOW, "dispatched_ms": NOW + 1}
    return {"id": step_id, "delivery": 1, "batch_id": f"batch_{step_id}", "worker": "worker-1", **times}


def _completed(step_id: int) -> dict[str, Any]:
    return {"id": step_id, "output": OUTPUT, "output_bytes": len(OUTPUT), "finished_ms": NOW + 5, "run_ms": 3}


def _fact(task_id: int, facts: str) -> dict[str, Any]:
    return {"task_id": task_id, "at_ms": NOW, "facts": facts}
