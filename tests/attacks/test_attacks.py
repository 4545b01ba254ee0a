"""The attacks run as commands: `python -m tests.attacks NAME --seconds 30`."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import PACKAGE, names, table
from .listeners import TCP
from .many_connections import of_bus, of_http, run
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
    assert report["attacker"]["connections"] > 0
    assert report["honest"]["completed"] > 0
    assert report["honest"]["client"]["tasks"] > 0


def test_the_table_names_each_limit_that_an_attack_exceeded() -> None:
    report = {
        "attack": "http-waits",
        "livez": {"p99_ms": 12.0},
        "rss_mb": {"before": 60, "most": 72},
        "attacker": {"join_max_s": 0.31},
        "honest": {"share": 0.61, "share_before": 1.0},
        "limits": {"livez_p99_ms": 250.0, "rss_mb": 150.0, "share": 0.8},
    }
    good, bad = {"ok": True, "because": []}, {"ok": False, "because": ["61% of the offered steps were completed"]}
    heading, first, second = (line.split() for line in table([report | good, report | bad]).splitlines())
    assert heading[:3] == ["attack", "livez", "p99"]
    assert " ".join(first) == "http-waits 12 ms 250 ms +12 MB +150 MB 0.3 s 3 s 61% 100% 80% pass"
    assert " ".join(second).endswith("80% FAIL: 61% of the offered steps were completed")


def test_memory_and_descriptors_of_a_broker_return_after_thousands_of_connections(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running_target(tmp_path) as target:
        report = run(target, 5_000, of_http(target))
    assert report["ok"], report


def test_memory_of_the_bus_returns_after_thousands_of_connections(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running_target(tmp_path, TCP) as target:
        report = run(target, 6_000, of_bus(target))
    assert report["ok"], report
