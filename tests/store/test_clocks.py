"""The two clocks of a host are read at one moment."""

import time
from collections.abc import Callable

import pytest
from stepwire_broker.store import clocks

REAL = time.time_ns


def suspended(times: int) -> Callable[[], int]:
    """The wall clock, read by a thread that is suspended for 20 ms before each of the first readings."""
    readings = iter(range(times))

    def read() -> int:
        if next(readings, None) is not None:
            time.sleep(0.02)
        return REAL()

    return read


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_thread_suspended_between_two_clocks_reads_both_again(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", suspended(times))
    now = clocks.read_clocks()
    monkeypatch.undo()
    later = clocks.read_clocks()
    assert abs((now.wall - now.mono) - (later.wall - later.mono)) < 10


def test_a_host_that_suspends_every_reading_gets_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", suspended(1_000))
    began = time.monotonic()
    assert clocks.read_clocks().wall <= REAL() // 1_000_000
    assert time.monotonic() - began >= 0.02 * clocks.READINGS_MAX
