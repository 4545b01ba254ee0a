"""kill -9 of the broker under load, and its next start with much to do.

`python -m tests.system.chaos` is the long form.
"""

from collections.abc import Callable

from tests.checker import assert_kept, the_history_replays

from .chaos import Campaign, run
from .harness import Site, eventually, workflow

FIRST_DISPATCH_PROMISE_S, FIRST_DISPATCH_BOUND_S = 3.0, 6.0  # promised; asserted on a busy machine
OPEN_STEPS = 100_000
STEPS_PER_TASK = 5
BATCH_TASKS = 1_000


def test_a_broker_killed_three_times_with_a_hundred_in_flight_loses_and_doubles_nothing(
    site: Site, figure: Callable[[str], None]
) -> None:
    verdict, cycles = run(site, Campaign(seed=11, cycles=3, backlog=150), print)
    figure(f"ready again after {', '.join(f'{cycle.ready_s:.2f} s' for cycle in cycles)}; {verdict}")
    assert not verdict.violations, str(verdict)
    # Only deliberate failures were retried: every run in flight outlived the broker.
    assert set(verdict.figures["started again"]) <= {"its handler had failed"}


def test_a_broker_killed_at_a_commit_loses_and_doubles_nothing(site: Site, figure: Callable[[str], None]) -> None:
    verdict, cycles = run(site, Campaign(seed=12, cycles=3, faults=("commit",), backlog=150), print)
    figure(f"{len(cycles)} kills just before or just after a COMMIT; {verdict}")
    assert not verdict.violations, str(verdict)
    assert set(verdict.figures["started again"]) <= {"its handler had failed"}


def test_a_broker_with_a_hundred_thousand_open_steps_dispatches_within_three_seconds(
    site: Site, figure: Callable[[str], None]
) -> None:
    broker = site.start_broker()
    site.apply(workflow("many", *({"name": f"step-{i}"} for i in range(STEPS_PER_TASK))))
    client = site.recorded_client()
    for start in range(0, OPEN_STEPS // STEPS_PER_TASK, BATCH_TASKS):
        keys = [f"k{i}" for i in range(start, start + BATCH_TASKS)]
        client.submit_many_until_stored("many", keys)
    broker.kill9()
    worker = site.start_worker("waiting", slots=10, wait=False)
    broker = site.start_broker(wait=False)
    first = eventually(lambda: next(iter(site.runs("started")), None), "the first step to start", 30)
    first_s = (first["at"] - broker.started_ns) / 1e9
    figure(f"first step started {first_s:.2f} s after the start with {OPEN_STEPS} open (promise 3 s)")
    figure(f"broker {broker.rss_bytes() / 1e6:.0f} MB")
    assert first_s < FIRST_DISPATCH_BOUND_S
    site.await_ready(broker)
    assert worker.is_running
    eventually(lambda: len(site.runs("finished")) > 200 or None, "more of them to run")
    assert_kept(site.database, site.ledgers, all_ended=False, without=(the_history_replays,))
