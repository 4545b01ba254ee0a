"""P5: an at_most_once step starts once, on a grant. A held step has a cause."""

from tests.checker import causes
from tests.checker.database import Case, Database
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds, describe, is_unknown, runs_of


def an_at_most_once_step_starts_once(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        if len(runs) > 1 and (step.plan.is_once or runs[0].started.mode == "at_most_once"):
            allowed = 1 + (len(step.reopenings) if causes.was_ordered(seen, case, step) else 0)
            if step.plan.retry_reported_failures:
                allowed += sum(run.verdict == "failed" for run in runs)
            if len(runs) > allowed:
                yield Finding(step.index, f"it was started {len(runs)} times: {describe(runs)}")


def an_at_most_once_step_starts_on_a_go(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        if not step.plan.is_once:
            continue
        for run in runs:
            start = run.started
            if start.pid in seen.recorded_pids:
                gone_at = seen.gone.get((start.step_id, start.delivery, start.pid))
                if gone_at is None or gone_at > start.at:
                    yield Finding(step.index, f"{describe([run])} before its go")


def a_held_step_has_a_cause(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step in case.story.steps:
        for outcome in step.outcomes:
            if is_unknown(outcome) and causes.of_holding(seen, case, step, outcome) is None:
                yield Finding(step.index, f"delivery {outcome.delivery} is {outcome.kind}, and no fault explains it")


def attention_is_for_a_held_step(database: Database, seen: Witnesses, case: Case) -> Finds:
    task, states = case.task, [row.state for row in case.steps]
    if task.attention is not None and (task.attention != "held" or "held" not in states):
        yield Finding(None, f"its attention is {task.attention}, and its steps are {states}")
