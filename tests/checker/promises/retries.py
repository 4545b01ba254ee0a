"""P6: a step runs again only with a cause, attempts count, and a run ends by its deadline."""

from itertools import pairwise
from typing import Final

from tests.checker import causes
from tests.checker.database import Case, Database
from tests.checker.witnesses import Witnesses

from .common import CLOCK_SLACK_MS, Finding, Finds, describe, given_of, runs_of

TIMEOUT_GRACE_MS: Final = 5_000  # a worker ends its runs by itself; the broker does this much later


def no_step_runs_again_without_a_cause(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        for earlier, later in pairwise(runs):
            if causes.of_running_again(seen, case, step, earlier, later) is None:
                yield Finding(step.index, f"it was run again: {describe([earlier, later])}")


def attempts_never_decrease(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An attempt equals the history's count of failures since the last reopening, and does not decrease."""
    for step, runs in runs_of(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and delivery.attempt != run.started.attempt:
                yield Finding(step.index, f"{describe([run])}, which the history has as attempt {delivery.attempt}")
        if not step.reopenings:
            for earlier, later in pairwise(runs):
                if later.started.attempt < earlier.started.attempt:
                    yield Finding(step.index, f"its attempts decrease: {describe([earlier, later])}")


def a_step_receives_its_attempt(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, given in given_of(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None and delivery.attempt != each.step.attempt:
                what = f"delivery {delivery.number} arrived as attempt {each.step.attempt}"
                yield Finding(step.index, f"{what}, the history has {delivery.attempt}")


def a_run_ends_by_its_deadline(database: Database, seen: Witnesses, case: Case) -> Finds:
    """A run ends in time whatever its worker does, unless its broker was down or suspended."""
    if seen.has_wall_jumped:
        return
    for step in case.story.steps:
        started = {d.number: d.started_at for d in step.deliveries if d.started_at is not None}
        for outcome in step.outcomes if started else ():
            began = started.pop(outcome.delivery, None)
            due = None if began is None else began + step.plan.timeout_ms + TIMEOUT_GRACE_MS + CLOCK_SLACK_MS
            if (
                began is not None
                and due is not None
                and outcome.at > due
                and not seen.broker_was_out(began, outcome.at)
            ):
                yield Finding(
                    step.index,
                    f"delivery {outcome.delivery} began at {began} and {outcome.kind} at {outcome.at}, "
                    f"its timeout_ms is {step.plan.timeout_ms}",
                )
