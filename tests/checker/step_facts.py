"""The facts of steps: each function applies one kind of fact to the story, and checks what the language says of it."""

from collections.abc import Callable
from typing import Any, Final

from .plans import holds
from .story import STEP_FINAL, DeliveryStory, Fact, Outcome, Reopening, StepStory, TaskStory

LOST_SESSIONS_MAX: Final = 3
# A granted delivery returns to the queue only with one of these reports of its worker.
REPORTED_BY_WORKER: Final = frozenset({"busy", "draining", "stale", "unknown_handler", "session_replaced", "not_held"})
# A step fails without a delivery under way only for one of these reasons; for the first two only while it is ready.
FAILS_READY: Final = frozenset({"queue_timeout", "worker_lost"})
FAILS_BY_ITSELF: Final = FAILS_READY | {"deadline", "task_deadline"}


def _readied(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    at = fact[1]
    if before == "waiting":
        if (step.plan.depends_on or step.plan.rule) and _may_run(story, step) is False:
            states = {story.steps[i].plan.name: story.steps[i].state for i in step.plan.depends_on}
            story.offend("no_step_is_ready_before_its_dependencies", step.index, f"{fact} with {states}")
    elif step.not_before_ms is not None and at < step.not_before_ms - _slack_ms(step):
        story.offend("no_retry_starts_before_its_back_off_ends", step.index, f"{fact}, not before {step.not_before_ms}")
    step.ready_ms = at
    step.not_before_ms = None
    step.reason = None


def _slack_ms(step: StepStory) -> int:
    """The broker waits by the monotonic clock and records the other: both are rounded, and one may be slewed."""
    assert step.not_before_ms is not None
    return 2 + (step.not_before_ms - step.outcomes[-1].at) // 1_000


def _may_run(story: TaskStory, step: StepStory) -> bool | None:
    states = [s.state for s in story.steps]
    if any(states[i] not in STEP_FINAL for i in step.plan.depends_on):
        return False
    if step.plan.rule is None:
        return all(states[i] == "completed" for i in step.plan.depends_on)
    return holds(step.plan.rule, story.plan, states)


def _dispatched(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, worker, batch_id = fact
    if delivery != step.delivery + 1:
        story.offend("delivery_numbers_rise_by_one", step.index, f"{fact} after delivery {step.delivery}")
    _check_dispatch(story, step, fact)
    step.delivery = delivery
    step.worker = worker
    step.batch_id = batch_id
    step.dispatched_ms = at
    step.started_ms = step.run_ms = None
    step.reason = None
    inputs = tuple(
        story.steps[i].output_crc32 if story.steps[i].state == "completed" else None for i in step.plan.depends_on
    )
    step.deliveries.append(
        DeliveryStory(delivery, worker, batch_id, at, story.seq, step.attempt, step.key_number, inputs)
    )


def _granted(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _check_current(story, step, fact)
    if step.granted:
        story.offend("each_fact_follows_from_the_state", step.index, f"{fact} a second time")
    _check_dispatch(story, step, fact)
    step.granted = True
    if step.deliveries:
        step.deliveries[-1].granted_seq = story.seq


def _started(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _check_current(story, step, fact)
    if step.plan.is_once and not step.granted:
        story.offend("an_at_most_once_step_starts_only_when_granted", step.index, f"{fact} without a grant")
    if step.started_ms is not None:
        story.offend("each_fact_follows_from_the_state", step.index, f"{fact} a second time")
    step.started_ms = fact[1]
    if step.deliveries:
        step.deliveries[-1].started_at = fact[1]


def _undelivered(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code, lost = fact
    _check_current(story, step, fact)
    is_level0 = (step.worker or "").startswith("level0.")
    if before == "held" and not (is_level0 and code == "unknown_handler"):
        story.offend("a_granted_delivery_is_not_dispatched_again", step.index, f"{fact} of a held delivery")
    never_left = code == "unsent" and is_level0
    if step.plan.is_once and step.granted and code not in REPORTED_BY_WORKER and not never_left:
        story.offend(
            "a_granted_delivery_is_not_dispatched_again",
            step.index,
            f"{fact} of a granted delivery, without its worker's report",
        )
    step.lost_sessions += bool(lost)
    if step.lost_sessions > LOST_SESSIONS_MAX:
        story.offend(
            "lost_sessions_are_bounded", step.index, f"{fact}: {step.lost_sessions} sessions were lost with it"
        )
    _release(step)
    step.reason = code
    step.outcomes.append(Outcome("undelivered", delivery, code, at, story.seq))


def _completed(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, size, crc = fact[:6]
    by_operator = story.is_operated("resolve_completed", step.index)
    counts = step.accept_from <= delivery <= step.delivery and step.delivery_of(delivery) is not None
    if not (counts or (by_operator and delivery == step.delivery)):
        story.offend(
            "only_a_current_delivery_changes_state",
            step.index,
            f"{fact}: the last delivery is {step.delivery}, results count from delivery {step.accept_from}",
        )
    elif step.plan.is_once and not by_operator:
        _check_granted(story, step, fact)
    step.output_bytes, step.output_crc32 = size, crc
    step.run_ms = _at(fact, 6)
    step.finished_ms = at
    step.batch_id = step.not_before_ms = step.reason = None
    step.outcomes.append(Outcome("completed", delivery, "", at, story.seq, by_operator, size, crc))


def _backed_off(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code, until = fact[:6]
    _check_current(story, step, fact)
    _ran(step, fact, 6)
    step.attempt += 1
    if step.attempt > step.plan.retry_limit:
        story.offend("retries_are_bounded", step.index, f"{fact} is retry {step.attempt} of {step.plan.retry_limit}")
    if step.plan.is_once and not step.plan.retry_reported_failures:
        story.offend("a_granted_delivery_is_not_dispatched_again", step.index, f"{fact}: a failure that is not retried")
    if step.plan.is_once:
        _check_granted(story, step, fact)
    _release(step)
    step.not_before_ms = until
    step.reason = code
    step.outcomes.append(Outcome("backed_off", delivery, code, at, story.seq))


def _failed(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code = fact[:5]
    _check_current(story, step, fact)
    _ran(step, fact, 5)
    if (code in FAILS_BY_ITSELF) < (before in ("ready", "retry_wait")) or (code in FAILS_READY) > (before == "ready"):
        story.offend("each_fact_follows_from_the_state", step.index, f"{fact} in state {before}")
    step.finished_ms = at
    step.reason = code
    step.batch_id = step.not_before_ms = None
    by_operator = story.is_operated("resolve_failed", step.index)
    step.outcomes.append(Outcome("failed", delivery, code, at, story.seq, by_operator))


def _held(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code = fact[:5]
    _check_current(story, step, fact)
    _ran(step, fact, 5)
    if not step.plan.is_once or not step.granted or step.plan.on_unknown != "hold":
        story.offend("only_a_granted_at_most_once_step_is_held", step.index, str(fact))
    step.reason = code
    step.outcomes.append(Outcome("held", delivery, code, at, story.seq))


def _restored(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if not step.plan.is_once:
        story.offend("only_a_granted_at_most_once_step_is_held", step.index, str(fact))
    step.reason = "restored"
    step.not_before_ms = None
    step.outcomes.append(Outcome("held", step.delivery, "restored", fact[1], story.seq))


def _skipped(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if _may_run(story, step) is True or any(story.steps[i].state not in STEP_FINAL for i in step.plan.depends_on):
        states = {story.steps[i].plan.name: story.steps[i].state for i in step.plan.depends_on}
        story.offend("only_a_step_that_cannot_run_is_skipped", step.index, f"{fact} with {states}")
    step.finished_ms = fact[1]


def _cancelled(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if not story.cancelling:
        story.offend("each_fact_follows_from_the_state", step.index, f"{fact}, and the task was not cancelled")
    step.finished_ms = fact[1]
    step.reason = fact[3]
    step.batch_id = step.not_before_ms = None
    step.outcomes.append(Outcome("cancelled", step.delivery, fact[3], fact[1], story.seq))


def _reopened(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if not (story.is_operated("retry", None) or story.is_operated("resolve_retry", step.index)):
        story.offend("only_an_operator_reopens", step.index, f"{fact} without an operator's command in its group")
    step.attempt = 0
    step.lost_sessions = 0
    step.accept_from = step.delivery + 1
    step.batch_id = step.ready_ms = step.not_before_ms = step.finished_ms = step.started_ms = step.reason = None
    step.run_ms = None
    step.granted = False
    step.key_number += bool(fact[3])
    step.output_bytes = 0
    step.output_crc32 = None
    step.reopenings.append(Reopening(step.accept_from, story.seq))


def _at(fact: Fact, index: int) -> Any:
    """A last member of a fact. Rows that are older than the member lack it."""
    return fact[index] if len(fact) > index else None


def _ran(step: StepStory, fact: Fact, index: int) -> None:
    """A failed run that was shorter than a heartbeat has its start from its duration."""
    run_ms = _at(fact, index)
    if run_ms is None:
        return
    step.run_ms = run_ms
    if step.started_ms is None and step.dispatched_ms is not None:
        step.started_ms = max(step.dispatched_ms, fact[1] - run_ms)


def _check_dispatch(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if story.state == "paused":
        story.offend("nothing_is_dispatched_while_paused", step.index, str(fact))
    if story.cancelling:
        story.offend("nothing_is_dispatched_after_a_cancel", step.index, str(fact))


def _check_current(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if fact[3] != step.delivery:
        story.offend("only_a_current_delivery_changes_state", step.index, f"{fact}: it is delivery {step.delivery}")


def _check_granted(story: TaskStory, step: StepStory, fact: Fact) -> None:
    """A delivery with an outcome was granted, or it could not have run."""
    delivery = step.delivery_of(fact[3])
    if delivery is not None and delivery.granted_seq is None:
        story.offend(
            "an_at_most_once_step_starts_only_when_granted", step.index, f"{fact} of a delivery without a grant"
        )


def _release(step: StepStory) -> None:
    step.batch_id = None
    step.granted = False


STEP_FACTS: Final[dict[str, Callable[[TaskStory, StepStory, Fact, str], None]]] = {
    "readied": _readied,
    "dispatched": _dispatched,
    "granted": _granted,
    "started": _started,
    "undelivered": _undelivered,
    "completed": _completed,
    "backed_off": _backed_off,
    "failed": _failed,
    "held": _held,
    "restored": _restored,
    "skipped": _skipped,
    "cancelled": _cancelled,
    "reopened": _reopened,
}
