"""Tables that must name every member of a union or an enumeration. A type checker does not see a missing row."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from stepwire_broker.cli.task.watch import STATE_STYLES
from stepwire_broker.core import explain, machine
from stepwire_broker.core.model import apply, facts
from stepwire_broker.core.model.events import Command, Event
from stepwire_broker.core.model.states import STEP_TRANSITIONS, StepState, TaskState
from stepwire_broker.store import tables


def members(union: Any) -> Iterator[type]:
    """The classes of a union, and of the unions in it. A base class is replaced by its subclasses."""
    for each in get_args(union):
        if get_args(each):
            yield from members(each)
        else:
            yield from leaves(each)


def leaves(kind: type) -> Iterator[type]:
    below = [each for each in kind.__subclasses__() if each.__module__.startswith("stepwire")]
    for each in below:
        yield from leaves(each)
    if not below:
        yield kind


@pytest.mark.parametrize("kind", dict.fromkeys([*members(Event), *leaves(Command)]), ids=lambda kind: kind.__name__)
def test_every_event_has_a_handler(kind: type) -> None:
    if kind.__name__ != "Broken":  # the loop ends the broker on it
        assert kind in (machine.MESSAGES | machine.HANDLERS)


@pytest.mark.parametrize("fact", get_args(facts.Fact), ids=lambda fact: fact.__name__)
def test_every_fact_has_a_change(fact: type) -> None:
    assert (fact in apply._STEP) is (fact in STEP_TRANSITIONS)
    assert (fact in apply._TASK) is (fact not in STEP_TRANSITIONS)


@pytest.mark.parametrize("state", StepState)
def test_every_state_of_a_step_has_columns_an_explanation_and_a_sign(state: StepState) -> None:
    assert state in re.findall(r"WHEN '(\w+)'", tables.STEP_STATES)
    assert state in explain._OF_STATE
    assert state in STATE_STYLES


@pytest.mark.parametrize("state", TaskState)
def test_every_state_of_a_task_has_columns(state: TaskState) -> None:
    assert state in re.findall(r"WHEN '(\w+)'", tables.TASK_STATES)
