"""The Python worker keeps to every dialogue that drives a worker: its session as a subject, and on real sockets."""

import sys
from pathlib import Path

import conformance
import pytest
from conformance.dialogue import Dialogue, load, play
from conformance.subject import grade

from .worker_on_sockets import WorkerOnSockets

DIALOGUES = [dialogue for dialogue in load() if "worker" in dialogue.drives]
SUBJECT = Path(conformance.__file__).with_name("subjects") / "python_session.py"


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_session_keeps_to_the_dialogue(dialogue: Dialogue) -> None:
    assert grade(dialogue, [sys.executable, str(SUBJECT)]) is None


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_worker_keeps_to_the_dialogue(dialogue: Dialogue, tmp_path: Path) -> None:
    with WorkerOnSockets(dialogue, tmp_path) as stage:
        play(dialogue, "worker", stage)
