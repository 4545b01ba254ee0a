"""More open steps than may be in memory. `python -m tests.system.memory` is the long form."""

from collections.abc import Callable

from . import memory
from .harness import Site

STEPS = 50_000
ACTIVE_TASKS = 1_000
GROWTH_BYTES_MAX = 64 * 1024 * 1024


def test_far_more_open_steps_than_memory_allows_all_complete_in_bounded_memory(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings=memory.settings(ACTIVE_TASKS))
    measured = memory.run(site, STEPS, lambda text: None)
    figure(f"{STEPS} open steps, {ACTIVE_TASKS} tasks in memory at most: {measured}")
    assert measured.peak_bytes - measured.before_bytes < GROWTH_BYTES_MAX
    verdict = memory.verdict_of(site, is_replayed=False)
    assert not verdict.violations, str(verdict)
    assert verdict.figures["started"] == STEPS
