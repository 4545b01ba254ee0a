"""The language against histories that the product's own core made, under faults, in the simulated world: it takes all
of them, and adds them up to the very rows; and of each of them it misses whatever fact is taken out.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.simulation.world import World

from .language import Fact, Plan, StepStory, TaskStory, read_plan, read_story

SEEDS = range(12)
STEP_COLUMNS = [name for name in StepStory.__struct_fields__ if name not in ("plan", "index", "output_crc32")]
STEP_COLUMNS = STEP_COLUMNS[: STEP_COLUMNS.index("deliveries")]
TASK_COLUMNS = ("uid", "state", "attention", "cancelling", "created_ms", "finished_ms")
UNSEEN = {"a_back_off_is_waited_for"}  # wall clocks jump there
# What comes after may make it as if it had never been: a delivery that came to nothing, a pause in which nothing was
# due, a hold that a late result ended. And that somebody said so: the witnesses know.
FORGETTABLE = {"started", "granted", "undelivered", "paused", "resumed", "held", "operated"}

_decode = msgspec.json.Decoder(list[Fact]).decode


class Told(NamedTuple):
    plan: Plan
    rows: list[tuple[int, list[Fact]]]
    task: Any
    steps: list[Any]


@cache
def histories(seed: int) -> list[Told]:
    world = World(seed)
    assert world.run().violation is None
    tables = world.tables
    told = []
    for task_id, rows in tables.history.items():
        if task_id in tables.tasks:
            workflow = world.checks.workflow_of(task_id)
            facts = [(seq, _decode(row.facts)) for seq, row in enumerate(rows)]
            plan = read_plan(workflow.id, workflow.document)
            told.append(Told(plan, facts, tables.stored_task(task_id), tables.stored_steps(task_id)))
    assert told
    return told


def _wrong(told: Told, story: TaskStory) -> Iterator[Any]:
    yield from (offence for offence in story.offences if offence.rule not in UNSEEN)
    yield from (c for c in TASK_COLUMNS if getattr(told.task, c) != getattr(story, c))
    for row, step in zip(told.steps, story.steps, strict=True):
        yield from (f"{step.plan.name}: {c}" for c in STEP_COLUMNS if getattr(row, c) != getattr(step, c))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_simulated_history_is_of_the_language_and_adds_up_to_its_rows(seed: int) -> None:
    for told in histories(seed):
        assert not list(_wrong(told, read_story(told.plan, told.rows)))


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fact_is_taken_out_is_missed(seed: int) -> None:
    for told in histories(seed):
        for i, (_, facts) in enumerate(told.rows):
            for k, fact in enumerate(facts):
                if fact[0] not in FORGETTABLE:
                    without = [*told.rows[:i], (i, [*facts[:k], *facts[k + 1 :]]), *told.rows[i + 1 :]]
                    if not any(_wrong(told, read_story(told.plan, without))):
                        pytest.fail(f"{fact} of {told.rows}")
