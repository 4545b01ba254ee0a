"""P10: the history replays to the rows, and the database that holds both is sound."""

from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

import msgspec

from tests.checker.database import Case, Database, StepRow
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds, Judged


def the_rows_match_the_history(database: Database, seen: Witnesses, case: Case) -> Finds:
    task, story = case.task, case.story
    for column, in_row, in_history in (
        ("uid", task.uid, story.uid),
        ("state", task.state, story.state),
        ("attention", task.attention, story.attention),
        ("cancelling", bool(task.cancelling), story.cancelling),
        ("created_ms", task.created_ms, story.created_ms),
        ("finished_ms", task.finished_ms, story.finished_ms),
    ):
        if in_row != in_history:
            yield Finding(None, f"the row has {column} {in_row}, the history {in_history}")
    for first in (row for row in case.steps if row.position == 0):
        if first.id != case.story.first_step_id:
            yield Finding(0, f"the row has id {first.id}, the history {case.story.first_step_id} as the first step's")
    for row, step in case.pairs():
        if row[_COMPARED_FROM:_COMPARED_TO] == (
            step.state,
            step.attempt,
            step.delivery,
            step.accept_from,
            step.batch_id,
            step.worker,
            step.granted,
            step.lost_sessions,
            step.ready_ms,
            step.dispatched_ms,
            step.started_ms,
            step.not_before_ms,
            step.finished_ms,
            step.run_ms,
            step.reason,
            step.key_number,
            step.output_bytes,
        ):
            continue
        for column in StepRow._fields[_COMPARED_FROM:_COMPARED_TO]:
            if getattr(row, column) != getattr(step, column):
                yield Finding(
                    step.index, f"the row has {column} {getattr(row, column)}, the history {getattr(step, column)}"
                )


_COMPARED_FROM: Final = StepRow._fields.index("state")


_COMPARED_TO: Final = StepRow._fields.index("output")


def an_output_is_the_one_that_was_applied(database: Database, seen: Witnesses, case: Case) -> Finds:
    for row, step in case.pairs():
        if step.state != "completed":
            continue
        output = b"" if row.output is None else row.output.encode()
        if len(output) != step.output_bytes or crc32(output) != step.output_crc32:
            yield Finding(
                step.index,
                f"its output has {len(output)} bytes and CRC-32 {crc32(output)}, applied were {step.output_bytes} "
                f"and {step.output_crc32}",
            )


def the_history_replays(database: Database, seen: Witnesses, case: Case) -> Finds:
    """The product's own replay finds no difference either."""
    from stepwire_broker.core.commit import history
    from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
    from stepwire_broker.core.definitions.workflow import stored_workflow

    number = case.plan.id
    if number not in _WORKFLOWS or _WORKFLOWS[number][0] is not database:
        row = StoredWorkflow(number, "", "", "", "", database.workflow_documents[number], 0, 1)
        _WORKFLOWS[number] = (database, stored_workflow(row))
    facts = [msgspec.json.encode(row) for _, row in case.rows]
    try:
        replayed = history.replay(case.task.id, _WORKFLOWS[number][1], facts)
        for difference in history.differences(replayed, case.task, case.steps):  # type: ignore[arg-type]
            index = case.plan.by_name.get(difference.step or "")
            yield Finding(index, f"the row has {difference.what} {difference.row}, its replay {difference.history}")
    except (history.CannotReplay, msgspec.DecodeError, ValueError) as error:
        yield Finding(None, str(error))


_WORKFLOWS: Final[dict[int, tuple[Database, Any]]] = {}


def no_commit_is_undone(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    stored = {lane.id: lane.seq for lane in database.lanes.values()}
    for lane, seq in seen.commits:
        if seq > stored.get(lane, 0):
            yield f"group {seq} of lane {lane} was committed, and the lane is at {stored.get(lane)}"


def the_history_has_no_gap(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from database.history_gaps()


def the_database_is_sound(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from database.damage()
    yield from database.strangers()


def nothing_is_parked(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    for task_id, code, source, body in database.parked:
        yield f"a row of task {task_id} was parked by {source}: {code} {body[:500]!r}"
