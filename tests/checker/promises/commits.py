"""P1 to P5: nothing is sent before its commit, and no effect comes before its cause."""

from tests.checker.database import Case, Database
from tests.checker.ledgers import SentResult
from tests.checker.story import StepStory
from tests.checker.witnesses import Witnesses

from .common import CLOCK_SLACK_MS, Finding, Finds, describe, given_of, runs_of


def nothing_is_sent_before_its_commit(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Judged where the writer's own ledger has the time at which each COMMIT returned."""
    lane = database.lanes.get(case.lane_id)
    if lane is None or not seen.commits:
        return
    story, commits = case.story, seen.commits

    def is_early(at: int, seq: int | None) -> bool:
        return seq is not None and at < commits.get((case.lane_id, seq), 0)

    for name in seen.keys_of.get(case.task.id, ()):
        if is_early(seen.acknowledged[name][case.task.id], story.submitted_seq):
            yield Finding(None, f"it was acknowledged before group {story.submitted_seq} was committed")
    for step, given in given_of(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None and is_early(each.line.at, delivery.seq):
                yield Finding(
                    step.index, f"delivery {delivery.number} arrived before group {delivery.seq} was committed"
                )
    for step, runs in runs_of(seen, case):
        for run in runs if runs[0].is_level0 else ():  # level-0 handlers write no wire ledger
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and is_early(run.started.at, delivery.seq):
                yield Finding(step.index, f"{describe([run])} before group {delivery.seq} was committed")
    for row, step in case.pairs():
        for delivery in step.deliveries if step.plan.is_once else ():
            pid = seen.pids_of.get(delivery.worker)
            gone_at = None if pid is None else seen.gone.get((row.id, delivery.number, pid))
            if gone_at is not None and is_early(gone_at, delivery.granted_seq):
                yield Finding(step.index, f"delivery {delivery.number} was sent its go before its grant was committed")
        for sent in seen.sent.get(row.id, ()):
            settled = _settled_in(step, sent.result)
            if sent.acked_at is not None and is_early(sent.acked_at, settled):
                yield Finding(
                    step.index, f"result {sent.line.rid} was acknowledged before group {settled} was committed"
                )


def _settled_in(step: StepStory, result: SentResult) -> int | None:
    """Return the group that must be committed before the broker may acknowledge this result.

    The group is the one that applied the result or, for a late result, the first after which the result could no
    longer be applied. A failure counts only while its own delivery is current, so any outcome of that delivery makes
    a failure late, `undelivered` too. A success still counts after `undelivered`, until an operator's retry.

    A late success counts as settled from the first outcome on that is not `undelivered`, of its own delivery or of a
    later one. The rule is lenient: such an outcome may be a failure that still leaves the step open, and then the
    success could be applied after all. `an_acknowledged_result_is_applied` judges what became of it.
    """
    if result.status == "completed":
        applied = [o.seq for o in step.outcomes if o.delivery == result.delivery and o.kind == "completed"]
        late = [o.seq for o in step.outcomes if o.delivery >= result.delivery and o.kind != "undelivered"]
        late += [r.seq for r in step.reopenings if r.accept_from > result.delivery]
    else:
        own = [o for o in step.outcomes if o.delivery == result.delivery]
        applied = [
            o.seq for o in own if o.kind in ("backed_off", "failed") and o.code == (result.code or result.status)
        ]
        late = [o.seq for o in own]
    return min(applied or late, default=None)


def causes_come_before_effects(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Judged where the wall clock was steady: submitted, then stored; dispatched, then run; run, then applied."""
    if not seen.is_wall_steady:
        return
    task, shift = case.task, seen.wall_minus_at
    asked_at = seen.asked.get((task.namespace, task.key or ""))
    if asked_at is not None and _ms(asked_at + shift) > case.story.created_ms + CLOCK_SLACK_MS:
        yield Finding(None, "it was stored before any client had submitted it")
    for step, runs in runs_of(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and delivery.at > _ms(run.started.at + shift) + CLOCK_SLACK_MS:
                yield Finding(step.index, f"{describe([run])} before it was dispatched")
        for outcome in step.outcomes:
            if outcome.kind == "completed" and not outcome.by_operator:
                ends = [r.over for r in runs if r.started.delivery == outcome.delivery and r.verdict == "finished"]
                if ends and outcome.at + CLOCK_SLACK_MS < _ms(min(ends) + shift):
                    yield Finding(step.index, f"delivery {outcome.delivery} completed before its handler had finished")


def _ms(ns: int) -> int:
    return ns // 1_000_000
