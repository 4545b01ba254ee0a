"""P4: a delivery runs once, and a step runs on one worker at a time."""

from collections import Counter
from itertools import pairwise

from tests.checker import causes
from tests.checker.database import Case, Database
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds, describe, runs_of


def a_delivery_runs_once(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        if len(runs) > 1:
            for delivery, count in Counter(run.started.delivery for run in runs).items():
                if count > 1:
                    yield Finding(step.index, f"delivery {delivery} was started {count} times: {describe(runs)}")


def runs_overlap_only_with_a_cause(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        for earlier, later in pairwise(runs):
            apart = earlier.over <= later.started.at or later.over <= earlier.started.at
            if not apart and causes.of_overlap(seen, case, step, earlier, later) is None:
                yield Finding(step.index, f"two runs went on at once: {describe([earlier, later])}")


def an_idempotency_key_belongs_to_one_step(database: Database, seen: Witnesses, case: Case) -> Finds:
    """The key is the same for every run, until an operator requests a new one."""
    for step, runs in runs_of(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            number = 0 if delivery is None else delivery.key_number
            expected = f"{case.task.uid}/{step.plan.name}{f'/{number}' if number else ''}"
            if run.started.key != expected:
                yield Finding(
                    step.index, f"it was run under the key {run.started.key}, not {expected}: {describe([run])}"
                )
