"""How many copies to start or to end, as a table, and what holds for every sequence of decisions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.autoscale.deciding import ChangeDecision, ChangeReason, CopyFigures, CopyLimits, decide

LIMITS = CopyLimits(least=0, most=10, step=4, cooldown_ms=30_000)
LATER = 30_000  # after the cool-down


def figures(load: int, copies: int, **members: Any) -> CopyFigures:
    members.setdefault("slots_per_copy", 4)
    return CopyFigures(load, copies, **members)


@pytest.mark.parametrize(
    ("seen", "since_ms", "change", "reason"),
    [
        (figures(0, 0), None, 0, ChangeReason.STEADY),
        (figures(1, 0), None, 1, ChangeReason.BUSY),  # a waiting step starts one
        (figures(9, 0), None, 3, ChangeReason.BUSY),
        (figures(400, 0), None, 4, ChangeReason.BUSY),  # by one step
        (figures(400, 4), 0, 4, ChangeReason.BUSY),  # growth needs no cool-down
        (figures(400, 8), 0, 2, ChangeReason.BUSY),  # up to the largest number
        (figures(400, 10), LATER, 0, ChangeReason.AT_MAX),
        (figures(400, 4, starting=1), LATER, 0, ChangeReason.STARTING),
        (figures(16, 4), LATER, 0, ChangeReason.STEADY),  # every step has a slot
        (figures(17, 4), LATER, 1, ChangeReason.BUSY),
        (figures(8, 4), LATER, 0, ChangeReason.STEADY),  # half of the slots are in use
        (figures(7, 4), LATER, -1, ChangeReason.IDLE),
        (figures(0, 4), LATER, -1, ChangeReason.IDLE),  # one at a time
        (figures(0, 4), LATER - 1, 0, ChangeReason.COOLING_DOWN),
        (figures(0, 4, leaving=1), LATER, 0, ChangeReason.LEAVING),
        (figures(1, 1), LATER, 0, ChangeReason.STEADY),  # the last copy stays while it has a step
        (figures(20, 2, other_slots=12), None, 0, ChangeReason.STEADY),  # workers of others take the rest
        (figures(24, 2, other_slots=12), None, 1, ChangeReason.BUSY),
        (figures(1, 1, other_slots=4), LATER, 0, ChangeReason.STEADY),  # the other autoscaler may end its copy now
        (figures(0, 1, other_slots=4), LATER, -1, ChangeReason.IDLE),
        (figures(50, 0, slots_per_copy=None), None, 1, ChangeReason.BUSY),  # it names its slots
        (figures(0, 0, unfit=7), None, 0, ChangeReason.NO_TAKER),
        (figures(9, 1, are_other_workers=True), LATER, 0, ChangeReason.NO_TAKER),
        (figures(0, 12), LATER, -1, ChangeReason.IDLE),
    ],
)
def test_the_figures_decide(seen: CopyFigures, since_ms: int | None, change: int, reason: ChangeReason) -> None:
    assert decide(LIMITS, seen, since_ms) == ChangeDecision(change, reason)


def test_the_smallest_number_is_started_whatever_the_backlog_is() -> None:
    limits = CopyLimits(least=6, most=10, step=4, cooldown_ms=0)
    assert decide(limits, figures(0, 0), None) == ChangeDecision(4, ChangeReason.BELOW_MIN)
    assert decide(limits, figures(0, 4, starting=4), 0) == ChangeDecision(2, ChangeReason.BELOW_MIN)
    assert decide(limits, figures(0, 6), LATER).change == 0


@given(
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40_000)), max_size=30),
)
def test_the_copies_stay_within_their_limits_and_change_by_at_most_a_step(
    least: int, more: int, step: int, rounds: list[tuple[int, int]]
) -> None:
    limits = CopyLimits(least, least + more + 1, step, 30_000)
    copies, has_grown_to_least, since_ms = 0, False, 0
    for load, passed_ms in rounds:
        since_ms += passed_ms
        decision = decide(limits, figures(load, copies), since_ms)
        assert decision.change <= step
        assert decision.change >= -1
        if decision.change < 0:
            assert since_ms >= limits.cooldown_ms
            assert load < 2 * copies  # of four slots each
        if decision.change:
            since_ms = 0
        copies += decision.change
        has_grown_to_least = has_grown_to_least or copies >= least
        assert copies <= limits.most
        assert copies >= least or not has_grown_to_least


@given(st.integers(0, 100), st.integers(1, 10), st.integers(1, 8))
def test_two_autoscalers_exceed_what_the_backlog_needs_by_at_most_a_step(load: int, slots: int, step: int) -> None:
    """Each sees the other's copies once these are connected, and both decide at the same moment."""
    limits = CopyLimits(0, 1_000, step, 0)
    connected, starting = [0, 0], [0, 0]
    for _ in range(60):
        changes = [
            decide(
                limits,
                figures(
                    load,
                    connected[n] + starting[n],
                    starting=starting[n],
                    slots_per_copy=slots,
                    other_slots=connected[1 - n] * slots,
                ),
                0,
            ).change
            for n in (0, 1)
        ]
        for n, change in enumerate(changes):
            starting[n] += max(0, change)
        assert sum(connected) + sum(starting) <= -(-load // slots) + step
        connected, starting = [c + s for c, s in zip(connected, starting, strict=True)], [0, 0]
        if not any(changes):
            break
    assert sum(connected) * slots >= load


@given(st.integers(0, 60), st.integers(1, 8), st.lists(st.integers(0, 12), min_size=2, max_size=2))
def test_two_autoscalers_that_shrink_at_the_same_moment_leave_a_slot_for_every_step(
    load: int, slots: int, copies: list[int]
) -> None:
    limits = CopyLimits(0, 1_000, 4, 0)
    load = min(load, sum(copies) * slots)
    for _ in range(30):
        changes = [
            decide(limits, figures(load, copies[n], slots_per_copy=slots, other_slots=copies[1 - n] * slots), 0).change
            for n in (0, 1)
        ]
        assert max(changes) <= 0
        copies = [have + change for have, change in zip(copies, changes, strict=True)]
        assert sum(copies) * slots >= load
