"""The arithmetic of budgets: rates with a burst, windows of refusals, and queues limited in bytes."""

import resource

import pytest
from stepwire_broker import open_files
from stepwire_broker.bus import budgets
from stepwire_broker.bus.budgets import Bucket, Offences, PrincipalUsage, Window
from stepwire_broker.bus.crowd import Crowd

MIB = 1024 * 1024


def test_a_steady_rate_below_the_limit_always_passes() -> None:
    bucket = Bucket.full(1_000, 0.0)
    assert {bucket.take(1, n / 1_000) for n in range(100_000)} == {"pass"}


def test_a_burst_of_two_seconds_passes_at_once_and_no_more() -> None:
    bucket = Bucket.full(1_000, 0.0)
    verdicts = [bucket.take(1, 0.0) for _ in range(3_000)]
    assert verdicts == ["pass"] * 2_000 + ["drop"] * 1_000


def test_a_rate_between_the_limit_and_twice_the_limit_is_dropped_in_part_and_never_disconnected() -> None:
    bucket = Bucket.full(1_000, 0.0)
    verdicts = [bucket.take(1, n / 1_900) for n in range(1_900 * 60)]
    assert "disconnect" not in verdicts
    assert verdicts[1_900 * 30 :].count("pass") == pytest.approx(30 * 1_000, rel=0.01)


def test_more_than_twice_the_limit_disconnects_within_seconds() -> None:
    bucket = Bucket.full(1_000, 0.0)
    first = next(n for n in range(10**6) if bucket.take(1, n / 4_000) == "disconnect")
    assert 1.0 < first / 4_000 < 3.0


def test_a_message_larger_than_the_rest_of_the_burst_passes_once() -> None:
    bucket = Bucket.full(10, 0.0)
    assert [bucket.take(1_000, 0.0), bucket.take(1, 0.0)] == ["pass", "drop"]


def test_bytes_are_limited_like_messages() -> None:
    usage = PrincipalUsage.unused(None, None, 0.0)
    verdicts = [usage.take(4 * MIB, 0.0) for _ in range(65)]
    assert [verdicts.count(one) for one in ("pass", "drop", "disconnect")] == [32, 32, 1]


def test_a_window_begins_again_after_its_time() -> None:
    window = Window()
    assert [window.add(1.0), window.add(2.0), window.add(11.0), window.add(11.1)] == [1, 2, 3, 1]


def test_a_repeated_offence_blocks_for_twice_the_time_of_the_one_before() -> None:
    offences = Offences()
    blocked: list[float] = []
    now_s = 100.0
    assert not offences.add(now_s)
    for _ in range(4):
        assert offences.add(now_s)
        blocked.append(offences.blocked_until_s - now_s)
        now_s = offences.blocked_until_s
    assert blocked == [10.0, 20.0, 40.0, 80.0]
    assert not offences.add(now_s + budgets.FORGIVE_S + 1)


@pytest.mark.parametrize("max_message_bytes", [64 * 1024, 4 * MIB, 64 * MIB, 128 * MIB])
def test_the_queue_of_one_connection_holds_at_most_the_budget_of_bytes(max_message_bytes: int) -> None:
    largest_frame = 2 * max_message_bytes
    queued = budgets.results_queued(10_000, max_message_bytes)
    assert queued == 1 or 1 < queued <= budgets.QUEUED_BYTES_MAX // largest_frame
    assert budgets.unread_bytes_max(max_message_bytes) >= 2 * largest_frame


def test_a_smaller_setting_of_the_queue_is_kept() -> None:
    assert budgets.results_queued(10, 64 * 1024) == 10


@pytest.mark.parametrize(
    ("open_files_max", "connections"),
    [(65_536, 4_096), (20_000, 4_096), (4_096, 1_792), (1_024, 256), (256, 64), (resource.RLIM_INFINITY, 4_096)],
)
def test_the_limit_of_open_files_reduces_the_connections(open_files_max: int, connections: int) -> None:
    assert open_files.connections_of_bus(4_096, open_files_max) == connections
    assert open_files.connections_of_bus(10, open_files_max) == 10


def test_a_configured_number_of_connections_fits_the_files_that_are_recommended_for_it() -> None:
    assert open_files.connections_of_bus(4_096, open_files.files_for_bus(4_096)) == 4_096


def test_memory_is_returned_once_most_of_many_connections_have_ended() -> None:
    crowd = Crowd()
    assert not any(crowd.has_left(n, n / 1_000) for n in range(2_000))
    assert not crowd.has_left(1_001, 3.0)
    assert crowd.has_left(900, 3.1)
    assert not crowd.has_left(0, 3.2), "again after CROWD_EVERY_S at the earliest"
    assert crowd.has_left(0, 3.1 + budgets.CROWD_EVERY_S)
    assert crowd.has_left(0, 60.0), "what libzmq has freed since"
    assert not crowd.has_left(0, 120.0)


def test_memory_is_returned_once_more_after_the_last_connections_of_a_crowd_have_ended() -> None:
    crowd = Crowd()
    assert not crowd.has_left(budgets.CROWD, 1.0)
    assert crowd.has_left(budgets.CROWD // 4, 2.0)
    assert crowd.has_left(0, 2.0 + budgets.CROWD_EVERY_S)
    assert not crowd.has_left(0, 60.0)


def test_a_few_connections_are_no_crowd() -> None:
    crowd = Crowd()
    assert not any(crowd.has_left(n, 60.0 + n) for n in (budgets.CROWD - 1, 0, 10, 0))
