"""P2: only a dispatched delivery runs, after its dependencies, with the committed outputs."""

from collections import defaultdict
from collections.abc import Iterator

from tests.checker.database import Case, Database
from tests.checker.story import STEP_FINAL, StepStory
from tests.checker.witnesses import Witnesses

from .common import LEVEL0, Finding, Finds, Judged, describe, given_of, may_be_removed, run_of_token, runs_of, token_in


def only_a_dispatched_delivery_runs(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in runs_of(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is None:
                yield Finding(step.index, f"{describe([run])}, and that delivery is not in the history")
            elif step.plan.is_once and delivery.granted_seq is None:
                yield Finding(step.index, f"{describe([run])}, and that delivery was not granted")
            elif run.is_level0 is not delivery.worker.startswith(LEVEL0):
                yield Finding(step.index, f"{describe([run])}, and that delivery went to {delivery.worker}")
            elif any(o.code == "unsent" and o.delivery == delivery.number for o in step.outcomes):
                yield Finding(step.index, f"{describe([run])}, and by the history it was never sent")
    for step, given in given_of(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is None:
                yield Finding(step.index, f"delivery {each.step.delivery} went to a worker and is not in the history")
            elif (delivery.worker, delivery.batch_id) != (each.line.worker, each.line.batch_id):
                yield Finding(
                    step.index,
                    f"delivery {delivery.number} came to {each.line.worker} in {each.line.batch_id}, and the history "
                    f"has {delivery.worker} in {delivery.batch_id}",
                )


def every_run_has_a_step(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    removed = may_be_removed(database, seen)
    for step_id in seen.runs.keys() - judged.steps:
        if seen.runs[step_id][0].started.task_id in removed - judged.tasks:
            continue
        yield f"step {step_id} was run and does not exist: {describe(seen.runs[step_id])}"
    used: dict[str, set[int]] = defaultdict(set)
    for step_id, runs in seen.runs.items():
        for run in runs:
            used[run.started.key].add(step_id)
    yield from (f"key {key} was given to steps {sorted(ids)}" for key, ids in used.items() if len(ids) > 1)


def no_step_starts_before_its_dependencies(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Judged by the ledgers alone: the run whose output a step was given had finished when the step started."""
    for step, runs in runs_of(seen, case):
        for i in step.plan.depends_on:
            before = case.story.steps[i]
            if before.reopenings or _is_operated(case, before):
                continue
            for run in runs:
                token = run.started.seen.get(before.plan.name)
                end = run_of_token(seen, token)
                if token is None and before.state in STEP_FINAL and token_in(case.output_of(i)) is None:
                    continue  # no output, and a trigger rule let this step run; or its handler writes no token
                if token is None or end is None or end.step_id != case.task.id + 1 + i:
                    yield Finding(step.index, f"{describe([run])} with {token} as the output of {before.plan.name}")
                elif end.at > run.started.at:
                    yield Finding(step.index, f"{describe([run])} before {before.plan.name} had finished")
                elif token != token_in(case.output_of(i)):
                    yield Finding(
                        step.index,
                        f"{describe([run])} with {token} as the output of {before.plan.name}, which is "
                        f"{before.state} with {token_in(case.output_of(i))}",
                    )


def _is_operated(case: Case, step: StepStory) -> bool:
    return any(outcome.by_operator for outcome in step.outcomes)


def a_step_receives_the_committed_outputs(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, given in given_of(seen, case):
        names = [case.story.steps[i].plan.name for i in step.plan.depends_on]
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None:
                expected = {n: crc for n, crc in zip(names, delivery.inputs, strict=True) if crc is not None}
                if each.step.inputs != expected:
                    yield Finding(
                        step.index,
                        f"delivery {delivery.number} was given inputs with CRC-32 {each.step.inputs}, committed were "
                        f"{expected}",
                    )
