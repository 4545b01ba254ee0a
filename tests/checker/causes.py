"""The causes that permit an exception to a promise: a second run, two runs at once, a held step.

Only the ledgers prove a cause: a fault, heartbeats without an echo, a run that took too long, a command that a client
sent. The database alone never does.
"""

from typing import Final

from . import ledgers as lines
from .database import Case
from .story import Outcome, StepStory
from .witnesses import LEVEL0_GRACE_NS, Run, Witnesses

FIRST_INSTRUCTION_NS: Final = 100_000_000  # after the end of a pause: many threads continue at once
ROUNDING_MS: Final = 2  # two clocks, each in whole milliseconds
ON_ITS_WAY_NS: Final = 1_000_000_000  # a batch, from the broker to a level-0 handler's first instruction
TIMEOUT_SLACK_MS: Final = 50  # a run is timed by its worker, from a little before its first instruction

HANDLER_FAILED: Final = "its handler had failed"
WORKER_KILLED: Final = "its worker was killed"
WORKER_SILENT: Final = "its worker was silent for a lease"
BROKER_SILENT: Final = "its broker was silent for a lease"
BROKER_LOST: Final = "its worker's broker was out for a lease"
FROZEN: Final = "its worker was frozen as it began"
TIMED_OUT: Final = "it had timed out"
OPERATOR: Final = "an operator ordered it"
HANDLER_DID_NOT_KNOW: Final = "its handler reported an unknown outcome"
LEVEL0_LEASE_OVER: Final = "its lease at level 0 was over"
SHUT_DOWN: Final = "its worker was asked to end, and stopped it"

MAY_OVERLAP: Final = frozenset(
    {WORKER_SILENT, BROKER_SILENT, BROKER_LOST, FROZEN, TIMED_OUT, OPERATOR, LEVEL0_LEASE_OVER}
)


def of_running_again(seen: Witnesses, case: Case, step: StepStory, earlier: Run, later: Run) -> str | None:
    """Return why a step may run again after `earlier`, or None."""
    first, second = earlier.started, later.started
    if earlier.verdict == "failed" and second.attempt > first.attempt:
        return HANDLER_FAILED
    silent = _of_overlap(seen, case, step, earlier, later)
    if earlier.is_level0:
        return silent  # the broker cannot detect that a level-0 handler is dead or ends
    for outage in seen.outages_of.get(first.pid, ()):
        if outage.was_killed and outage.start <= second.at:
            return WORKER_KILLED
    if silent is not None:
        return silent
    asked_at = seen.asked_to_end.get(first.pid)
    if earlier.verdict == "stopped" and asked_at is not None and asked_at <= earlier.over <= second.at:
        return SHUT_DOWN
    return None


def of_overlap(seen: Witnesses, case: Case, step: StepStory, earlier: Run, later: Run) -> str | None:
    """Return why two runs of a step may go on at once, or None. A kill is no cause: a killed run does not go on."""
    return _of_overlap(seen, case, step, earlier, later)


def _of_overlap(seen: Witnesses, case: Case, step: StepStory, earlier: Run, later: Run) -> str | None:
    first, second = earlier.started, later.started
    if earlier.is_level0:
        if is_lease_over(seen, step, earlier, second.at):
            return LEVEL0_LEASE_OVER
        return OPERATOR if was_ordered(seen, case, step) else None
    if seen.was_silent(first.pid, first.at, second.at):
        return WORKER_SILENT
    if second.at < first.at:
        # Suspended between its check of the lease and the handler's first instruction: the one gap that is left.
        for outage in seen.outages_of.get(first.pid, ()):
            was_about_to = outage.end < first.at and first.at - outage.end < FIRST_INSTRUCTION_NS
            if was_about_to and min(outage.end, second.at) - outage.start > 0:
                return FROZEN
    if seen.was_broker_silent(first.at, second.at):
        return BROKER_SILENT
    if seen.polled.has_lost_its_broker(first.pid, (first.step_id, first.delivery), case.lane_id, first.at, second.at):
        return BROKER_LOST
    if has_timed_out(step, first.delivery, first.at, second.at):
        return TIMED_OUT
    return OPERATOR if was_ordered(seen, case, step) else None


def is_lease_over(seen: Witnesses, step: StepStory, run: Run, until: int) -> bool:
    """Return whether the lease of a level-0 run is over, counted from the handler's own start."""
    lease_ns = step.plan.timeout_ms * 1_000_000 + LEVEL0_GRACE_NS
    return until - seen.given_at(run) >= lease_ns - ON_ITS_WAY_NS


def has_timed_out(step: StepStory, delivery: int, started_at: int, until: int) -> bool:
    """Return whether the database records a timeout and the run really had its time."""
    is_recorded = any(o.delivery == delivery and o.code == "timeout" for o in step.outcomes)
    return is_recorded and until - started_at >= (step.plan.timeout_ms - TIMEOUT_SLACK_MS) * 1_000_000


def was_ordered(seen: Witnesses, case: Case, step: StepStory) -> bool:
    return bool(step.reopenings) and (not seen.has_clients or bool(orders_about(seen, case, step)))


def orders_about(seen: Witnesses, case: Case, step: StepStory | None) -> list[lines.Ordered]:
    of_task = seen.orders.get(case.task.id, [])
    if step is None:
        return [*of_task, *(o for s in case.story.steps for o in seen.orders.get(case.task.id + 1 + s.index, ()))]
    return [*of_task, *seen.orders.get(case.task.id + 1 + step.index, ())]


def of_holding(seen: Witnesses, case: Case, step: StepStory, held: Outcome) -> str | None:
    """Return the fault that left the outcome of a granted delivery unknown, or None."""
    if held.code == "restored":
        was_restored = any(isinstance(line, lines.Restored) for line in seen.ledgers.faults)
        return "its database was restored" if was_restored else None
    step_id = case.task.id + 1 + step.index
    until = seen.at_of_wall(held.at + ROUNDING_MS)
    until = until if until is not None else 2**62
    delivery = step.delivery_of(held.delivery)
    runs = [run for run in seen.runs.get(step_id, ()) if run.started.delivery == held.delivery]
    if any(run.is_level0 for run in runs):
        if any(is_lease_over(seen, step, run, until) for run in runs):
            return LEVEL0_LEASE_OVER
        return HANDLER_DID_NOT_KNOW if any(run.verdict == "failed" for run in runs) else None
    pids = {run.started.pid for run in runs}
    if delivery is not None and delivery.worker in seen.pids_of:
        pids.add(seen.pids_of[delivery.worker])
    if delivery is not None and delivery.worker in seen.polled.workers:
        pids.add(seen.polled.workers[delivery.worker])
    since = seen.at_of_wall(delivery.at - 1_000) if delivery is not None else None
    since = since if since is not None else 0
    for pid in pids or seen.outages_of.keys() - seen.broker_pids:
        for outage in seen.outages_of.get(pid, ()):
            if outage.was_killed and outage.start <= until:
                return WORKER_KILLED
        if seen.was_silent(pid, since, until):
            return WORKER_SILENT
        if seen.polled.has_lost_its_broker(pid, (step_id, held.delivery), case.lane_id, since, until):
            return BROKER_LOST
    if seen.was_broker_silent(since, until):
        return BROKER_SILENT
    for run in runs:
        if min(run.over, until) - run.started.at >= (step.plan.timeout_ms - TIMEOUT_SLACK_MS) * 1_000_000:
            return TIMED_OUT
    if any(run.verdict == "stopped" and run.started.pid in seen.asked_to_end for run in runs):
        return SHUT_DOWN
    if case.story.cancel_asked_at is not None and case.story.cancel_asked_at <= held.at:
        return "it was cancelled, and how far it was is unknown"
    if any(run.verdict == "failed" for run in runs):
        return HANDLER_DID_NOT_KNOW
    codes = [sent.result.code for sent in seen.sent.get(step_id, ()) if sent.result.delivery == held.delivery]
    return HANDLER_DID_NOT_KNOW if "outcome_unknown" in codes else None
