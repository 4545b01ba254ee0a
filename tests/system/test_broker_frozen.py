"""A broker that was suspended for longer than its workers' leases, although no worker was silent."""

from collections.abc import Callable

from .chaos import Campaign, run
from .harness import Site

LEASE_MS = 2_000


def test_a_broker_suspended_past_its_workers_leases_repeats_no_run(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings={"bus.lease_ms": LEASE_MS, "bus.heartbeat_ms": LEASE_MS // 5})
    campaign = Campaign(seed=13, cycles=1, faults=("freeze",), lease_ms=LEASE_MS, backlog=150)
    verdict, _ = run(site, campaign, print)
    figure(str(verdict))
    assert not verdict.violations, str(verdict)
    # The lease would permit a second run at the same time, but the broker does not need one.
    assert set(verdict.figures["started again"]) <= {"its handler had failed"}
