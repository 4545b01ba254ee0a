"""Rows to write, as the core writes them."""

from typing import Any

from stepwire_broker.core.model.commit_group import (
    HistoryRow,
    Key,
    StepChanged,
    StepCompleted,
    StepDispatched,
    StepNew,
    Submission,
    TaskChanged,
    TaskNew,
    WorkflowNew,
    rank_ms,
)
from stepwire_broker.store.ports import LANE

NOW = 1_700_000_000_000


def workflow_new(name: str = "order", version: str = "1", **changes: Any) -> WorkflowNew:
    new = WorkflowNew(1, "default", name, version, f"digest of {name} {version}", b'{"name":"order"}', NOW, True)
    return new._replace(**changes)


def task_new(task_id: int, **changes: Any) -> TaskNew:
    new = TaskNew(
        id=task_id,
        uid=f"{task_id:032x}",
        workflow_id=1,
        lane=LANE,
        namespace="default",
        key=None,
        state="running",
        attention=None,
        cancelling=False,
        priority=0,
        labels=None,
        context=b'{"order_id":12345}',
        context_bytes=18,
        created_ms=NOW,
        finished_ms=None,
        deadline_ms=None,
        rank_ms=0,
        stored=False,
        wake_ms=None,
        wants=None,
    )
    new = new._replace(**changes)
    return new if "rank_ms" in changes else new._replace(rank_ms=rank_ms(new.created_ms, new.priority))


def task_changed(task_id: int, **changes: Any) -> TaskChanged:
    changed = TaskChanged(
        id=task_id,
        state="running",
        attention=None,
        cancelling=False,
        finished_ms=None,
        deadline_ms=None,
        stored=False,
        wake_ms=None,
        wants=None,
    )
    return changed._replace(**changes)


def step_new(step_id: int, task_id: int, position: int = 0, **changes: Any) -> StepNew:
    return StepNew(step_id, task_id, position, f"step_{position}", "shop::Handler", "waiting", None)._replace(**changes)


def dispatched(step_id: int, **changes: Any) -> StepDispatched:
    return StepDispatched(step_id, 1, f"batch_{step_id}", "w-1", NOW, NOW + 1)._replace(**changes)


def completed(step_id: int, output: bytes = b'{"ok":true}') -> StepCompleted:
    return StepCompleted(step_id, output, len(output), NOW + 2, 1)


def step_changed(step_id: int, state: str, **changes: Any) -> StepChanged:
    changed = StepChanged(
        id=step_id,
        state=state,
        attempt=0,
        delivery=1,
        accept_from=0,
        batch_id=None,
        worker="w-1",
        granted=False,
        lost_sessions=0,
        ready_ms=NOW,
        dispatched_ms=NOW + 1,
        started_ms=None,
        not_before_ms=None,
        finished_ms=None,
        deadline_ms=None,
        run_ms=None,
        error=None,
        reason=None,
        key_number=0,
        earlier=None,
        handle=None,
    )
    return changed._replace(**changes)


def fact(task_id: int, text: bytes = b"[]") -> HistoryRow:
    return HistoryRow(task_id, NOW, text)


def submission(
    request: int, *task_ids: int, keys: dict[int, tuple[str, bytes]] | None = None, **changes: Any
) -> Submission:
    """Tasks of two steps each, whose ids follow their task's; `keys` by task id: (key, digest)."""
    keys = keys or {}
    return Submission(
        request,
        [Key("default", *keys[i], i) for i in task_ids if i in keys],
        [task_new(i, key=keys[i][0] if i in keys else None, **changes) for i in task_ids],
        [step_new(i + 1 + position, i, position) for i in task_ids for position in range(2)],
        [fact(i, b'[["submitted"]]') for i in task_ids],
    )
