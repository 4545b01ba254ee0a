"""P3: an outcome is what its handler returned, and an acknowledged result is applied."""

from typing import Any, Final

from tests.checker.database import Case, Database, StepRow
from tests.checker.story import STEP_FINAL, Outcome, StepStory
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds, run_of_token, token_in

# The codes that the broker itself may record, without a report of the handler.
BROKERS_CODES: Final = frozenset(
    {
        "timeout",
        "deadline",
        "task_deadline",
        "queue_timeout",
        "worker_lost",
        "too_large",
        "bad_message",
        "unstorable",
        "outcome_unknown",
        "resolved_failed",
    }
)


EARLIER_MAX: Final = 32  # a late success is accepted up to this many deliveries back


def an_outcome_is_what_its_handler_returned(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An outcome equals the handler's own report and the bytes that left its worker."""
    for row, step in case.pairs():
        sent = seen.sent.get(row.id, ())
        for outcome in step.outcomes:
            if outcome.by_operator or outcome.kind not in ("completed", "backed_off", "failed"):
                continue
            wrong = _contradiction(seen, row, step, outcome, sent)
            if wrong is not None:
                yield Finding(step.index, f"delivery {outcome.delivery} {outcome.kind} {outcome.code}: {wrong}")


def _contradiction(seen: Witnesses, row: StepRow, step: StepStory, outcome: Outcome, sent: Any) -> str | None:
    results = [each.result for each in sent if each.result.delivery == outcome.delivery]
    if outcome.kind == "completed":
        mine = [r for r in results if r.status == "completed"]
        if mine and all((r.bytes, r.crc32) != (outcome.bytes, outcome.crc32) for r in mine):
            return f"its worker sent {mine[0].bytes} bytes with CRC-32 {mine[0].crc32}, not {outcome.crc32}"
        if not mine and seen.recorded_pids and _worker_was_recorded(seen, step, outcome):
            return "its worker sent no such result"
        return _handler_denies(seen, row, step, outcome)
    if outcome.code in BROKERS_CODES:
        return None
    codes = {r.code or r.status for r in results if r.status != "completed"}
    if codes and outcome.code not in codes:
        return f"its worker sent {sorted(codes)}"
    if not codes and _worker_was_recorded(seen, step, outcome):
        return "its worker sent no such result"
    runs = [run for run in seen.runs.get(row.id, ()) if run.started.delivery == outcome.delivery]
    if runs and all(run.verdict == "finished" for run in runs) and not codes:
        return "its handler had finished"
    return None


def _handler_denies(seen: Witnesses, row: StepRow, step: StepStory, outcome: Outcome) -> str | None:
    token = token_in(row.output) if step.state == "completed" and outcome is step.outcomes[-1] else None
    if token is not None and seen.has_handlers:
        end = run_of_token(seen, token)
        is_its = end is not None and end.step_id == row.id and end.delivery == outcome.delivery
        if not is_its or type(end).__name__ != "Finished":
            return f"its output is of run {token}, which never finished"
    return None


def _worker_was_recorded(seen: Witnesses, step: StepStory, outcome: Outcome) -> bool:
    delivery = step.delivery_of(outcome.delivery)
    return delivery is not None and delivery.worker in seen.pids_of


def an_acknowledged_result_is_applied(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An acknowledged result is applied, unless an earlier fact had already settled the step."""
    for row, step in case.pairs():
        for sent in seen.sent.get(row.id, ()):
            result = sent.result
            if sent.acked_at is None or result.delivery < max(step.accept_from, step.delivery - EARLIER_MAX):
                continue
            if result.status == "completed":
                is_kept = step.state in STEP_FINAL
            else:
                is_kept = step.delivery > result.delivery or step.state != "dispatched"
            if not is_kept:
                yield Finding(
                    step.index,
                    f"delivery {result.delivery} {result.status}: its result {sent.line.rid} was acknowledged, and the "
                    f"step is {step.state}",
                )
