"""The judge accepts a real run, and names the broken rule of each of its forgeries."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from . import promises
from .forgeries import (
    FAILURE,
    FORGERIES,
    MS_NS,
    SOONER,
    SUCCESS,
    Forger,
    Forgery,
    later,
    retry_undelivered,
    send_late,
    twice,
)
from .good_run import LEASE_MS, Evidence
from .judge import Verdict, judge, page
from .language import LANGUAGE_RULES

REPOSITORY = Path(__file__).resolve().parents[2]


def _verdict(evidence: Evidence) -> Verdict:
    return judge(evidence.database, evidence.ledgers, lease_ms=LEASE_MS)


def test_a_true_run_has_no_violations(evidence: Evidence) -> None:
    verdict = _verdict(evidence)
    assert not verdict.violations, page(verdict)
    assert verdict.figures["started again"] == {
        "its worker was killed": 2,
        "its worker was silent for a lease": 2,
        "it had timed out": 2,
        "its handler had failed": 2,
        "its lease at level 0 was over": 2,
    }
    assert verdict.figures["held for"] == {"its worker was killed": 1, "its lease at level 0 was over": 1}
    submissions, results = verdict.counters["submissions"], verdict.counters["results"]
    assert (submissions.attempt, submissions.ok, submissions.lost, submissions.duplicated) == (16, 16, 0, 0)
    assert results.acknowledged == results.ok + results.late
    assert (results.lost, results.unexpected, results.duplicated) == (0, 0, 0)


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.name)
def test_a_forgery_breaks_its_rule(evidence: Evidence, forgery: Forgery) -> None:
    forgery.forge(Forger(evidence))
    verdict = _verdict(evidence)
    assert forgery.rule in {violation.rule for violation in verdict.violations}, page(verdict)


@pytest.mark.parametrize("is_retried", [False, True], ids=["late_failure", "late_success_after_a_retry"])
def test_the_ack_of_a_late_result_may_precede_the_end_of_the_next_delivery(
    evidence: Evidence, is_retried: bool
) -> None:
    """The forgeries in commits.py have the same results with an ack that leaves before the commit."""
    forger = Forger(evidence)
    if is_retried:
        retry_undelivered(forger, "slept-0")
    late_since = forger.committed_at("slept-0", "reopened" if is_retried else "undelivered", 0)
    assert late_since + MS_NS < forger.committed_at("slept-0", "completed", 0)
    send_late(forger, "slept-0", SUCCESS if is_retried else FAILURE, late_since + MS_NS)
    named = {violation.rule for violation in _verdict(evidence).violations}
    assert SOONER not in named if is_retried else not named


def test_every_rule_has_a_forgery() -> None:
    named = {rule.__name__ for rule in (*promises.CASE_RULES, *promises.WHOLE_RULES, *promises.AT_THE_END)}
    assert {forgery.rule for forgery in FORGERIES} == named | set(LANGUAGE_RULES)
    assert len({forgery.name for forgery in FORGERIES}) == len(FORGERIES)


def test_a_violation_is_shown_with_its_timeline(evidence: Evidence) -> None:
    forger = Forger(evidence)
    forger.run("chain-0", "a", "started", twice(delivery=2))
    text = page(_verdict(evidence))
    _, _, story = text.partition("NO STEP RUNS AGAIN WITHOUT A CAUSE")
    for moment in (
        f"task {forger.task('chain-0')}/a",
        "submitted chain-0",
        "a dispatched",
        "a received",
        "a completed",
    ):
        assert moment in story


def test_ledgers_with_fewer_lines_cause_no_violation(evidence: Evidence) -> None:
    """A worker in another language may write no wire, a shipped broker no commits, and any process no wall time."""
    for prefix in ("wire", "commits", "client"):
        for path in evidence.ledgers.glob(f"{prefix}-*"):
            path.unlink()
        assert not _verdict(evidence).violations
    Forger(evidence).lines("worker", lambda line: {k: v for k, v in line.items() if k != "wall"})
    Forger(evidence).lines("faults", lambda line: {k: v for k, v in line.items() if k != "wall"})
    assert not _verdict(evidence).violations
    for path in evidence.ledgers.iterdir():
        path.unlink()
    assert [v.rule for v in _verdict(evidence).violations] == ["a_held_step_has_a_cause"] * 2


def test_a_line_cut_short_by_a_kill_and_an_unknown_event_are_ignored(evidence: Evidence) -> None:
    for path in evidence.ledgers.glob("worker-*"):
        path.write_bytes(path.read_bytes() + b'{"event":"dreamt","at":1}\n{"event":"started","at":')
    assert not _verdict(evidence).violations


def test_lines_later_than_the_reading_of_the_database_are_left_out(evidence: Evidence) -> None:
    Forger(evidence).run("chain-0", "a", "started", lambda x: [x, later(10**18)(x | {"delivery": 2})])
    verdict = _verdict(evidence)
    assert not verdict.violations
    assert verdict.figures["left out"] == 1


@pytest.mark.parametrize(("kept_ms", "named"), [(0, set()), (3_600_000, {"nothing_acknowledged_is_lost"})])
def test_only_a_task_older_than_the_retention_time_may_be_missing(
    evidence: Evidence, kept_ms: int, named: set[str]
) -> None:
    forger = Forger(evidence)
    for key in ("chain-0", "held-0"):
        task_id = forger.task(key)
        for table in ("keys", "history", "steps"):
            forger.sql(f"DELETE FROM {table} WHERE task_id = ?", task_id)  # noqa: S608
        if key == "held-0":  # its removal is under way
            forger.sql("INSERT INTO meta (name, value) VALUES ('pruning', ?)", f"[{task_id}]")
        else:
            forger.sql("DELETE FROM tasks WHERE id = ?", task_id)
    verdict = judge(evidence.database, evidence.ledgers, lease_ms=LEASE_MS, kept_ms=kept_ms)
    assert {violation.rule for violation in verdict.violations} - {"every_run_has_a_step"} == named


@pytest.mark.parametrize(("event", "is_cause"), [("killed", True), ("asked_to_end", False)])
def test_a_kill_is_a_cause_to_run_a_step_again_and_a_request_to_end_is_not(
    evidence: Evidence, event: str, is_cause: bool
) -> None:
    forger = Forger(evidence)
    first = forger.started("chain-0", "a")
    forger.run("chain-0", "a", "started", lambda x: [x, later(10_000_000)(x | {"delivery": 2})])
    done = {"event": event, "at": first["at"] + 1, "wall": first["wall"] + 1, "role": "worker", "pid": first["pid"]}
    forger.lines("faults", lambda line: [line, done] if line["event"] == "started" else line)
    named = {violation.rule for violation in _verdict(evidence).violations}
    assert ("no_step_runs_again_without_a_cause" in named) is not is_cause


def test_the_command_prints_the_page_and_writes_the_verdict(evidence: Evidence, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.checker", str(evidence.database), "--ledger", str(evidence.ledgers)]
    command += ["--lease-ms", str(LEASE_MS), "--json", str(tmp_path / "verdict.json")]
    kept = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert kept.stdout.startswith("Every promise was kept.")
    assert msgspec.json.decode((tmp_path / "verdict.json").read_bytes())["kept"] is True
    Forger(evidence).set_step("chain-0", "a", attempt=1)
    broken = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert broken.returncode == 1
    written = msgspec.json.decode((tmp_path / "verdict.json").read_bytes())
    assert written["violations"][0]["rule"] == "the_rows_match_the_history"
    assert written["violations"][0]["timeline"]
    missing = subprocess.run(
        [*command, "--ledger", "nowhere"], cwd=REPOSITORY, capture_output=True, timeout=60, check=False
    )
    assert missing.returncode == 2
