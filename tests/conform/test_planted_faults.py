"""Some planted faulty workers, each caught by the case that names it. `python -m tests.conform.planted` runs all."""

import pytest
from stepwire_conform.case import CASES, CaseVerdict, Level
from stepwire_conform.grading import grade

from . import planted

FAULTS_MIN = 80
# One of each kind: session, sockets, what is read, errors, a near miss of a topic, level 0.
CHOSEN = (
    "go_of_another_delivery",
    "no_tombstone_after_the_ack",
    "split_at_every_space",
    "subscribes_without_the_space",
    "writes_nan",
    "topic_without_its_space",
    "level0_takes_every_topic",
)


def test_every_fault_names_a_case() -> None:
    named = {planted.case_of(fault) for fault in planted.names()}
    assert {name for name in named if not name.startswith(planted.ARRIVAL)} <= CASES.keys()
    assert len(planted.names()) >= FAULTS_MIN


@pytest.mark.parametrize("fault", CHOSEN)
def test_a_planted_fault_is_caught_by_the_case_that_names_it(fault: str) -> None:
    assert planted.why_not_caught(fault, planted.run(fault)) is None


def test_the_python_worker_passes_the_cases_that_the_chosen_faults_fail() -> None:
    names = {planted.case_of(fault) for fault in CHOSEN}
    chosen = [name for name in names if name in CASES and CASES[name].level is not Level.ZERO]
    result = grade(planted.PYTHON_WORKER, only=chosen)
    assert {o.case.name: o.verdict for o in result.outcomes} == dict.fromkeys(chosen, CaseVerdict.PASS)
