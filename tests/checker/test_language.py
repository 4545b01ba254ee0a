"""The language accepts every history of the simulated core under faults, and notices the loss of any fact.

The story of each history equals its rows.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.simulation.world import World

from .language import read_story
from .plans import Plan, read_plan
from .story import Fact, StepStory, TaskStory

SEEDS = range(12)
STEP_COLUMNS = [name for name in StepStory.__struct_fields__ if name not in ("plan", "index", "output_crc32")]
STEP_COLUMNS = STEP_COLUMNS[: STEP_COLUMNS.index("deliveries")]
TASK_COLUMNS = ("uid", "state", "attention", "cancelling", "created_ms", "finished_ms")
UNSEEN = {"no_retry_starts_before_its_back_off_ends"}  # wall clocks jump in the simulation
# Later facts may hide the loss of these: a delivery without an outcome, a pause in which nothing was due, a hold that
# a late result ended, a command (the ledgers have it).
FORGETTABLE = {"started", "granted", "undelivered", "paused", "resumed", "held", "operated"}

_decode = msgspec.json.Decoder(list[Fact]).decode


class Recorded(NamedTuple):
    plan: Plan
    rows: list[tuple[int, list[Fact]]]
    task: Any
    steps: list[Any]


@cache
def histories(seed: int) -> list[Recorded]:
    world = World(seed)
    assert world.run().violation is None
    tables = world.tables
    histories_of_seed = []
    for task_id, rows in tables.history.items():
        if task_id in tables.tasks:
            workflow = world.checks.books.workflow_of(task_id)
            facts = [(seq, _decode(row.facts)) for seq, row in enumerate(rows)]
            plan = read_plan(workflow.id, workflow.document)
            histories_of_seed.append(Recorded(plan, facts, tables.stored_task(task_id), tables.stored_steps(task_id)))
    assert histories_of_seed
    return histories_of_seed


def _wrong(recorded: Recorded, story: TaskStory) -> Iterator[Any]:
    yield from (offence for offence in story.offences if offence.rule not in UNSEEN)
    yield from (c for c in TASK_COLUMNS if getattr(recorded.task, c) != getattr(story, c))
    for row, step in zip(recorded.steps, story.steps, strict=True):
        yield from (f"{step.plan.name}: {c}" for c in STEP_COLUMNS if getattr(row, c) != getattr(step, c))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_simulated_history_follows_the_language_and_equals_its_rows(seed: int) -> None:
    for recorded in histories(seed):
        assert not list(_wrong(recorded, read_story(recorded.plan, recorded.rows)))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_of_any_fact_is_noticed(seed: int) -> None:
    for recorded in histories(seed):
        for i, (_, facts) in enumerate(recorded.rows):
            for k, fact in enumerate(facts):
                if fact[0] not in FORGETTABLE:
                    without = [*recorded.rows[:i], (i, [*facts[:k], *facts[k + 1 :]]), *recorded.rows[i + 1 :]]
                    if not any(_wrong(recorded, read_story(recorded.plan, without))):
                        pytest.fail(f"{fact} of {recorded.rows}")
