"""Why something may have happened that nobody wants: what a promise names, and what was seen to have happened.

A cause is believed from the witnesses: a fault that was done, heartbeats that were not echoed, a run that took too
long, an order that somebody gave. The database's word alone is never one.
"""

from typing import Final

from . import ledgers as lines
from .evidence import LEVEL0_GRACE_NS, Case, Run, Witnesses
from .language import Outcome, StepStory

FIRST_INSTRUCTION_NS: Final = 100_000_000  # from the end of a pause: many threads want to go on at once
ROUNDING_MS: Final = 2  # two clocks, each told in whole milliseconds
ON_ITS_WAY_NS: Final = 1_000_000_000  # a batch, from the broker to a level-0 handler's first instruction
TIMEOUT_SLACK_MS: Final = 50  # a run is timed by its worker, from a little before its first instruction

HANDLER_FAILED: Final = "its handler had failed"
WORKER_KILLED: Final = "its worker was killed"
WORKER_SILENT: Final = "its worker was silent for a lease"
BROKER_SILENT: Final = "its broker was silent for a lease"
FROZEN: Final = "its worker was frozen as it began"
TIMED_OUT: Final = "it had run out of time"
OPERATOR: Final = "an operator said so"
HANDLER_DID_NOT_KNOW: Final = "its handler did not know"
LEVEL0_LEASE_OVER: Final = "its lease at level 0 was over"
SHUT_DOWN: Final = "its worker was told to end, and stopped it"

MAY_OVERLAP: Final = frozenset({WORKER_SILENT, BROKER_SILENT, FROZEN, TIMED_OUT, OPERATOR, LEVEL0_LEASE_OVER})


def of_running_again(seen: Witnesses, case: Case, step: StepStory, earlier: Run, later: Run) -> str | None:
    """Why a step may run again after `earlier`."""
    first, second = earlier.started, later.started
    if earlier.verdict == "failed" and second.attempt > first.attempt:
        return HANDLER_FAILED
    silent = _of_overlap(seen, case, step, earlier, later)
    if earlier.is_level0:
        return silent  # nobody can tell that such a handler is dead, or was told to end
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
    """Why two runs of a step may go on at once. That one of them was killed is none: it does not run any more."""
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
        # Frozen between the look at the lease and the handler's first instruction: the one gap that is left.
        for outage in seen.outages_of.get(first.pid, ()):
            was_about_to = outage.end < first.at and first.at - outage.end < FIRST_INSTRUCTION_NS
            if was_about_to and min(outage.end, second.at) - outage.start > 0:
                return FROZEN
    if seen.was_broker_silent(first.at, second.at):
        return BROKER_SILENT
    if has_timed_out(step, first.delivery, first.at, second.at):
        return TIMED_OUT
    return OPERATOR if was_ordered(seen, case, step) else None


def is_lease_over(seen: Witnesses, step: StepStory, run: Run, until: int) -> bool:
    """Of a level-0 run: nobody renews it, and nobody can end it early. By the handler's word on when it began."""
    lease_ns = step.plan.timeout_ms * 1_000_000 + LEVEL0_GRACE_NS
    return until - seen.given_at(run) >= lease_ns - ON_ITS_WAY_NS


def has_timed_out(step: StepStory, delivery: int, started_at: int, until: int) -> bool:
    """The database says so, and the run had indeed had its time."""
    says_so = any(o.delivery == delivery and o.code == "timeout" for o in step.outcomes)
    return says_so and until - started_at >= (step.plan.timeout_ms - TIMEOUT_SLACK_MS) * 1_000_000


def was_ordered(seen: Witnesses, case: Case, step: StepStory) -> bool:
    return bool(step.reopenings) and (not seen.has_clients or bool(orders_about(seen, case, step)))


def orders_about(seen: Witnesses, case: Case, step: StepStory | None) -> list[lines.Ordered]:
    of_task = seen.orders.get(case.task.id, [])
    if step is None:
        return [*of_task, *(o for s in case.story.steps for o in seen.orders.get(case.task.id + 1 + s.index, ()))]
    return [*of_task, *seen.orders.get(case.task.id + 1 + step.index, ())]


def of_holding(seen: Witnesses, case: Case, step: StepStory, held: Outcome) -> str | None:
    """Which fault left nobody knowing what became of a granted delivery."""
    if held.code == "restored":
        is_so = any(isinstance(line, lines.Restored) for line in seen.ledgers.faults)
        return "its database was restored" if is_so else None
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
    since = seen.at_of_wall(delivery.at - 1_000) if delivery is not None else None
    since = since if since is not None else 0
    for pid in pids or seen.outages_of.keys() - seen.broker_pids:
        for outage in seen.outages_of.get(pid, ()):
            if outage.was_killed and outage.start <= until:
                return WORKER_KILLED
        if seen.was_silent(pid, since, until):
            return WORKER_SILENT
    if seen.was_broker_silent(since, until):
        return BROKER_SILENT
    for run in runs:
        if min(run.over, until) - run.started.at >= (step.plan.timeout_ms - TIMEOUT_SLACK_MS) * 1_000_000:
            return TIMED_OUT
    if any(run.verdict == "stopped" and run.started.pid in seen.asked_to_end for run in runs):
        return SHUT_DOWN
    if case.story.cancel_asked_at is not None and case.story.cancel_asked_at <= held.at:
        return "it was told to stop, and nobody knows how far it was"
    if any(run.verdict == "failed" for run in runs):
        return HANDLER_DID_NOT_KNOW
    said = [said.result.code for said in seen.said.get(step_id, ()) if said.result.delivery == held.delivery]
    return HANDLER_DID_NOT_KNOW if "outcome_unknown" in said else None
