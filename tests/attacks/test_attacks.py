"""The attacks run as commands: `python -m tests.attacks NAME --seconds 30`."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import PACKAGE, names
from .many_connections import of_http, run
from .target import running_target


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


def test_memory_and_descriptors_of_a_broker_return_after_thousands_of_connections(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running_target(tmp_path) as target:
        report = run(target, 5_000, of_http(target))
    assert report["ok"], report
