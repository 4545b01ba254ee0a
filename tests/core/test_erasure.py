"""The command `erase`: it replaces the payloads of an ended task in memory and in every row, and nothing else."""

import json

import msgspec
import pytest
from stepwire_broker.core.answers import erasing
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.commit import scrubbing
from stepwire_broker.core.intake.commands import CancelTask, RetryTask
from stepwire_broker.core.intake.erasure import ErasedTask, EraseTask
from stepwire_broker.core.model import facts

from .world import CHAIN, ONE, World, one

SECRET = "jane.doe@example.com"
CONTEXT = b'{"email":"%s"}' % SECRET.encode()
LABELS = b'{"customer":"%s"}' % SECRET.encode()


def ended(outcome: str = "completed") -> tuple[World, int]:
    """A task with the secret in its context, its labels, its key, and its step's output or error."""
    world = World()
    task_id = world.task(
        ONE if outcome == "completed" else one(retry_limit=0), context=CONTEXT, labels=LABELS, key=SECRET
    )
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if outcome == "completed":
        world.result(batch, output=msgspec.Raw(CONTEXT))
    else:
        world.fail(batch, message=f"no account for {SECRET}", code=f"no-{SECRET}")
    assert world.stored(task_id).state == outcome
    return world, task_id


def everything(world: World) -> str:
    tables = world.rows.tables
    rows = [tables.tasks, tables.steps, tables.keys, tables.history, tables.log, tables.parked, tables.stderr]
    return repr(rows)


def erase(world: World, task_id: int) -> object:
    return world.ask(EraseTask, task_id=task_id, reason="request 17", by="alice")


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_an_erased_task_has_its_payloads_in_no_row_and_its_history_replays(outcome: str) -> None:
    world, task_id = ended(outcome)
    assert SECRET in everything(world)
    answer = erase(world, task_id)
    assert isinstance(answer, ErasedTask)
    assert SECRET not in everything(world)
    stored = world.stored(task_id)
    assert json.loads(stored.context or "") == json.loads(stored.labels or "") == {"erased": answer.erased_ms}
    assert (stored.key, stored.state) == (None, outcome)
    assert world.rows.tables.keys == {}
    world.check()


def test_states_and_times_stay_as_they_were() -> None:
    world, task_id = ended()
    before, steps_before = world.stored(task_id), world.rows.steps_of(task_id)
    erase(world, task_id)
    after, steps_after = world.stored(task_id), world.rows.steps_of(task_id)
    payload = {"key", "labels", "context", "context_bytes"}
    assert {n for n in before._fields if getattr(before, n) != getattr(after, n)} == payload
    assert {
        n for a, b in zip(steps_before, steps_after, strict=True) for n in a._fields if getattr(a, n) != getattr(b, n)
    } == {"output", "output_bytes"}


def test_a_second_erasure_changes_nothing_and_names_the_first_one() -> None:
    world, task_id = ended()
    first = erase(world, task_id)
    groups = len(world.groups)
    world.pass_time(60_000)
    assert erase(world, task_id) == first
    assert not any(group.erasures for group in world.groups[groups:])


def test_an_open_task_is_refused_until_it_has_been_cancelled() -> None:
    world = World()
    task_id = world.task(CHAIN, context=CONTEXT)
    refused = erase(world, task_id)
    assert isinstance(refused, CommandRefused)
    assert refused.code == "wrong_state"
    assert SECRET in everything(world)
    world.ask(CancelTask, task_id=task_id, reason=f"{SECRET} asked for it")
    assert isinstance(erase(world, task_id), ErasedTask)
    assert SECRET not in everything(world)
    world.check()


def test_an_erasure_in_the_transaction_of_the_end_erases_what_that_transaction_writes() -> None:
    world = World()
    task_id = world.task(CHAIN, context=CONTEXT, key=SECRET)
    world.auto = False
    world.apply(one(name="other"))  # its group is being written, so the next two commands share a group
    world.ask(CancelTask, task_id=task_id, reason=f"{SECRET} asked for it")
    erase(world, task_id)
    world.settle()
    assert SECRET not in everything(world)
    world.check()


def test_an_erased_task_is_not_retried() -> None:
    world, task_id = ended("failed")
    erase(world, task_id)
    refused = world.ask(RetryTask, task_id=task_id)
    assert isinstance(refused, CommandRefused)
    assert "erased" in refused.message
    world.check()


def test_the_breaker_of_the_handler_forgets_the_text_of_the_failure() -> None:
    world, task_id = ended("failed")
    erase(world, task_id)
    assert SECRET not in repr([guard.reason for guard in world.state.guards.by_handler.values()])


def test_every_member_of_every_fact_is_known_to_hold_text_or_not() -> None:
    harmless = {
        *("at", "step", "delivery", "worker", "batch_id", "lost", "output_bytes", "run_ms", "until", "new_key", "by"),
        *("workflow_id", "uid", "state", "first_step_id", "action", "attention"),
    }
    known = harmless | scrubbing.TEXTS | scrubbing.CODES | scrubbing.CHECKSUMS
    members = {name for kind in msgspec.inspect.type_info(facts.Fact).types for name in kind.cls.__struct_fields__}
    assert members == known


def test_a_label_of_a_client_is_never_the_mark_of_an_erasure() -> None:
    assert erasing.erased_ms(erasing.marker(17)) == 17
    assert erasing.erased_ms(b'{"erased":"17"}') is None
    assert erasing.erased_ms(None) is None
