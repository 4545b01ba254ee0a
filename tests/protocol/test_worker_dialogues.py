"""The Python worker keeps to every dialogue that drives a worker: its session in its driver, and on real sockets."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.dialogue import Dialogue, load, play
from conformance.worker_stage import DriverUnderTest

from .worker_on_sockets import WorkerOnSockets

DIALOGUES = [dialogue for dialogue in load() if "worker" in dialogue.drives]


@pytest.fixture(scope="module")
def python_driver() -> Iterator[DriverUnderTest]:
    with DriverUnderTest([sys.executable, "-m", "stepwire.driver"]) as driver:
        yield driver


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_session_keeps_to_the_dialogue(dialogue: Dialogue, python_driver: DriverUnderTest) -> None:
    assert python_driver.grade(dialogue) is None


@pytest.mark.parametrize("dialogue", [d for d in DIALOGUES if not d.simulated], ids=lambda d: d.name)
def test_the_worker_keeps_to_the_dialogue(dialogue: Dialogue, tmp_path: Path) -> None:
    with WorkerOnSockets(dialogue, tmp_path) as stage:
        play(dialogue, "worker", stage)
