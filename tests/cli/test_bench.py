"""`stepwire bench`: its figures come from work that was really done, and it leaves no files."""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.bench import idle, product, routes
from stepwire_broker.bench.load import DEFAULT, NAME, STEPS, BenchFailed, Setup, Workload
from stepwire_broker.cli import bench_report
from stepwire_broker.cli.options import Options
from stepwire_broker.core.definitions.settings import ExecutionSettings
from stepwire_broker.core.routing.router import Router, hidden, path_of

from tests.compare_checkouts import FIGURES, compared

from .a_place import Place, place

SMALL = ["--rounds", "1", "--tasks", "100", "--window", "50", "--quick"]
LOAD = Workload(rounds=1, tasks=100, window=50, submit_tasks=50, lone_tasks=3)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Run `stepwire bench` once with each set of options. Return its report."""

    @cache
    def measure(*options: str) -> dict[str, Any]:
        directory = tmp_path_factory.mktemp("measured")
        directory.chmod(0o700)
        # A test's own directory can be too deep for an ipc path.
        with tempfile.TemporaryDirectory(prefix="sw-") as temporary:
            done = place(directory).stepwire("bench", *options, *SMALL, "-o", "json", TMPDIR=temporary)
            left = os.listdir(temporary)
        assert (done.code, done.err, left) == (0, "", []), done
        report: dict[str, Any] = done.json
        return report

    return measure


def test_a_round_reports_its_load_and_leaves_no_files(measured: Callable[..., dict[str, Any]]) -> None:
    report = measured()
    assert {name: report["load"][name] for name in ("rounds", "tasks", "window", "submit_tasks")} == {
        "rounds": 1,
        "tasks": 100,
        "window": 50,
        "submit_tasks": 50,
    }
    medians = report["medians"]
    assert medians["tasks_replayed"] >= 2 * (100 + report["load"]["lone_tasks"])
    assert min(medians[name] for name in medians if name.endswith("_per_s")) > 0
    for kind in ("bare", "best", "default"):
        assert 0 < medians[f"{kind}_latency_ms"]["p50"] <= medians[f"{kind}_latency_ms"]["p99"]
        assert {len(one[f"{kind}_latencies_ms"]) for one in report["rounds"]} == {report["load"]["lone_tasks"]}
    for kind in ("best", "default"):
        assert medians[f"{kind}_of_bare"] > 0
        assert medians[f"{kind}_latency_of_bare"] > 0
    low, high = medians["spread"]["default_of_best"]
    assert 0 < low <= medians["default_of_best"] <= high


def test_text_output_prints_the_settings_and_a_table(
    measured: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench_report.ALL.show(Options(), measured())
    shown = capsys.readouterr().out
    assert "1 round of 100 tasks of 4 steps, 50 in flight" in shown
    assert "product, best settings\t" in shown
    assert "product, default settings\t" in shown
    assert "default settings: 2 workers with 10 slots each, at most 50 steps per message" in shown
    assert re.search(r"default settings reach \d+\.\d\d of the best settings", shown)
    assert "bare durable loop, until its last commit\t" in shown
    assert "no difference from the tables" in shown
    assert "each `vs` figure is the median of the ratios within a round" in shown


def test_every_column_of_figures_is_aligned_right() -> None:
    tables = (
        bench_report.COLUMNS,
        bench_report.ROUTES_COLUMNS,
        bench_report.IDLE_COLUMNS,
        bench_report.LATENCY_COLUMNS,
        bench_report.KEYS_COLUMNS,
    )
    assert {column.member for table in tables for column in table if not column.is_figure} == {"measured"}


def test_each_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    rounds = [
        {
            **{f"{kind}_steps_per_s": rate for kind in ("echo", "best", "default")},
            "bare_steps_per_s": bare,
            **{f"{kind}_cpu_us_per_step": {"broker": 1.0} for kind in ("best", "default")},
            **{f"{kind}_latencies_ms": [1.0] for kind in ("bare", "best", "default")},
            "tasks_replayed": 1,
        }
        for rate, bare in [(100.0, 200.0), (300.0, 100.0), (200.0, 400.0)]
    ]
    medians = bench_report.medians_of_all(rounds)
    assert [medians[f"{kind}_of_bare"] for kind in ("echo", "best", "default")] == [0.5, 0.5, 0.5]


def test_routes_are_measured_with_rules_that_steps_followed(measured: Callable[..., dict[str, Any]]) -> None:
    medians = measured("--routes")["medians"]
    assert medians["tasks_replayed"] >= 2 * 100
    assert min(medians[name] for name in medians if name.endswith("_per_s") or name == "routed_of_plain") > 0
    assert min(medians["canary_steps"], medians["other_steps"]) > 0
    assert (medians["canary_steps"] + medians["other_steps"]) % 4 == 0  # a task stays on one side


def test_keys_are_compared_with_a_bus_without_keys(measured: Callable[..., dict[str, Any]]) -> None:
    medians = measured("--keys")["medians"]
    assert medians["tasks_replayed"] >= 2 * 100
    assert min(medians[name] for name in ("null_steps_per_s", "curve_steps_per_s", "curve_of_null")) > 0
    assert min(medians["null_p50_ms"], medians["curve_p50_ms"]) > 0


def test_a_worker_of_the_measured_product_has_keys(tmp_path: Path) -> None:
    with product.running(tmp_path, LOAD, Setup(is_tcp=True, has_keys=True)) as running:
        [worker] = running.workers()
    assert worker["principal"] == "bench"


def test_text_output_of_keys_prints_a_table(
    measured: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench_report.KEYS.show(Options(), measured("--keys"))
    shown = capsys.readouterr().out
    assert "product, NULL (no keys)\t" in shown
    assert "product, CURVE\t" in shown
    assert "tcp on loopback; one worker with 1000 slots" in shown


def test_the_ratio_of_keys_is_the_median_of_the_ratios_within_a_round() -> None:
    rounds = [
        {
            "null_steps_per_s": null,
            "curve_steps_per_s": curve,
            **{f"{kind}_cpu_us_per_step": {"broker": 1.0} for kind in ("null", "curve")},
            "null_latencies_ms": [1.0, 2.0, 3.0],
            "curve_latencies_ms": [1.5, 2.25, 9.0],
            "null_tasks_replayed": 1,
            "curve_tasks_replayed": 1,
        }
        for null, curve in [(100.0, 90.0), (200.0, 160.0), (50.0, 49.0)]
    ]
    medians = bench_report.medians_of_keys(rounds)
    assert medians["curve_of_null"] == 0.9
    assert medians["curve_more_ms"] == 0.25


def test_the_throughput_idle_tasks_tasks_is_measured_with_all_of_them_open(
    measured: Callable[..., dict[str, Any]],
) -> None:
    medians = measured("--idle-tasks", "0,150")["medians"]
    none, some = medians["idle"]
    assert (none["idle_tasks"], some["idle_tasks"]) == (0, 150)
    assert none["of_first"] == 1.0
    assert min(none["steps_per_s"], some["steps_per_s"], some["of_first"], some["submitted_per_s"]) > 0
    assert medians["tasks_replayed"] >= 2 * 100


def test_text_output_idle_tasks_tasks_prints_a_table(empty: Place) -> None:
    done = empty.stepwire("bench", "--idle-tasks", "10", *SMALL)
    assert "limits.max_open_steps of the brokers: 1000000" in done.out
    assert "\n10\t" in done.out


def test_limits_leave_room_for_the_measured_steps_beside_the_idle_tasks() -> None:
    limits = idle.limits_for(1_000_000, LOAD)
    assert limits["max_open_steps"] >= 1_000_000 + 4 * (LOAD.window + LOAD.submit_tasks)


@pytest.mark.parametrize("wrong", ["-5", "10,", "many", "10000001"])
def test_numbers_of_idle_tasks_are_checked(empty: Place, wrong: str) -> None:
    done = empty.stepwire("bench", f"--idle-tasks={wrong}")
    assert done.code == 2
    assert "use numbers from 0 to 10000000, separated by commas" in done.err


def test_routes_and_idle_tasks_are_different_measurements(empty: Place) -> None:
    done = empty.stepwire("bench", "--routes", "--idle-tasks", "10")
    assert done.code == 2
    assert "use one of them" in done.err


def test_text_output_of_routes_prints_a_table(
    measured: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench_report.ROUTES.show(Options(), measured("--routes"))
    shown = capsys.readouterr().out
    assert "two workers with 1000 slots in total" in shown
    assert "product, 12 rules, 4 executors\t" in shown
    assert "no difference from the tables" in shown


def test_every_step_of_the_bench_matches_only_the_last_rule() -> None:
    settings = msgspec.convert(routes.ROUTED["execution"], ExecutionSettings)
    router = Router(settings, routes.EXECUTORS, bus_is_distributed=True)
    assert len(router.rules) == 12
    assert hidden(router.rules) == []
    for step in STEPS:
        place = router.route(path_of("default", NAME, step), None)
        assert place.rule is router.rules[-1]
        assert place.canary is not None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the product has run and ended."""
    directory = tmp_path_factory.mktemp("bench")
    with product.running(directory, LOAD, DEFAULT) as running:
        throughput, cpu = running.run(LOAD, lambda _: None)
        assert throughput.steps == 400
        assert cpu.broker >= 0
        assert len(running.latencies_ms(LOAD.lone_tasks)) == 3
    return directory


def test_the_check_replays_every_task(finished: Path) -> None:
    checked: list[float] = []
    assert product.check(finished, checked.append) == sum(checked) >= 103


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE steps SET attempt = 1 WHERE id = (SELECT max(id) FROM steps)",
        "UPDATE tasks SET state = 'failed' WHERE id = (SELECT max(id) FROM tasks)",
        "UPDATE steps SET output = '{}' WHERE id = (SELECT min(id) FROM steps)",
    ],
)
def test_the_check_finds_a_row_that_differs_from_its_history(finished: Path, change: str) -> None:
    with sqlite3.connect(finished / "product.db", isolation_level=None) as connection:
        connection.execute("BEGIN")
        before = connection.execute("SELECT id, attempt, output FROM steps").fetchall()
        states = connection.execute("SELECT id, state FROM tasks").fetchall()
        connection.execute(change)
        connection.execute("COMMIT")
        try:
            with pytest.raises(BenchFailed):
                product.check(finished, lambda _: None)
        finally:
            connection.executemany("UPDATE steps SET attempt = ?2, output = ?3 WHERE id = ?1", before)
            connection.executemany("UPDATE tasks SET state = ?2 WHERE id = ?1", states)
    connection.close()


def test_two_checkouts_are_measured_in_turn() -> None:
    here = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.compare_checkouts", str(here), str(here), "--pairs", "1", "--least", "0"]
    done = subprocess.run(
        [*command, "--", "--quick", "--tasks", "100", "--window", "50"],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "default settings, steps/s" in done.stdout
    assert len(done.stdout.splitlines()) == 1 + len(FIGURES)


def test_the_ratio_of_two_checkouts_is_the_median_of_the_ratios_within_a_pair() -> None:
    pairs = [(dict.fromkeys(FIGURES, b), dict.fromkeys(FIGURES, a)) for b, a in ((100, 90), (50, 50), (10, 12))]
    rows = compared(pairs)
    assert {(row["before"], row["after"], row["ratio"]) for row in rows.values()} == {(50, 50, 1.0)}
    assert {(row["lowest"], row["highest"]) for row in rows.values()} == {(0.9, 1.2)}
