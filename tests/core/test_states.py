"""The transition tables, read back: what they allow, what they forbid, and that the drawing in docs/ is of today."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from stepwire_broker.core.commit import history
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import apply
from stepwire_broker.core.model.states import (
    STEP_FINAL,
    STEP_TRANSITIONS,
    TASK_FINAL,
    TASK_TRANSITIONS,
    StepState,
    drawing,
)

from .world import CHAIN, World

DOCS = Path(__file__).parents[2] / "docs" / "states.md"


def test_the_committed_drawing_matches_the_tables() -> None:
    assert DOCS.read_text() == drawing(), "run: python -m stepwire_broker.core.model.states > docs/states.md"


def test_the_states_module_prints_its_drawing() -> None:
    command = [sys.executable, "-m", "stepwire_broker.core.model.states"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == drawing()


def test_a_final_state_is_left_only_by_an_operators_command() -> None:
    leaving = {(fact, before) for fact, moves in STEP_TRANSITIONS.items() for before in moves if before in STEP_FINAL}
    assert {fact for fact, _ in leaving} == {facts.Reopened}
    leaving_task = {fact for fact, moves in TASK_TRANSITIONS.items() for before in moves if before in TASK_FINAL}
    assert leaving_task == {facts.TaskReopened}


@pytest.mark.parametrize("state", StepState)
def test_every_step_state_can_be_reached_and_leads_to_a_final_state(state: StepState) -> None:
    reached = {StepState.WAITING} | {after for moves in STEP_TRANSITIONS.values() for after in moves.values()}
    assert state in reached
    ends, more = {state}, True
    while more:
        nexts = {after for moves in STEP_TRANSITIONS.values() for before, after in moves.items() if before in ends}
        more = not nexts <= ends
        ends |= nexts
    assert ends & STEP_FINAL


def test_a_success_never_changes_a_final_step() -> None:
    assert not set(STEP_TRANSITIONS[facts.Completed]) & STEP_FINAL


def test_a_transition_outside_the_table_is_a_broken_invariant() -> None:
    world = World()
    task = world.state.tasks[world.task(CHAIN)]
    with pytest.raises(KeyError):
        apply(task, facts.Completed(1, 1, 1, 2, 3))  # b still waits
    with pytest.raises(KeyError):
        apply(task, facts.Resumed(1))


def test_every_fact_is_the_same_after_encoding_and_decoding() -> None:
    told: list[facts.Fact] = [
        facts.Submitted(1, 2, "u" * 32, "running", 2),
        facts.Readied(1, 0),
        facts.Dispatched(1, 0, 1, "w:0", "batch"),
        facts.Granted(1, 0, 1),
        facts.Started(1, 0, 1),
        facts.Undelivered(1, 0, 1, "busy", False),
        facts.Completed(1, 0, 1, 2, 3, 4),
        facts.BackedOff(1, 0, 1, "timeout", 99, 4, "timeout: too long"),
        facts.Failed(1, 0, 1, "x", 4, "x: no"),
        facts.Held(1, 0, 1, "x", None, "x: no"),
        facts.Restored(1, 0),
        facts.Erased(1, "asked for", "alice"),
        facts.Skipped(1, 0),
        facts.StepCancelled(1, 0, "task_cancelled"),
        facts.Reopened(1, 0, True),
        facts.Activated(1),
        facts.Paused(1, "ann"),
        facts.Resumed(1),
        facts.CancelAsked(1, "why", "ann"),
        facts.TaskReopened(1),
        facts.Operated(1, "retry", None, "why", "ann"),
        facts.Noticed(1, None),
        facts.TaskEnded(1, "completed"),
    ]
    assert len({type(f) for f in told}) == len(facts.Fact.__args__)
    assert facts.decode(facts.encode(told)) == told


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "does not begin"),
        ([[facts.Readied(1, 0)]], "does not begin"),
        ([[facts.Submitted(1, 1, "u", "running", 2)], [facts.Completed(1, 0, 1, 1, 1)]], "does not follow"),
        ([[facts.Submitted(1, 1, "u", "running", 2), facts.Readied(1, 9)]], "does not follow"),
    ],
)
def test_a_broken_history_is_refused_with_its_reason(rows: list[list[facts.Fact]], why: str) -> None:
    world = World()
    world.apply(CHAIN)
    with pytest.raises(history.CannotReplay, match=why):
        history.replay(1, world.state.workflows[1], map(facts.encode, rows))


@pytest.mark.parametrize(
    ("column", "value"),
    [("state", "ready"), ("delivery", 7), ("output", '{"ok":1234}'), ("reason", "x"), ("worker", None), ("id", 99)],
)
def test_a_row_that_differs_from_its_history_is_reported(column: str, value: object) -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    world.result(world.batches()[0])
    workflow = world.state.workflows[1]
    assert world.rows.differences(task_id, workflow) == []
    world.rows.forge_step(task_id + 1, **{column: value})
    found = world.rows.differences(task_id, workflow)
    assert [(d.step, d.what) for d in found] == [("a", "output_crc32" if column == "output" else column)]
    assert msgspec.json.encode(found[0].step)
