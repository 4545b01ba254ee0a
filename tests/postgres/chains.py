"""Load of chains of four steps, as the groups that a broker writes for them."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import msgspec
from stepwire_broker.store.postgres.fence import Fence, Position
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.statements import HotStatements

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
