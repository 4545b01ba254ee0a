"""The seeds that run on every change. Longer campaigns: `python -m tests.simulation`."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.model.states import STEP_TRANSITIONS

from . import campaign, coverage, planted, shrink
from .clock import Schedule
from .faults import HOSTILE_KINDS, KEY_KINDS, KINDS, LANE_KINDS
from .world import World

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SEEDS_MIN = 600  # most planted bugs are found within 400; rare events and faults may need more
SEEDS_MAX = 4_000  # within these everything that a campaign must reach is met
SEEDS_MORE = 200  # at a time
ROTATING = 20  # seeds that rotate the brokers' key, which hardly any other seed does while a broker is killed
SEEDS = int(os.environ.get("STEPWIRE_SEEDS", SEEDS_MIN))
ON_SQLITE = 60
OF_SEVERAL = 24  # seeds with two brokers, and with three
SEEDS_FOR_A_BUG = 400  # a noted seed that no longer finds its bug is replaced within this many seeds
STALE_MAX = 12  # such seeds: each costs up to 20 s


def test_no_seed_breaks_a_promise_and_every_transition_event_timer_and_fault_is_met() -> None:
    rotating = campaign.run(range(ROTATING), jobs=1, always=frozenset(KEY_KINDS))
    total = campaign.run(range(SEEDS), jobs=2)
    assert total.seeds == SEEDS
    while SEEDS_MIN <= total.seeds < SEEDS_MAX and coverage.missing(total.counts + rotating.counts, total.seeds):
        total.merge(campaign.run(range(total.seeds, total.seeds + SEEDS_MORE), jobs=2))
    assert rotating.violations + total.violations == []
    if SEEDS >= SEEDS_MIN:
        assert coverage.missing(total.counts + rotating.counts, total.seeds) == []


def test_sqlite_and_memory_hold_and_answer_the_same() -> None:
    """Each statement, query and start runs on both databases and returns the same; at the end all rows are equal."""
    for seed in range(10_000, 10_000 + ON_SQLITE):
        report = World(seed, is_sqlite=True).run()
        assert report.violation is None, (seed, report.violation)


@pytest.mark.parametrize("brokers", [2, 3])
def test_no_seed_with_several_brokers_breaks_a_promise(brokers: int) -> None:
    total = campaign.run(range(20_000, 20_000 + OF_SEVERAL), jobs=1, brokers=brokers)
    assert total.violations == []
    assert all(total.figures[name] > 0 for name in ("runs", "runs again", "held"))


def test_a_seed_produces_the_same_run_under_any_hash_seed() -> None:
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


def test_the_parts_of_a_campaign_add_up_to_the_whole_campaign() -> None:
    whole, first, second = (campaign.run(seeds, jobs=1) for seeds in (range(6), range(4), range(4, 6)))
    merged = campaign.Sum()
    for part in (second, first):
        merged.merge(msgspec.json.decode(msgspec.json.encode(part), type=campaign.Sum))
    assert merged.ranges == whole.ranges == [(0, 6)]
    assert (merged.seeds, merged.events, merged.figures) == (whole.seeds, whole.events, whole.figures)
    assert merged.counts == whole.counts
    assert merged.faults == whole.faults > 0


def test_campaigns_with_different_numbers_of_brokers_are_not_added_up() -> None:
    merged = campaign.run(range(1), jobs=1)
    with pytest.raises(ValueError, match="had 2 brokers"):
        merged.merge(campaign.run(range(1, 2), jobs=1, brokers=2))


def test_a_hostile_campaign_has_the_thief_in_every_seed_and_is_not_added_to_another() -> None:
    always = frozenset(HOSTILE_KINDS)
    seeds = (0, 5, 13, 20)  # 5 and 13 have a focus, which switches every other fault off
    assert all(World(seed, always=always).hostile.is_on for seed in seeds)
    assert not any(World(seed).hostile.is_on for seed in (5, 13))
    merged = campaign.run(range(1), jobs=1, always=always)
    with pytest.raises(ValueError, match="always had the faults"):
        merged.merge(campaign.run(range(1, 2), jobs=1))


@pytest.mark.parametrize("seeds", [range(12), [413]])  # 413: a submission is built while its lane is lost
def test_a_broker_that_loses_lanes_and_takes_them_again_keeps_its_promises(seeds: Iterable[int]) -> None:
    for seed in seeds:
        world = World(seed, always=frozenset(LANE_KINDS))
        assert world.run().violation is None, seed
        assert world.counts["lane", "lost"]


def test_a_seed_counts_once_and_an_unfinished_campaign_not_at_all() -> None:
    merged = campaign.Sum()
    part = campaign.run(range(2), jobs=1)
    merged.merge(part)
    with pytest.raises(ValueError, match="two of the files"):
        merged.merge(part)
    part.seeds = 1
    with pytest.raises(ValueError, match="not ended"):
        campaign.Sum().merge(part)


def test_a_seed_that_breaks_a_promise_is_reported_at_once_and_ends_no_campaign() -> None:
    reported: list[int] = []

    def report(seed: int, violation: str) -> list[str] | None:
        reported.append(seed)
        return shrink.shrink(seed)[0]

    with planted.planted(_bug("worker: at_most_once starts without a go")):
        total = campaign.run(range(12), jobs=1, on_violation=report)
    assert total.seeds == 12
    assert [broken.seed for broken in total.violations] == reported
    assert all(broken.kept is not None for broken in total.violations)


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, planted.Hunt]:
    """One hunt on both processors, by the first test process to get here; the others wait for its results."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    shared = tmp_path_factory.getbasetemp().parent / f"hunted-{run}.json"
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_bytes(msgspec.json.encode(list(planted.hunt_all_again(SEEDS_FOR_A_BUG, jobs=2))))
    return {hunt.name: hunt for hunt in msgspec.json.decode(shared.read_bytes(), type=list[planted.Hunt])}


@pytest.mark.parametrize("name", [bug.name for bug in planted.BUGS if not bug.is_rare])
def test_a_planted_bug_is_found(name: str, hunted: dict[str, planted.Hunt]) -> None:
    assert hunted[name].seed is not None


def test_most_noted_seeds_find_their_bug(hunted: dict[str, planted.Hunt]) -> None:
    stale = [name for name, hunt in hunted.items() if hunt.tried > 1]
    assert len(stale) <= STALE_MAX, f"note new seeds with `python -m tests.simulation --planted --note`: {stale}"


def test_a_planted_bug_leaves_nothing_behind() -> None:
    before = World(7).run()
    for bug in planted.BUGS:
        with planted.planted(bug):
            pass
    assert World(7).run().trace_hash == before.trace_hash


def test_a_seed_that_fails_is_shrunk_to_few_faults_that_fail_too() -> None:
    bug = _bug("a granted step dispatched again")
    seed = planted.hunt(bug, 0, SEEDS_FOR_A_BUG).seed
    assert seed is not None
    with planted.planted(bug):
        whole = World(seed).run()
        kept, _ = shrink.shrink(seed)
        small = World(seed, frozenset(kept)).run()
    assert small.violation is not None
    assert len(kept) < len(whole.fired) / 2


@pytest.mark.parametrize("case", sorted((HERE / "regressions").glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_run_that_once_failed_does_not_fail_again(case: Path) -> None:
    story: dict[str, Any] = json.loads(case.read_text())
    kept = None if story["kept"] is None else frozenset(story["kept"])
    assert World(story["seed"], kept, brokers=story.get("brokers", 1)).run().violation is None


def test_a_fault_left_out_does_not_strike_and_changes_nothing_before_it() -> None:
    whole = World(50, keeps_trace=True).run()
    assert whole.fired
    without = World(50, frozenset(whole.fired[:-1]), keeps_trace=True).run()
    assert whole.fired[-1] not in without.fired
    same = next(
        (i for i, (a, b) in enumerate(zip(whole.trace, without.trace, strict=False)) if a != b), len(whole.trace)
    )
    assert same > len(whole.trace) / 2


def test_scheduled_events_run_in_order_of_time_then_of_planning() -> None:
    schedule = Schedule()
    events: list[str] = []
    add: Callable[[str], None] = events.append
    schedule.at(5.0, add, "second")
    schedule.at(5.0, add, "third")
    schedule.at(1.0, add, "first")
    schedule.at(90.0, add, "too late")
    assert not schedule.run(10.0, lambda: False)
    assert (events, schedule.now) == (["first", "second", "third"], 10.0)


def test_coverage_requires_every_transition_and_every_kind_of_fault() -> None:
    required = coverage.required()
    assert len(set(required)) == len(required)
    assert sum(what == "step" for what, _ in required) == sum(map(len, STEP_TRANSITIONS.values()))
    assert {which for what, which in required if what == "fault"} == set(KINDS)


def _bug(name: str) -> planted.Bug:
    return next(bug for bug in planted.BUGS if bug.name == name)
