"""The Python worker keeps to every dialogue that drives a worker: in pretended time, and on real sockets."""

from pathlib import Path

import pytest

from .dialogue import Dialogue, load, play
from .pretended_worker import PretendedWorker
from .worker_on_sockets import WorkerOnSockets

DIALOGUES = [dialogue for dialogue in load() if "worker" in dialogue.drives]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_session_keeps_to_the_dialogue(dialogue: Dialogue) -> None:
    play(dialogue, "worker", PretendedWorker(dialogue))


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_worker_keeps_to_the_dialogue(dialogue: Dialogue, tmp_path: Path) -> None:
    with WorkerOnSockets(dialogue, tmp_path) as stage:
        play(dialogue, "worker", stage)
