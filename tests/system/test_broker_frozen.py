"""A broker that stood still for longer than its workers' leases: it was not they who were silent."""

from collections.abc import Callable

from .chaos import Campaign, run
from .harness import Site

LEASE_MS = 2_000


def test_a_broker_that_was_frozen_past_the_leases_of_its_workers_runs_nothing_again(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings={"bus.lease_ms": LEASE_MS, "bus.heartbeat_ms": LEASE_MS // 5})
    campaign = Campaign(seed=13, cycles=1, faults=("freeze",), lease_ms=LEASE_MS, backlog=150)
    verdict, _ = run(site, campaign, print)
    figure(str(verdict))
    assert not verdict.violations, str(verdict)
    # A run beside a run that nobody had lost would be allowed by the letter of the lease, and is not needed.
    assert set(verdict.figures["started again"]) <= {"its handler had failed"}
