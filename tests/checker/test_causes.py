"""Each cause alone excuses a second run, and what only resembles a cause does not."""

from collections.abc import Callable
from typing import Any

import pytest

from .forgeries import SECOND_NS, Forger, Line
from .good_run import LEASE_MS, Evidence
from .judge import judge

LEASE_NS = LEASE_MS * 1_000_000
AGAIN, OVERLAP = "no_step_runs_again_without_a_cause", "runs_overlap_only_with_a_cause"

Excuse = Callable[[Forger, Line], Any]


def _fault(event: str, pid: int, at: int, role: str = "worker") -> Line:
    return {"event": event, "role": role, "pid": pid, "at": at, "program": "forged"}


def _add_faults(f: Forger, *faults: Line) -> None:
    f.lines("faults", lambda line: [line, *faults] if line is not None and line["event"] == "started" else line)


def _broker(f: Forger) -> int:
    """Return the process of the last broker, which was not killed."""
    return [int(line["pid"]) for line in f.read("faults") if line["role"] == "broker"][-1]


def _pause(f: Forger, pid: int, since: int, ns: int, role: str = "worker") -> None:
    _add_faults(f, _fault("paused", pid, since, role), _fault("resumed", pid, since + ns, role))


def _without_wire(f: Forger) -> None:
    for path in f.evidence.ledgers.glob("wire-*"):
        path.unlink()


def _pause_unrecorded(f: Forger, pid: int, run: Line, ns: int) -> None:
    """Suspend a process without a wire ledger. Recorded beats would show whether it was silent."""
    _without_wire(f)
    _pause(f, pid, run["at"], ns)


def _quiet_beats(f: Forger, run: Line, ns: int) -> None:
    """Remove the beats of the run's worker and their echoes for this long from its start."""

    def without_beats(line: Line) -> Line | None:
        is_beat = line["event"] in ("beat", "beat_heard") and line["pid"] == run["pid"]
        return None if is_beat and run["at"] <= line["at"] <= run["at"] + ns else line

    f.lines("wire", without_beats)


def _stopped(f: Forger, run: Line) -> None:
    """Stop the run before the second one begins, however long the real run took."""
    stopped = {"event": "stopped", "reason": "shutdown", "at": run["at"] + 1_000_000}
    f.run("chain-0", "a", "finished", lambda x: x | stopped)
    _add_faults(f, _fault("asked_to_end", run["pid"], run["at"]))


# Name, time in ms between the two runs, rules that must be broken, forgery.
EXCUSES: list[tuple[str, int, set[str], Excuse]] = [
    ("nothing", 10, {AGAIN}, lambda f, run: None),
    ("its worker was killed", 10, set(), lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + 1))),
    ("another was killed", 10, {AGAIN}, lambda f, run: _add_faults(f, _fault("killed", 1, run["at"] + 1))),
    (
        "it was killed after the second run",
        10,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + SECOND_NS)),
    ),
    (
        "its broker was suspended for a lease",
        3 * LEASE_MS,
        set(),
        lambda f, r: _pause_unrecorded(f, _broker(f), r, 2 * LEASE_NS),
    ),
    (
        "its broker was suspended for less",
        3 * LEASE_MS,
        {AGAIN},
        lambda f, r: _pause_unrecorded(f, _broker(f), r, LEASE_NS // 2),
    ),
    (
        "its broker was killed",
        10,
        {AGAIN},
        lambda f, r: _add_faults(f, _fault("killed", _broker(f), r["at"] + 1, "broker")),
    ),
    ("its beats had no echo for a lease", 3 * LEASE_MS, set(), lambda f, run: _quiet_beats(f, run, 2 * LEASE_NS)),
    (
        "it was suspended, and no beats were recorded",
        3 * LEASE_MS,
        set(),
        lambda f, run: _pause_unrecorded(f, run["pid"], run, 2 * LEASE_NS),
    ),
    (
        "it was suspended for less, and no beats were recorded",
        3 * LEASE_MS,
        {AGAIN},
        lambda f, run: _pause_unrecorded(f, run["pid"], run, LEASE_NS // 2),
    ),
    ("it was asked to end and stopped it", 10, set(), lambda f, run: _stopped(f, run)),
    (
        "it was asked to end and had finished it",
        10,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("asked_to_end", run["pid"], run["at"])),
    ),
]


@pytest.mark.parametrize(("after_ms", "named", "excuse"), [e[1:] for e in EXCUSES], ids=[e[0] for e in EXCUSES])
def test_a_second_run_is_excused_by(evidence: Evidence, after_ms: int, named: set[str], excuse: Excuse) -> None:
    forger = Forger(evidence)
    run = forger.started("chain-0", "a")
    excuse(forger, run)
    # Without a wall time, which would be in the future, so that the line would be left out.
    second = {"at": run["at"] + after_ms * 1_000_000, "wall": 0, "delivery": 2}
    forger.run("chain-0", "a", "started", lambda x: [x, x | second])
    assert _named(evidence) & {AGAIN} == named


LEVEL0_LEASE_MS = 5_500  # the step's timeout and 5 s
UNOCCUPIED_PID = 2**22 + 1  # higher than any process id

# The same for a level-0 run.
EXCUSES_AT_LEVEL0: list[tuple[str, int, set[str], Excuse]] = [
    ("nothing, while it had its lease", LEVEL0_LEASE_MS - 2_000, {AGAIN}, lambda f, run: None),
    ("the end of its lease", LEVEL0_LEASE_MS, set(), lambda f, run: None),
    (
        "no kill: the broker cannot detect it",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + 1)),
    ),
    (
        "no silence: it sends no heartbeats",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _pause(f, run["pid"], run["at"], 2 * LEASE_NS),
    ),
    (
        "the end of its lease, which began while it was stopped",
        LEVEL0_LEASE_MS - 2_000,
        set(),
        lambda f, run: _pause(f, run["pid"], run["at"] - 3 * SECOND_NS, 3 * SECOND_NS - 10_000_000),
    ),
    (
        "no stop that was over long before",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _pause(f, run["pid"], run["at"] - 3 * SECOND_NS, 2 * SECOND_NS),
    ),
]


@pytest.mark.parametrize(
    ("after_ms", "named", "excuse"), [e[1:] for e in EXCUSES_AT_LEVEL0], ids=[e[0] for e in EXCUSES_AT_LEVEL0]
)
def test_a_second_run_of_a_level_0_step_is_excused_by(
    evidence: Evidence, after_ms: int, named: set[str], excuse: Excuse
) -> None:
    forger = Forger(evidence)
    step_id = forger.step("late-1", "b")
    # The handler had done nothing else: after another long step its lease would count from the end of that one.
    forger.lines("worker", lambda x: x | {"pid": UNOCCUPIED_PID} if x["step_id"] == step_id else x)
    (run,) = (x for x in forger.read("worker") if (x["step_id"], x["event"]) == (step_id, "started"))
    excuse(forger, run)
    second = {k: v for k, v in run.items() if k != "batch_id"}
    second |= {"at": run["at"] + after_ms * 1_000_000, "wall": 0, "delivery": 2}
    forger.run("late-1", "b", "started", lambda x: [x, second])
    assert _named(evidence) & {AGAIN} == named


@pytest.mark.parametrize("frozen_ms_before", [10, 500])
def test_a_worker_suspended_as_it_began_may_begin_after_its_successor(
    evidence: Evidence, frozen_ms_before: int
) -> None:
    """The suspension lies between its last check of the lease and the handler's first instruction."""
    forger = Forger(evidence)
    second = forger.started("slept-0", "a", 2)
    first = forger.started("slept-0", "a", 1)
    began = second["at"] + LEASE_NS
    _without_wire(forger)

    def freeze(line: Line) -> Line | None:
        if line.get("pid") != first["pid"] or line["event"] not in ("paused", "resumed"):
            return line
        at = second["at"] - LEASE_NS if line["event"] == "paused" else began - frozen_ms_before * 1_000_000
        return line | {"at": at}

    forger.lines("faults", freeze)
    forger.run("slept-0", "a", "started", lambda x: x | {"at": began}, delivery=1)
    forger.lines("worker", lambda x: None if _ends(x, first) else x)
    assert (AGAIN in _named(evidence)) is (frozen_ms_before > 100)


def test_two_runs_at_once_are_not_excused_by_a_failure(evidence: Evidence) -> None:
    forger = Forger(evidence)
    second = forger.started("flaky-0", "a", 2)
    forger.run("flaky-0", "a", "failed", lambda x: x | {"at": second["at"] + 1_000_000})
    assert _named(evidence) >= {OVERLAP}
    assert AGAIN not in _named(evidence)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_operators_retry_excuses_a_run_only_if_a_client_sent_it(evidence: Evidence, is_ordered: bool) -> None:
    """The operator's retry is the only cause of the third run, once the second is changed to have had time left."""
    forger = Forger(evidence)
    third = forger.started("slow-0", "a", 3)
    forger.run("slow-0", "a", "started", lambda x: x | {"at": third["at"] - 50_000_000}, delivery=2)
    if not is_ordered:
        forger.lines("client", lambda x: None if x.get("order") == "retry" else x)
    assert (AGAIN in _named(evidence)) is not is_ordered


def _ends(line: Line, run: Line) -> bool:
    same = (line["step_id"], line.get("delivery"), line["pid"]) == (run["step_id"], run["delivery"], run["pid"])
    return same and line["event"] != "started"


def _named(evidence: Evidence) -> set[str]:
    verdict = judge(evidence.database, evidence.ledgers, lease_ms=LEASE_MS)
    return {violation.rule for violation in verdict.violations}
