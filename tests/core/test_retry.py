"""The pause before the next attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.definitions.retry import PAUSE_MIN_MS, delay_ms, unit_of
from stepwire_broker.core.definitions.step_definition import BackoffPolicy

NO_JITTER = BackoffPolicy(jitter="none")


@pytest.mark.parametrize(
    ("backoff", "attempt", "pause_ms"),
    [
        (NO_JITTER, 0, 1_000),
        (NO_JITTER, 1, 2_000),
        (NO_JITTER, 2, 4_000),
        (NO_JITTER, 8, 256_000),
        (NO_JITTER, 9, 300_000),
        (NO_JITTER, 10_000, 300_000),
        (BackoffPolicy(kind="constant", jitter="none"), 0, 1_000),
        (BackoffPolicy(kind="constant", jitter="none"), 50, 1_000),
        (BackoffPolicy(kind="constant", base_ms=500, max_ms=200, jitter="none"), 0, 200),
        (BackoffPolicy(base_ms=0, jitter="none"), 5, PAUSE_MIN_MS),
        (BackoffPolicy(base_ms=10, jitter="none"), 0, PAUSE_MIN_MS),
    ],
)
def test_the_pause_doubles_up_to_its_limit(backoff: BackoffPolicy, attempt: int, pause_ms: int) -> None:
    assert delay_ms(backoff, attempt, 0.5) == pause_ms


@pytest.mark.parametrize(("unit", "pause_ms"), [(0.0, 50), (0.01, 50), (0.25, 1_000), (0.5, 2_000), (0.9999, 3_999)])
def test_full_jitter_draws_between_zero_and_the_whole_pause(unit: float, pause_ms: int) -> None:
    assert delay_ms(BackoffPolicy(), 2, unit) == pause_ms


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["full", "none"]),
    st.sampled_from(["exponential", "constant"]),
)
def test_a_pause_is_never_shorter_than_the_floor_nor_longer_than_the_limit(
    base_ms: int, max_ms: int, attempt: int, unit: float, jitter: str, kind: str
) -> None:
    pause_ms = delay_ms(BackoffPolicy(kind=kind, base_ms=base_ms, max_ms=max_ms, jitter=jitter), attempt, unit)  # type: ignore[arg-type]
    assert PAUSE_MIN_MS <= pause_ms <= max(max_ms, PAUSE_MIN_MS)


def test_an_attempt_always_draws_the_same_number_and_attempts_spread_evenly() -> None:
    assert unit_of("u", "charge", 3) == unit_of("u", "charge", 3)
    drawn = sorted(unit_of(f"{task:032x}", "charge", attempt) for task in range(500) for attempt in range(4))
    assert 0 <= drawn[0] < 0.01
    assert 0.99 < drawn[-1] < 1
    assert max(b - a for a, b in zip(drawn, drawn[1:], strict=False)) < 0.02  # noqa: RUF007
