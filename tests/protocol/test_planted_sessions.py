"""The kit notices faults: each planted one by the dialogue, the rules or the lockstep that planted.json names.

`python -m tests.protocol.planted_sessions.measure` plants all faults again, and looks for what notices each of them.
"""

import json
from typing import Any

import pytest
from conformance.dialogue import load

from .planted_sessions import measure
from .planted_sessions.faults import FAULTS
from .planted_sessions.plant import Fault, driver_with

TABLE: dict[str, dict[str, Any]] = json.loads(measure.TABLE.read_text())
OTHERS = range(60)  # seeds, because another version of the session takes another course
DIALOGUES = {dialogue.name: dialogue for dialogue in load()}


def test_the_table_lists_every_fault_and_each_is_noticed() -> None:
    assert [fault.name for fault in FAULTS] == list(TABLE)
    unnoticed = [name for name, found in TABLE.items() if all(by is None for by in found.values())]
    assert unnoticed == []


def test_a_copy_of_the_session_without_a_fault_is_not_noticed() -> None:
    driver = driver_with(None)
    assert [d.name for d in DIALOGUES.values() if "worker" in d.drives and measure.by_dialogue(driver, d)] == []
    assert not measure.by_hostile(driver, 0)
    assert not measure.by_lockstep(driver, 0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_noticed(fault: Fault) -> None:
    driver, found = driver_with(fault), TABLE[fault.name]
    if found["dialogue"] is not None:
        assert measure.by_dialogue(driver, DIALOGUES[found["dialogue"]])
    elif found["lockstep"] is not None:
        assert any(measure.by_lockstep(driver, seed) for seed in (found["lockstep"], *OTHERS))
    else:
        assert any(measure.by_hostile(driver, seed) for seed in (found["hostile"], *OTHERS))
