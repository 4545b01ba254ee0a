"""Workers that share steps: a slow worker does not keep steps that another worker could run."""

import pytest
from stepwire_protocol import limits

from .shared_work import SharedWork

SLOTS = 8
SLOWER = 4.0  # the second worker needs so many times as long


@pytest.mark.parametrize(("length_ms", "steps"), [(0.05, 1_000), (1.0, 2_000), (50.0, 400), (5_000.0, 60)])
def test_a_slow_worker_holds_about_40_ms_of_its_own_work(length_ms: float, steps: int) -> None:
    work = SharedWork(lambda _: length_ms, (1.0, SLOWER), SLOTS)
    work.submit(steps)
    work.finish(within_ms=100_000)
    assert all(worker.ran > 0 for worker in work.workers)
    for worker in work.workers:
        own = SLOTS / (length_ms * worker.factor) * limits.PREFETCH_MS
        expected_at_first = max(SLOTS, limits.PREFETCH_MIN)
        assert worker.waiting_max <= max(expected_at_first, 1.5 * own), worker.factor
    assert work.sat_ms <= 250


@pytest.mark.parametrize(("length_ms", "steps"), [(1.0, 2_000), (50.0, 400)])
def test_two_workers_finish_in_about_the_time_that_their_slots_need(length_ms: float, steps: int) -> None:
    work = SharedWork(lambda _: length_ms, (1.0, SLOWER), SLOTS)
    work.submit(steps)
    started_ms = work.now
    work.finish(within_ms=100_000)
    needed_ms = steps * length_ms / (SLOTS + SLOTS / SLOWER)
    assert work.now - started_ms <= 1.1 * needed_ms + limits.PREFETCH_MS


def test_steps_that_become_long_are_returned_and_run_elsewhere() -> None:
    """Each worker holds hundreds of short steps when the long ones begin."""
    first, last = 4_000, 4_200
    work = SharedWork(lambda step_id: 0.05 if step_id < first or step_id > last else 2_000, (1.0, SLOWER), SLOTS)
    work.submit(3_000)
    work.run_until(lambda: any(worker.running == SLOTS for worker in work.workers), work.now + 10_000)
    work.finish(within_ms=400_000)
    assert max(worker.waiting_max for worker in work.workers) > 100, "nothing was held that could be returned"
    assert work.sat_ms <= 250
    assert work.world.state.counters.redelivered > 0


@pytest.mark.parametrize("long_share", [10, 100])
def test_steps_of_mixed_lengths_do_not_wait_at_one_worker_while_another_is_free(long_share: int) -> None:
    work = SharedWork(lambda step_id: 2_000.0 if step_id % long_share == 0 else 0.05, (1.0, 1.0), SLOTS)
    work.submit(1_000)
    work.finish(within_ms=400_000)
    assert work.sat_ms <= 250


def test_a_worker_whose_handler_is_limited_does_not_return_steps_again_and_again() -> None:
    work = SharedWork(lambda _: 2_000.0, (1.0,), slots=4, concurrency=1)
    work.submit(20)
    work.finish(within_ms=60_000)
    assert work.world.state.counters.redelivered <= 20


def test_a_declared_prefetch_waits_at_its_worker_however_long_the_steps_are() -> None:
    work = SharedWork(lambda _: 5_000.0, (1.0, 1.0), slots=1, prefetch=3)
    work.submit(8)
    work.pass_time(4_000)
    assert [worker.waiting for worker in work.workers] == [3, 3]


def test_with_a_declared_prefetch_of_0_no_step_waits_at_a_worker() -> None:
    work = SharedWork(lambda _: 1.0, (1.0, SLOWER), SLOTS, prefetch=0)
    work.submit(500)
    work.finish(within_ms=10_000)
    assert [worker.waiting_max for worker in work.workers] == [0, 0]
