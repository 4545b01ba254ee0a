"""Seeds on every change; the long campaigns are `python -m tests.simulation`."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.model.states import STEP_TRANSITIONS

from . import campaign, coverage, planted, shrink
from .clock import Schedule
from .faults import KINDS
from .world import World

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SEEDS = int(os.environ.get("STEPWIRE_SEEDS", "2000"))
ON_SQLITE = 60
SEEDS_FOR_A_BUG = 400  # each is found by fewer: `python -m tests.simulation --planted`


def test_no_seed_breaks_a_promise_and_every_transition_event_timer_and_fault_is_met() -> None:
    total = campaign.run(range(SEEDS), jobs=2)
    assert total.violations == []
    assert total.seeds == SEEDS
    if SEEDS >= 2000:
        assert coverage.missing(total.counts, SEEDS) == []


def test_sqlite_and_memory_hold_and_answer_the_same() -> None:
    """Every statement of the lane, every query and every start, beside one another; in the end all their rows."""
    for seed in range(10_000, 10_000 + ON_SQLITE):
        report = World(seed, is_sqlite=True).run()
        assert report.violation is None, (seed, report.violation)


def test_the_same_seed_is_the_same_story_whatever_the_hash_seed() -> None:
    script = (
        "from tests.simulation.world import World\n"
        "for seed in (1, 2, 3, 50, 51):\n"
        "    report = World(seed).run()\n"
        "    print(seed, report.trace_hash, report.events, len(report.fired))\n"
    )
    stories = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(stories) == 1


def test_campaigns_of_parts_add_up_to_the_campaign_of_the_whole() -> None:
    whole, first, second = (campaign.run(seeds, jobs=1) for seeds in (range(6), range(4), range(4, 6)))
    merged = campaign.Sum()
    for part in (second, first):
        merged.merge(msgspec.json.decode(msgspec.json.encode(part), type=campaign.Sum))
    assert merged.ranges == whole.ranges == [(0, 6)]
    assert (merged.seeds, merged.events, merged.figures) == (whole.seeds, whole.events, whole.figures)
    assert merged.counts == whole.counts
    assert merged.faults == whole.faults > 0


def test_a_seed_counts_once_and_a_campaign_that_was_cut_short_not_at_all() -> None:
    merged = campaign.Sum()
    part = campaign.run(range(2), jobs=1)
    merged.merge(part)
    with pytest.raises(ValueError, match="two of the files"):
        merged.merge(part)
    part.seeds = 1
    with pytest.raises(ValueError, match="not ended"):
        campaign.Sum().merge(part)


def test_a_seed_that_breaks_a_promise_is_told_at_once_and_ends_no_campaign() -> None:
    told: list[int] = []

    def tell(seed: int, violation: str) -> list[str] | None:
        told.append(seed)
        return shrink.shrink(seed)[0]

    with planted.planted(next(bug for bug in planted.BUGS if bug.plant is planted._granted_by_nobody)):
        total = campaign.run(range(12), jobs=1, on_violation=tell)
    assert total.seeds == 12
    assert [broken.seed for broken in total.violations] == told
    assert all(broken.kept is not None for broken in total.violations)


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, planted.Found]:
    """One hunt on both processors, by whichever test process is there first; the others wait for what it found."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    shared = tmp_path_factory.getbasetemp().parent / f"hunted-{run}.json"
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_bytes(msgspec.json.encode(list(planted.hunt_all_again(SEEDS_FOR_A_BUG, jobs=2))))
    return {found.name: found for found in msgspec.json.decode(shared.read_bytes(), type=list[planted.Found])}


@pytest.mark.parametrize("name", [bug.name for bug in planted.BUGS])
def test_a_planted_bug_is_found(name: str, hunted: dict[str, planted.Found]) -> None:
    assert hunted[name].seed is not None


def test_a_planted_bug_leaves_nothing_behind() -> None:
    before = World(7).run()
    for bug in planted.BUGS:
        with planted.planted(bug):
            pass
    assert World(7).run().trace_hash == before.trace_hash


def test_a_seed_that_fails_is_shrunk_to_few_faults_that_fail_too() -> None:
    bug = next(b for b in planted.BUGS if b.plant is planted._granted_again)
    found = planted.hunt(bug, 0, SEEDS_FOR_A_BUG)
    assert found.seed is not None
    with planted.planted(bug):
        whole = World(found.seed).run()
        kept, _ = shrink.shrink(found.seed)
        small = World(found.seed, frozenset(kept)).run()
    assert small.violation is not None
    assert len(kept) < len(whole.fired) / 2


@pytest.mark.parametrize("case", sorted((HERE / "regressions").glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_does_not_fail_again(case: Path) -> None:
    told: dict[str, Any] = json.loads(case.read_text())
    kept = None if told["kept"] is None else frozenset(told["kept"])
    assert World(told["seed"], kept).run().violation is None


def test_a_fault_left_out_does_not_strike_and_changes_no_luck_before_it() -> None:
    whole = World(50, keeps_trace=True).run()
    assert whole.fired
    without = World(50, frozenset(whole.fired[:-1]), keeps_trace=True).run()
    assert whole.fired[-1] not in without.fired
    same = next(
        (i for i, (a, b) in enumerate(zip(whole.trace, without.trace, strict=False)) if a != b), len(whole.trace)
    )
    assert same > len(whole.trace) / 2


def test_events_come_in_order_of_time_then_of_planning() -> None:
    schedule = Schedule()
    told: list[str] = []
    tell: Callable[[str], None] = told.append
    schedule.at(5.0, tell, "second")
    schedule.at(5.0, tell, "third")
    schedule.at(1.0, tell, "first")
    schedule.at(90.0, tell, "too late")
    assert not schedule.run(10.0, lambda: False)
    assert (told, schedule.now) == (["first", "second", "third"], 10.0)


def test_coverage_wants_every_transition_and_every_kind_of_fault() -> None:
    wanted = coverage.wanted()
    assert len(set(wanted)) == len(wanted)
    assert sum(what == "step" for what, _ in wanted) == sum(map(len, STEP_TRANSITIONS.values()))
    assert {which for what, which in wanted if what == "fault"} == set(KINDS)
