"""The broker keeps to every dialogue that drives a broker, over real sockets and with its database."""

from pathlib import Path

import pytest
from conformance.dialogue import Dialogue, load, play

from .broker_on_sockets import BrokerOnSockets

DIALOGUES = [dialogue for dialogue in load() if "broker" in dialogue.drives]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda d: d.name)
def test_the_broker_keeps_to_the_dialogue(dialogue: Dialogue, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with BrokerOnSockets(dialogue, tmp_path) as stage:
        play(dialogue, "broker", stage)
