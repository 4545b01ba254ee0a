"""The attacks run as commands: `python -m tests.attacks NAME --seconds 30`."""

import importlib
import json
import subprocess
import sys

import pytest

from .__main__ import PACKAGE, names


@pytest.mark.parametrize("name", names())
def test_each_attack_is_described(name: str) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}")
    assert module.__doc__
    assert callable(module.attack)


def test_an_attack_reports_what_honest_clients_saw() -> None:
    command = [sys.executable, "-m", PACKAGE, "http-waits", "--seconds", "1"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout)
    assert set(report["livez"]["codes"]) == {"200"}
    assert set(report["submissions"]["codes"]) <= {"201"}
    assert report["refusals"]["waits_of_token"] > 0
