"""The conclusions from beats, by examples: who is dead, who is dark, and which lanes change hands."""

from collections.abc import Mapping
from typing import Any

import pytest
from stepwire_broker.core.membership.cluster_rows import Beaten, BrokerRow, LaneOwner, ObservedBroker
from stepwire_broker.core.membership.members import Conclusion, Members, OwnLanes
from stepwire_broker.core.membership.shares import aims

LEASE_MS = 10_000
BEAT_MS = 2_000


class Site:
    """The broker b1 of epoch 1, and the rows that its beats read. Other brokers beat unless they are `silent`."""

    def __init__(self, lanes: int = 8, **owners: int) -> None:
        self.members = Members("b1", 1, "1.2", LEASE_MS, begun_mono=0)
        self.mono = 0
        self.offset_ms = 0
        self.rows = {"b1": BrokerRow(id="b1", epoch=1, beat=0, lease_ms=LEASE_MS, version="1.2")}
        self.silent: set[str] = set()
        self.lanes = [LaneOwner(n + 1) for n in range(lanes)]
        self.own: dict[int, int] = {}
        self.leaving: frozenset[int] = frozenset()
        self.is_draining = False
        self.workers = 0
        first = 0
        for broker, count in owners.items():
            if broker != "b1":
                self.add(broker)
            for n in range(first, first + count):
                self.give(n + 1, broker)
            first += count

    def add(self, broker: str, **changes: Any) -> None:
        row = {"id": broker, "epoch": len(self.rows) + 1, "beat": 1, "lease_ms": LEASE_MS, "version": "1.2"} | changes
        self.rows[broker] = BrokerRow(**row)

    def change(self, broker: str, **changes: Any) -> None:
        old = self.rows[broker]
        self.rows[broker] = BrokerRow(**{name: getattr(old, name) for name in old.__struct_fields__} | changes)

    def give(self, lane: int, broker: str | None) -> None:
        before = self.lanes[lane - 1]
        owner_epoch = None if broker is None else self.rows[broker].epoch
        self.lanes[lane - 1] = LaneOwner(lane, broker, owner_epoch, before.epoch + 1)
        if broker == "b1":
            self.own[lane] = before.epoch + 1
        else:
            self.own.pop(lane, None)

    def beat(self, after_ms: int = BEAT_MS, took_ms: int = 0) -> Conclusion:
        self.mono += after_ms
        for broker in self.rows.keys() - self.silent - {"b1"}:
            self.change(broker, beat=self.rows[broker].beat + 1)
        beaten = Beaten(
            sent_mono=self.mono,
            received_mono=self.mono + took_ms,
            brokers=tuple(self.rows.values()),
            lanes=tuple(self.lanes),
            offset_ms=self.offset_ms,
        )
        self.mono += took_ms
        return self.members.beaten(beaten, OwnLanes(self.own, self.leaving, self.is_draining, self.workers))

    def beats(self, count: int) -> list[Conclusion]:
        return [self.beat() for _ in range(count)]

    def most(self) -> int:
        """Beat, and return the number of lanes that would be taken."""
        takes = self.beat().takes
        self.members.taken()
        return 0 if takes is None else takes.most


# -- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "takers", "lanes", "expected"),
    [
        ({"a": 0}, "a", 8, {"a": 8}),
        ({"a": 8, "b": 0}, "ab", 8, {"a": 4, "b": 4}),
        ({"a": 4, "b": 4, "c": 0}, "abc", 8, {"a": 3, "b": 3, "c": 2}),
        ({"a": 2, "b": 3, "c": 3}, "abc", 8, {"a": 2, "b": 3, "c": 3}),
        ({"a": 3, "b": 3, "c": 1}, "abc", 7, {"a": 3, "b": 2, "c": 2}),
        ({"a": 1, "b": 0, "c": 0}, "abc", 1, {"a": 1, "b": 0, "c": 0}),
        ({"old": 8, "new": 0}, ["new"], 8, {"old": 4, "new": 4}),
        ({"old": 1, "new": 4}, ["new"], 8, {"old": 1, "new": 7}),
        ({"old": 1, "older": 0, "new": 0}, ["new"], 9, {"old": 1, "older": 0, "new": 8}),
        ({"a": 3, "b": 5}, "", 8, {"a": 3, "b": 4}),
        ({}, "", 8, {}),
    ],
)
def test_brokers_aim_at_equal_shares_and_the_ones_with_most_lanes_at_the_higher_ones(
    held: Mapping[str, int], takers: Any, lanes: int, expected: dict[str, int]
) -> None:
    assert aims(held, takers, lanes) == expected


# -- lanes that are free ----------------------------------------------------------------------------------------------


def test_a_broker_alone_takes_all_free_lanes_at_its_first_beat() -> None:
    assert Site(lanes=8).most() == 8


def test_a_broker_takes_its_share_of_free_lanes_and_leaves_the_others_to_living_brokers() -> None:
    site = Site(lanes=8, b1=0, b2=1, b3=1)
    assert site.most() == 2  # b2 and b3 have more, so they aim at 3 each


def test_a_broker_takes_what_another_one_leaves_free_for_two_beats() -> None:
    site = Site(lanes=7, b1=2, b2=2)
    site.add("b3")
    assert [site.most() for _ in range(3)] == [2, 1, 1]  # b3 counts from its second beat on: 3, 2 and 2


def test_a_lane_that_stays_free_for_a_lease_is_taken_beyond_the_share() -> None:
    site = Site(lanes=4, b1=2, b2=1)
    takes = [site.most() for _ in range(7)]
    assert takes == [0, 0, 0, 0, 0, 1, 1]


def test_no_second_take_is_decided_before_the_outcome_of_the_first() -> None:
    site = Site(lanes=8)
    assert site.beat().takes is not None
    assert site.beat().takes is None
    site.members.taken()
    assert site.beat().takes is not None


def test_own_lanes_of_a_former_run_are_taken_at_the_first_beat() -> None:
    site = Site(lanes=4, b1=0, b2=2)
    site.lanes[2] = LaneOwner(3, "b1", 0, 5)
    site.lanes[3] = LaneOwner(4, "b1", 0, 5)
    takes = site.beat().takes
    assert takes is not None
    assert (takes.most, takes.dead) == (2, ())


def test_a_lane_of_a_take_whose_answer_was_lost_is_taken_again() -> None:
    site = Site(lanes=4, b1=3, b2=0)
    del site.own[3]
    takes = site.beat().takes
    assert takes is not None
    assert (takes.served, takes.most >= 1) == ((1, 2), True)


# -- death ------------------------------------------------------------------------------------------------------------


def test_a_broker_is_dead_after_a_whole_lease_without_a_beat_and_its_lanes_are_taken() -> None:
    site = Site(lanes=8, b1=4, b2=4)
    site.beat()
    site.silent = {"b2"}
    verdicts = site.beats(5)
    assert [verdict.takes for verdict in verdicts[:4]] == [None] * 4
    assert verdicts[4].died == ["b2"]
    takes = verdicts[4].takes
    assert takes is not None
    assert (takes.most, takes.dead) == (4, (ObservedBroker("b2", 2, site.rows["b2"].beat),))


def test_the_time_of_a_beats_own_trip_does_not_count_as_silence() -> None:
    site = Site(lanes=8, b1=4, b2=4)
    site.beat(took_ms=1_000)
    site.silent = {"b2"}
    assert [site.beat(2_000).takes for _ in range(4)] == [None] * 4
    assert site.beat(1_999).takes is None
    assert site.beat(1).takes is not None


def test_a_broker_with_a_longer_lease_is_dead_later() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.change("b2", lease_ms=20_000)
    site.beat()
    site.silent = {"b2"}
    assert [bool(verdict.takes) for verdict in site.beats(10)] == [False] * 9 + [True]


def test_after_an_outage_of_the_database_every_broker_has_a_lease_to_come_back() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.silent = {"b2"}
    assert site.beat(60_000).takes is None  # no broker could beat meanwhile
    assert [bool(verdict.takes) for verdict in site.beats(5)] == [False] * 4 + [True]


def test_the_silence_of_another_broker_is_measured_from_its_last_change() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.silent = {"b2"}
    site.beats(2)
    assert site.members.silent_ms("b2", site.mono) == 2 * BEAT_MS
    assert site.members.silent_ms("b1", site.mono) is None
    assert site.members.silent_ms("b9", site.mono) is None
    assert [row.id for row in site.members.rows] == ["b1", "b2"]


def test_a_single_missed_own_beat_does_not_begin_the_watch_again() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.silent = {"b2"}
    site.beat(4_000)
    site.beat(4_000)
    assert site.beat(2_000).takes is not None


def test_a_process_of_this_host_that_has_ended_is_dead_at_once() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.change("b2", is_gone=True)
    verdict = site.beat()
    assert verdict.died == ["b2"]
    assert verdict.takes is not None
    assert verdict.takes.most == 1


def test_a_fresh_broker_waits_a_lease_before_it_takes_from_a_silent_one() -> None:
    site = Site(lanes=2, b1=0, b2=2)
    site.silent = {"b2"}
    assert [bool(verdict.takes) for verdict in site.beats(6)] == [False] * 5 + [True]


def test_a_beat_after_the_judgement_makes_the_broker_live_again() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.silent = {"b2"}
    assert site.beats(5)[-1].takes is not None
    site.silent = set()
    site.members.taken()
    verdict = site.beat()
    assert verdict.joined == ["b2"]
    assert verdict.takes is None


def test_lanes_of_a_replaced_run_are_taken_by_others_only_after_a_lease() -> None:
    site = Site(lanes=2, b1=1, b2=1)
    site.beat()
    site.change("b2", epoch=9, is_draining=True)
    verdicts = site.beats(6)
    assert [bool(verdict.takes) for verdict in verdicts] == [False] * 5 + [True]
    takes = verdicts[-1].takes
    assert takes is not None
    assert takes.dead == (ObservedBroker("b2", 2, 0),)


def test_the_end_of_a_drain_is_no_death() -> None:
    site = Site(lanes=2, b1=2, b2=0)
    site.beats(2)
    site.change("b2", is_draining=True, is_gone=True)
    assert site.beat().died == []


# -- dark -------------------------------------------------------------------------------------------------------------


def test_a_broker_is_dark_94_percent_of_a_lease_after_its_last_beat_was_sent() -> None:
    site = Site()
    assert not site.members.is_dark(9_399)
    assert site.members.is_dark(9_400)  # no beat has succeeded since the start
    site.beat(took_ms=500)
    assert not site.members.is_dark(2_000 + 9_399)
    assert site.members.is_dark(2_000 + 9_400)


def test_a_broker_back_from_the_dark_goes_on_with_the_lanes_that_it_still_owns() -> None:
    site = Site(lanes=4, b1=4)
    site.beat()
    assert site.members.is_dark(site.mono + 12_000)
    verdict = site.beat(12_000)
    assert (verdict.dark_ms, verdict.lost, verdict.replaced) == (12_000 - 9_400, [], None)
    assert not site.members.is_dark(site.mono)


def test_lanes_with_a_higher_epoch_are_lost() -> None:
    site = Site(lanes=4, b1=4, b2=0)
    site.beat()
    site.lanes[1] = LaneOwner(2, "b2", 2, 2)
    site.lanes[2] = LaneOwner(3, None, None, 2)
    assert site.beat().lost == [2, 3]


def test_rows_that_were_read_before_a_take_lose_nothing() -> None:
    site = Site(lanes=2, b1=2)
    site.own[2] = 7
    assert site.beat().lost == []


@pytest.mark.parametrize(
    ("row", "text"), [(None, "was removed"), (BrokerRow(id="b1", epoch=2, beat=0, lease_ms=1), "replaced")]
)
def test_a_broker_whose_row_is_not_its_own_must_end(row: BrokerRow | None, text: str) -> None:
    site = Site(lanes=2, b1=2)
    del site.rows["b1"]
    if row is not None:
        site.rows["b1"] = row
    verdict = site.beat()
    assert text in (verdict.replaced or "")
    assert site.members.is_dark(site.mono + LEASE_MS)


def test_the_clock_follows_the_databases_only_when_the_median_of_five_beats_is_a_second_away() -> None:
    site = Site()
    followed = []
    for offset_ms in (900, -40, 5_000, 5_010, 4_990, 5_500, 5_900, 0, 10, 20):
        site.offset_ms = offset_ms
        site.beat()
        followed.append(site.members.offset_ms)
    assert followed == [0, 0, 0, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 20]


# -- balance ----------------------------------------------------------------------------------------------------------


def test_one_lane_a_beat_is_released_for_a_broker_that_has_fewer_for_two_beats() -> None:
    site = Site(lanes=8, b1=8)
    site.beat()
    site.add("b2")
    assert [verdict.releases for verdict in site.beats(2)] == [[], [1]]
    site.leaving = frozenset({1})
    assert site.beat().releases == [2]
    site.leaving = frozenset()
    for lane in (1, 2):
        site.give(lane, "b2")
    assert site.beat().releases == [3]


def test_an_eighth_of_many_lanes_is_released_at_a_beat_and_never_more_than_other_brokers_lack() -> None:
    site = Site(lanes=64, b1=50, b2=14)
    site.beats(1)
    assert [len(verdict.releases) for verdict in site.beats(1)] == [8]
    for lane in range(1, 15):
        site.give(lane, "b2")
    site.leaving = frozenset(range(15, 18))
    assert site.beat().releases == [18]


def test_no_lane_is_released_while_another_one_is_free_for_the_same_broker() -> None:
    site = Site(lanes=3, b1=3)
    site.beat()
    site.add("b2")
    site.beats(2)
    site.give(1, None)
    assert [verdict.releases for verdict in site.beats(3)] == [[], [], []]


@pytest.mark.parametrize("owners", [(3, 3, 2), (2, 3, 3), (3, 2, 3)])
def test_no_lane_moves_between_brokers_with_equal_shares(owners: tuple[int, int, int]) -> None:
    site = Site(lanes=8, b1=owners[0], b2=owners[1], b3=owners[2])
    assert [(verdict.takes, verdict.releases) for verdict in site.beats(20)] == [(None, [])] * 20


def test_a_draining_broker_takes_nothing_and_releases_every_lane_to_others() -> None:
    site = Site(lanes=4, b1=2, b2=1)
    site.is_draining = True
    verdict = site.beat()
    assert (verdict.takes, verdict.releases) == (None, [1, 2])


def test_a_draining_broker_without_another_one_keeps_its_lanes() -> None:
    site = Site(lanes=4, b1=4)
    site.is_draining = True
    assert site.beat().releases == []


def test_other_brokers_that_drain_or_have_ended_do_not_count() -> None:
    site = Site(lanes=4, b1=0, b2=2)
    site.change("b2", is_draining=True)
    assert site.most() == 2
    for lane in (1, 2):
        site.give(lane, None)
    assert site.most() == 4


def test_a_row_of_a_broker_that_ended_long_ago_without_lanes_does_not_count() -> None:
    site = Site(lanes=4, b1=0, b2=0)
    site.silent = {"b2"}
    assert [site.most() for _ in range(3)] == [4, 4, 4]


def test_a_broker_without_a_worker_for_30_s_releases_its_lanes_to_one_that_has_workers() -> None:
    site = Site(lanes=4, b1=2, b2=2)
    site.change("b2", workers=3)
    verdicts = site.beats(16)
    first = next(n for n, verdict in enumerate(verdicts) if verdict.releases)
    assert verdicts[first].releases == [1, 2]
    assert 29_000 <= (first + 1) * BEAT_MS <= 32_000
    assert all(verdict.takes is None for verdict in verdicts)


def test_a_broker_without_a_worker_keeps_its_lanes_while_no_broker_has_one() -> None:
    site = Site(lanes=4, b1=2, b2=2)
    assert all(verdict.releases == [] for verdict in site.beats(40))


def test_a_new_broker_takes_no_share_before_a_worker_reaches_it() -> None:
    site = Site(lanes=4, b1=0, b2=3)
    site.change("b2", workers=1)
    assert site.most() == 0
    site.workers = 1
    assert site.most() == 1


def test_lanes_do_not_move_to_an_older_version() -> None:
    site = Site(lanes=8, b1=1, b2=4)
    site.change("b2", version="1.10")
    assert [site.most() for _ in range(8)] == [0] * 8
    site.silent = {"b2"}
    assert [site.most() for _ in range(6)][-1] == 7  # the newer one is dead


def test_a_newer_version_takes_what_an_older_one_does_not() -> None:
    site = Site(lanes=8, b1=4, b2=1)
    site.change("b2", version="1.1")
    assert site.most() == 3
