"""A short run of the measurement, and the faults that it would report."""

import sys

from . import burst
from .burst import Burst, Outcome

PYTHON = {"python": [sys.executable, "-m", "stepwire.conform"]}
SHORT = Burst(steps=24, ms=50, copies=2, slots=2, step=2, cooldown="0s", commands=PYTHON)
GOOD = Outcome(empty_s=1.0, copies_most=2, back_s=1.0, once=24, lost=0, again=0, cut_off=0, died=0)


def test_a_burst_on_autoscaled_workers_runs_every_step_once() -> None:
    outcome = burst.autoscaled(SHORT)
    assert burst.faults(SHORT, {"autoscale": outcome}) == []
    assert outcome.once == SHORT.steps


def test_every_fault_of_a_run_is_reported() -> None:
    assert burst.faults(SHORT, {"fixed": GOOD, "autoscale": GOOD._replace(empty_s=2.0)}) == []
    slow = burst.faults(SHORT, {"fixed": GOOD, "autoscale": GOOD._replace(empty_s=2.1)})
    assert slow == ["the autoscaled burst took 2.10 times as long as the fixed one"]
    wrong = GOOD._replace(once=21, lost=1, again=2, cut_off=3, died=4)
    assert burst.faults(SHORT, {"fixed": wrong}) == [
        "fixed: 1 lost",
        "fixed: 2 run again",
        "fixed: 3 cut off",
        "fixed: 4 died",
        "fixed: 21 of 24 steps ran once",
    ]
