"""The pieces of a group. When the database refuses data, the group is written in pieces. Each piece at fault is stored
with its bytes as refused input.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from stepwire_broker.core.model.commit_group import AuditPart, CommitGroup, Parked

PARKED_CODE: Final = "refused_by_database"
PARKED_SOURCE: Final = "store"


class Piece(NamedTuple):
    """A part of a group that is written or refused as a whole: a workflow, a submission, or one task's changes."""

    group: CommitGroup
    tasks: tuple[int, ...]
    at_ms: int


def pieces(group: CommitGroup, tasks_of_steps: dict[int, int]) -> list[Piece]:
    def empty() -> CommitGroup:
        return CommitGroup(lane=group.lane, seq=group.seq)

    now = max((row.at_ms for row in group.history), default=0)
    pieces = [Piece(_with(empty(), workflows=[new]), (), new.created_ms) for new in group.workflows]
    # A stored step belongs to its stored task, even if a refused submission contains the same step id.
    task_of = {step.id: step.task_id for s in group.submissions for step in s.steps} | tasks_of_steps
    by_task: dict[int, CommitGroup] = {}
    stored = set(tasks_of_steps.values())
    for s in group.submissions:
        created = max((task.created_ms for task in s.tasks), default=now)
        part = _with(empty(), submissions=[s])
        pieces.append(Piece(part, tuple(task.id for task in s.tasks), created))
        # Changes of a new task are stored together with the task, or not at all.
        by_task.update((task.id, part) for task in s.tasks if task.id not in stored)
    new = set(by_task)
    pieces += [Piece(_with(empty(), activations=[one]), (), now) for one in group.activations]
    pieces += [Piece(_with(empty(), controls=[one]), (), now) for one in group.controls]
    effects = {part: piece.group for piece in pieces for part in _parts(piece.group)}
    for name in ("steps_dispatched", "steps_completed", "steps_changed", "steps_output", "steps_stderr"):
        for row in getattr(group, name):
            if row.id in task_of:  # a change of a step that does not exist changes nothing
                getattr(by_task.setdefault(task_of[row.id], empty()), name).append(row)
    for changed in group.tasks_changed:
        by_task.setdefault(changed.id, empty()).tasks_changed.append(changed)
    for fact in group.history:
        by_task.setdefault(fact.task_id, empty()).history.append(fact)
    for noticed in group.attention:
        by_task.setdefault(noticed.task_id, empty()).attention.append(noticed)
    for erasure in group.erasures:
        by_task.setdefault(erasure.task_id, empty()).erasures.append(erasure)
    for row in group.audit:
        if row.part is not None and row.part[0] == "task":
            by_task.setdefault(int(row.part[1]), empty()).audit.append(row)
        elif row.part in effects:
            effects[row.part].audit.append(row)
        else:
            pieces.append(Piece(_with(empty(), audit=[row]), (), row.at_ms))
    for answered in group.orders_answered:
        if answered.part is not None:
            by_task.setdefault(int(answered.part[1]), empty()).orders_answered.append(answered)
        else:
            pieces.append(Piece(_with(empty(), orders_answered=[answered]), (), now))
    pieces += [Piece(part, (task_id,), now) for task_id, part in by_task.items() if task_id not in new]
    return pieces


def _parts(group: CommitGroup) -> Iterable[AuditPart]:
    """Name the effects of a piece, as the rows of `audit` name them."""
    yield from (("request", new.request) for new in group.workflows)
    yield from (("request", request) for request, _ in group.activations)
    yield from (("control", f"{control.kind} {control.name}") for control in group.controls)


def joined(group: CommitGroup, pieces: Sequence[Piece], left_out: set[int]) -> CommitGroup:
    """Join these pieces into one group, without the changes of tasks that were not stored."""
    joined = CommitGroup(lane=group.lane, seq=group.seq)
    for piece in pieces:
        part = piece.group
        if not part.submissions and left_out.intersection(piece.tasks):
            continue
        for name in _LISTS:
            getattr(joined, name).extend(getattr(part, name))
    return joined


_LISTS: Final = (
    "submissions",
    "workflows",
    "activations",
    "controls",
    "steps_dispatched",
    "steps_completed",
    "steps_changed",
    "steps_output",
    "steps_stderr",
    "tasks_changed",
    "history",
    "attention",
    "erasures",
    "audit",
    "orders_answered",
)


def _with(group: CommitGroup, **lists: list[Any]) -> CommitGroup:
    for name, rows in lists.items():
        setattr(group, name, rows)
    return group


def step_ids(group: CommitGroup) -> list[int]:
    lists: Iterable[Sequence[Any]] = (
        group.steps_dispatched,
        group.steps_completed,
        group.steps_changed,
        group.steps_output,
        group.steps_stderr,
    )
    return [row.id for rows in lists for row in rows if -(2**63) <= row.id < 2**63]


def parked(piece: Piece, error: str) -> Parked:
    """Return the refused rows as JSON that any reader can parse, regardless of the rows' fault."""
    rows = {name: [_plain(row) for row in getattr(piece.group, name)] for name in _LISTS}
    body = json.dumps({"error": error, **{name: row for name, row in rows.items() if row}})
    task_id = piece.tasks[0] if len(piece.tasks) == 1 and 0 < piece.tasks[0] < 2**63 else None
    return Parked(piece.at_ms, task_id, None, PARKED_CODE, PARKED_SOURCE, body.encode())


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value)
