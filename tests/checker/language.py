"""A task's history, read as a language: which fact may follow which, and what they add up to.

Written from the design and from nothing of the broker's code, so that a mistake there is not repeated here. One pass
over the facts of a task gives its story (what its rows must show) and every offence against the language.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

Fact: TypeAlias = list[Any]  # [kind, at, …] or, of a step, [kind, at, step, …]

MOVING: Final = frozenset({"ready", "dispatched", "retry_wait"})
STEP_FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
TASK_FINAL: Final = frozenset({"completed", "failed", "cancelled"})
LOST_SESSIONS_MAX: Final = 3

# In this state, after this fact, that state.
STEP_MOVES: Final[dict[str, dict[str, str]]] = {
    "readied": {"waiting": "ready", "retry_wait": "ready"},
    "dispatched": {"ready": "dispatched"},
    "granted": {"dispatched": "dispatched"},
    "started": {"dispatched": "dispatched"},
    "undelivered": {"dispatched": "ready"},
    "completed": dict.fromkeys(("dispatched", "ready", "retry_wait", "held"), "completed"),
    "backed_off": {"dispatched": "retry_wait", "held": "retry_wait"},
    "failed": dict.fromkeys(("dispatched", "held", "ready", "retry_wait"), "failed"),
    "held": {"dispatched": "held"},
    "restored": dict.fromkeys(("waiting", "ready", "dispatched", "retry_wait"), "held"),
    "skipped": {"waiting": "skipped"},
    "cancelled": dict.fromkeys(("waiting", "ready", "retry_wait", "dispatched"), "cancelled"),
    "reopened": dict.fromkeys(
        ("completed", "failed", "cancelled", "skipped", "held", "ready", "retry_wait"), "waiting"
    ),
}
TASK_MOVES: Final[dict[str, dict[str, str]]] = {
    "activated": {"pending": "running"},
    "paused": {"running": "paused"},
    "resumed": {"paused": "running"},
    "task_reopened": dict.fromkeys(TASK_FINAL, "running"),
    "ended": {"running": "", "paused": ""},  # it names the state
}
# A granted delivery goes back to the queue only on the word of the worker that was granted it.
WORKERS_WORD: Final = frozenset({"busy", "draining", "stale", "unknown_handler", "session_replaced", "not_held"})


# What an operator's word has to be followed by.
ORDERS: Final = {
    "retry": "reopened",
    "resolve_retry": "reopened",
    "resolve_completed": "completed",
    "resolve_failed": "failed",
}
# A step fails without a delivery under way only for one of these, and for the first two only while it is ready.
FAILS_READY: Final = frozenset({"queue_timeout", "worker_lost"})
FAILS_BY_ITSELF: Final = FAILS_READY | {"deadline", "task_deadline"}

LANGUAGE_RULES: Final = (
    "the_history_begins_with_the_submission",
    "the_history_is_of_the_workflow",
    "facts_follow_from_facts",
    "a_final_state_is_final",
    "a_task_ends_with_its_steps",
    "a_task_ends_as_its_steps_did",
    "no_step_is_ready_before_what_it_depends_on",
    "only_what_cannot_run_is_skipped",
    "a_back_off_is_waited_for",
    "deliveries_rise_by_one",
    "nothing_is_dispatched_while_paused",
    "nothing_is_dispatched_after_cancel",
    "at_most_once_starts_when_granted",
    "at_most_once_is_granted_once",
    "only_a_granted_at_most_once_step_is_held",
    "only_a_delivery_that_counts_changes_state",
    "attempts_are_bounded",
    "only_an_operator_opens_again",
)


# -- what is to be run ------------------------------------------------------------------------------------------------


class StepPlan(NamedTuple):
    """What a workflow's document says of a step, as far as a judge needs it."""

    name: str
    handler_class: str
    depends_on: tuple[int, ...]
    is_once: bool  # delivery_mode at_most_once
    on_unknown: str
    retry_limit: int
    retry_reported_failures: bool
    timeout_ms: int
    allow_failure: bool
    rule: dict[str, Any] | None


class Plan(NamedTuple):
    id: int
    steps: tuple[StepPlan, ...]
    by_name: dict[str, int]


def read_plan(number: int, document: str | bytes) -> Plan:
    steps = msgspec.json.decode(document)["steps"]
    by_name = {step["name"]: i for i, step in enumerate(steps)}
    return Plan(number, tuple(_step_plan(step, by_name) for step in steps), by_name)


def _step_plan(step: dict[str, Any], by_name: dict[str, int]) -> StepPlan:
    is_once = step.get("delivery_mode") == "at_most_once"
    retries_reported = bool(step.get("retry_reported_failures", False))
    return StepPlan(
        name=step["name"],
        handler_class=step["handler_class"],
        depends_on=tuple(sorted({by_name[name] for name in step.get("depends_on", ())})),
        is_once=is_once,
        on_unknown=step.get("on_unknown", "hold"),
        retry_limit=step.get("retry_limit", 0 if is_once and not retries_reported else 3),
        retry_reported_failures=retries_reported,
        timeout_ms=step.get("timeout_ms", 30_000),
        allow_failure=bool(step.get("allow_failure", False)),
        rule=step.get("trigger_rule"),
    )


def holds(rule: dict[str, Any], plan: Plan, states: Sequence[str]) -> bool | None:
    """None: it compares values, which are not looked at here."""
    for kind in ("completed", "failed", "skipped"):
        if kind in rule:
            return states[plan.by_name[rule[kind]]] == kind
    for kind, decides in (("all", False), ("any", True), ("none", True)):
        if kind in rule:
            verdicts = [holds(each, plan, states) for each in rule[kind]]
            found: bool | None = decides
            if decides not in verdicts:
                found = None if None in verdicts else not decides
            return found if kind != "none" or found is None else not found
    return None


# -- the story --------------------------------------------------------------------------------------------------------


class DeliveryStory(Struct, gc=False):
    """One hand-over of a step."""

    number: int
    worker: str
    batch_id: str
    at: int
    seq: int  # of the group that wrote it
    attempt: int
    key_number: int
    inputs: tuple[int | None, ...]  # by dependency: the CRC-32 of its output, None without one
    granted_seq: int | None = None
    started_at: int | None = None


class Outcome(NamedTuple):
    """What became of a delivery, or of a step between deliveries."""

    kind: str  # completed, backed_off, failed, held, undelivered, cancelled
    delivery: int
    code: str
    at: int
    seq: int
    by_operator: bool = False
    bytes: int = 0
    crc32: int = 0


class Reopening(NamedTuple):
    """An operator's retry of a step: results of earlier deliveries no longer count."""

    accept_from: int  # the first delivery that counts
    seq: int


class StepStory(Struct):
    """The columns that its row must show, and how it came to them."""

    plan: StepPlan
    index: int
    state: str = "waiting"
    attempt: int = 0
    delivery: int = 0
    accept_from: int = 0
    batch_id: str | None = None
    worker: str | None = None
    granted: bool = False
    lost_sessions: int = 0
    ready_ms: int | None = None
    dispatched_ms: int | None = None
    started_ms: int | None = None
    not_before_ms: int | None = None
    finished_ms: int | None = None
    reason: str | None = None
    key_number: int = 0
    output_bytes: int = 0
    output_crc32: int | None = None
    deliveries: list[DeliveryStory] = []
    outcomes: list[Outcome] = []
    reopenings: list[Reopening] = []

    def delivery_of(self, number: int) -> DeliveryStory | None:
        return self.deliveries[number - 1] if 0 < number <= len(self.deliveries) else None


class Offence(NamedTuple):
    rule: str
    step: int | None
    what: str


class TaskStory(Struct):
    plan: Plan
    uid: str = ""
    state: str = ""
    attention: str | None = None
    cancelling: bool = False
    created_ms: int = 0
    finished_ms: int | None = None
    submitted_seq: int = 0
    cancel_asked_at: int | None = None
    steps: list[StepStory] = []
    offences: list[Offence] = []
    operated: list[tuple[str, int | None, int]] = []  # action, step, seq
    ordered: tuple[str, int | None] | None = None  # what has to follow in the same group, and of which step
    ended_states: list[str] = []
    facts: int = 0
    seq: int = 0  # of the group that is being read

    def offend(self, rule: str, step: int | None, what: str) -> None:
        self.offences.append(Offence(rule, step, what))

    def is_operated(self, action: str, step: int | None) -> bool:
        """Did an operator say so, in the same transaction?"""
        return any(a == action and s in (step, None) and q == self.seq for a, s, q in self.operated)


def read_story(plan: Plan, rows: Iterable[tuple[int, list[Fact]]]) -> TaskStory:
    """`rows` are (sequence of the group, facts), in order."""
    story = TaskStory(plan, steps=[StepStory(step, i) for i, step in enumerate(plan.steps)])
    steps = story.steps
    count = 0
    for story.seq, facts in rows:
        for fact in facts:
            kind = fact[0]
            if count == 0 and kind != "submitted":
                story.offend("the_history_begins_with_the_submission", None, f"it begins with {fact}")
                story.state = "running"
            count += 1
            apply = _STEP.get(kind)
            if apply is not None:
                index = fact[2]
                if not 0 <= index < len(steps):
                    story.offend("the_history_is_of_the_workflow", None, f"{fact} names a step that is not there")
                    continue
                step = steps[index]
                before = step.state
                after = STEP_MOVES[kind].get(before)
                if after is None:
                    _misplaced(story, step, fact)
                    continue
                if story.state in TASK_FINAL or story.state == "pending":
                    _untimely(story, step, fact)
                if story.ordered is not None and kind == story.ordered[0] and story.ordered[1] in (index, None):
                    story.ordered = None
                step.state = after
                apply(story, step, fact, before)
            elif kind in _TASK:
                _TASK[kind](story, fact)
            else:
                story.offend("the_history_is_of_the_workflow", None, f"{fact} is nothing that is known")
        if story.ordered is not None:
            story.offend("facts_follow_from_facts", story.ordered[1], f"an operator's word, and no {story.ordered[0]}")
            story.ordered = None
    story.facts = count
    _at_the_end(story)
    return story


def _misplaced(story: TaskStory, step: StepStory, fact: Fact) -> None:
    rule = "a_final_state_is_final" if step.state in STEP_FINAL else "facts_follow_from_facts"
    story.offend(rule, step.index, f"{fact} in state {step.state}")


def _untimely(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", step.index, f"{fact} after the task had {story.state}")
    elif fact[0] != "readied":
        story.offend("facts_follow_from_facts", step.index, f"{fact} while the task was not loaded")


def _at_the_end(story: TaskStory) -> None:
    if not story.facts:
        story.offend("the_history_begins_with_the_submission", None, "it has none")
    elif story.state not in TASK_FINAL and all(step.state in STEP_FINAL for step in story.steps):
        story.offend("a_task_ends_with_its_steps", None, f"every step is final, and the task is {story.state}")


# -- facts of steps ---------------------------------------------------------------------------------------------------


def _readied(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    at = fact[1]
    if before == "waiting":
        if (step.plan.depends_on or step.plan.rule) and _may_run(story, step) is False:
            states = {story.steps[i].plan.name: story.steps[i].state for i in step.plan.depends_on}
            story.offend("no_step_is_ready_before_what_it_depends_on", step.index, f"{fact} with {states}")
    elif step.not_before_ms is not None and at < step.not_before_ms - _slack_ms(step):
        story.offend("a_back_off_is_waited_for", step.index, f"{fact}, not before {step.not_before_ms}")
    step.ready_ms = at
    step.not_before_ms = None
    step.reason = None


def _slack_ms(step: StepStory) -> int:
    """It is waited for by the monotonic clock and told by the other: both are rounded, and one may be slewed."""
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
        story.offend("deliveries_rise_by_one", step.index, f"{fact} after delivery {step.delivery}")
    _may_go_out(story, step, fact)
    step.delivery = delivery
    step.worker = worker
    step.batch_id = batch_id
    step.dispatched_ms = at
    step.started_ms = None
    step.reason = None
    inputs = tuple(
        story.steps[i].output_crc32 if story.steps[i].state == "completed" else None for i in step.plan.depends_on
    )
    step.deliveries.append(
        DeliveryStory(delivery, worker, batch_id, at, story.seq, step.attempt, step.key_number, inputs)
    )


def _granted(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _is_current(story, step, fact)
    if step.granted:
        story.offend("facts_follow_from_facts", step.index, f"{fact} a second time")
    _may_go_out(story, step, fact)
    step.granted = True
    if step.deliveries:
        step.deliveries[-1].granted_seq = story.seq


def _started(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _is_current(story, step, fact)
    if step.plan.is_once and not step.granted:
        story.offend("at_most_once_starts_when_granted", step.index, f"{fact} without a grant")
    if step.started_ms is not None:
        story.offend("facts_follow_from_facts", step.index, f"{fact} a second time")
    step.started_ms = fact[1]
    if step.deliveries:
        step.deliveries[-1].started_at = fact[1]


def _undelivered(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code, lost = fact
    _is_current(story, step, fact)
    never_left = code == "unsent" and (step.worker or "").startswith("level0.")
    if step.plan.is_once and step.granted and code not in WORKERS_WORD and not never_left:
        story.offend("at_most_once_is_granted_once", step.index, f"{fact} of a granted delivery, by the broker's guess")
    step.lost_sessions += bool(lost)
    if step.lost_sessions > LOST_SESSIONS_MAX:
        story.offend("attempts_are_bounded", step.index, f"{fact}: {step.lost_sessions} sessions lost with it")
    _let_go(step)
    step.reason = code
    step.outcomes.append(Outcome("undelivered", delivery, code, at, story.seq))


def _completed(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, size, crc = fact
    by_operator = story.is_operated("resolve_completed", step.index)
    counts = step.accept_from <= delivery <= step.delivery and step.delivery_of(delivery) is not None
    if not (counts or (by_operator and delivery == step.delivery)):
        story.offend(
            "only_a_delivery_that_counts_changes_state",
            step.index,
            f"{fact}: the last delivery is {step.delivery}, and they count from {step.accept_from}",
        )
    elif step.plan.is_once and not by_operator:
        _was_granted(story, step, fact)
    step.output_bytes, step.output_crc32 = size, crc
    step.finished_ms = at
    step.batch_id = step.not_before_ms = step.reason = None
    step.outcomes.append(Outcome("completed", delivery, "", at, story.seq, by_operator, size, crc))


def _backed_off(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code, until = fact
    _is_current(story, step, fact)
    step.attempt += 1
    if step.attempt > step.plan.retry_limit:
        story.offend("attempts_are_bounded", step.index, f"{fact} is retry {step.attempt} of {step.plan.retry_limit}")
    if step.plan.is_once and not step.plan.retry_reported_failures:
        story.offend("at_most_once_is_granted_once", step.index, f"{fact}: a failure that is not tried again")
    if step.plan.is_once:
        _was_granted(story, step, fact)
    _let_go(step)
    step.not_before_ms = until
    step.reason = code
    step.outcomes.append(Outcome("backed_off", delivery, code, at, story.seq))


def _failed(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code = fact
    _is_current(story, step, fact)
    if (code in FAILS_BY_ITSELF) < (before in ("ready", "retry_wait")) or (code in FAILS_READY) > (before == "ready"):
        story.offend("facts_follow_from_facts", step.index, f"{fact} in state {before}")
    step.finished_ms = at
    step.reason = code
    step.batch_id = step.not_before_ms = None
    by_operator = story.is_operated("resolve_failed", step.index)
    step.outcomes.append(Outcome("failed", delivery, code, at, story.seq, by_operator))


def _held(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    _, at, _, delivery, code = fact
    _is_current(story, step, fact)
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
        story.offend("only_what_cannot_run_is_skipped", step.index, f"{fact} with {states}")
    step.finished_ms = fact[1]


def _cancelled(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if not story.cancelling:
        story.offend("facts_follow_from_facts", step.index, f"{fact}, and nobody had cancelled the task")
    step.finished_ms = fact[1]
    step.reason = fact[3]
    step.batch_id = step.not_before_ms = None
    step.outcomes.append(Outcome("cancelled", step.delivery, fact[3], fact[1], story.seq))


def _reopened(story: TaskStory, step: StepStory, fact: Fact, before: str) -> None:
    if not (story.is_operated("retry", None) or story.is_operated("resolve_retry", step.index)):
        story.offend("only_an_operator_opens_again", step.index, f"{fact} without an operator's word beside it")
    step.attempt = 0
    step.lost_sessions = 0
    step.accept_from = step.delivery + 1
    step.batch_id = step.ready_ms = step.not_before_ms = step.finished_ms = step.started_ms = step.reason = None
    step.granted = False
    step.key_number += bool(fact[3])
    step.output_bytes = 0
    step.output_crc32 = None
    step.reopenings.append(Reopening(step.accept_from, story.seq))


def _may_go_out(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if story.state == "paused":
        story.offend("nothing_is_dispatched_while_paused", step.index, str(fact))
    if story.cancelling:
        story.offend("nothing_is_dispatched_after_cancel", step.index, str(fact))


def _is_current(story: TaskStory, step: StepStory, fact: Fact) -> None:
    if fact[3] != step.delivery:
        story.offend("only_a_delivery_that_counts_changes_state", step.index, f"{fact}: it is delivery {step.delivery}")


def _was_granted(story: TaskStory, step: StepStory, fact: Fact) -> None:
    """It cannot have run otherwise."""
    delivery = step.delivery_of(fact[3])
    if delivery is not None and delivery.granted_seq is None:
        story.offend("at_most_once_starts_when_granted", step.index, f"{fact} of a delivery without a grant")


def _let_go(step: StepStory) -> None:
    step.batch_id = None
    step.granted = False


# -- facts of the task ------------------------------------------------------------------------------------------------


def _submitted(story: TaskStory, fact: Fact) -> None:
    _, at, workflow_id, uid, state, _first_step_id = fact
    if story.state:
        story.offend("the_history_begins_with_the_submission", None, f"{fact} a second time")
        return
    if workflow_id != story.plan.id:
        story.offend("the_history_is_of_the_workflow", None, f"{fact}, and its row says workflow {story.plan.id}")
    story.uid, story.state, story.created_ms, story.submitted_seq = uid, state, at, story.seq


def _moved(story: TaskStory, fact: Fact) -> None:
    after = TASK_MOVES[fact[0]].get(story.state)
    if after is None:
        rule = "a_final_state_is_final" if story.state in TASK_FINAL else "facts_follow_from_facts"
        story.offend(rule, None, f"{fact} in state {story.state}")
        return
    story.state = after
    if fact[0] == "task_reopened":
        if not story.is_operated("retry", None):
            story.offend("only_an_operator_opens_again", None, f"{fact} without an operator's word beside it")
        story.finished_ms = None
        story.cancelling = False
        story.cancel_asked_at = None


def _cancel_asked(story: TaskStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", None, f"{fact} in state {story.state}")
    story.cancelling = True
    story.cancel_asked_at = fact[1]


def _operated(story: TaskStory, fact: Fact) -> None:
    _, _, action, index, _ = fact
    if action.startswith("resolve_") and story.steps[index].state != "held":
        story.offend("facts_follow_from_facts", index, f"{fact} in state {story.steps[index].state}")
    story.operated.append((action, index, story.seq))
    story.ordered = (ORDERS[action], index) if action in ORDERS else None


def _noticed(story: TaskStory, fact: Fact) -> None:
    if fact[2] == story.attention:
        story.offend("facts_follow_from_facts", None, f"{fact} changes nothing")
    states = [step.state for step in story.steps]
    if fact[2] is not None and ("held" not in states or any(state in MOVING for state in states)):
        story.offend("facts_follow_from_facts", None, f"{fact} with {states}")
    story.attention = fact[2]


def _ended(story: TaskStory, fact: Fact) -> None:
    if story.state in TASK_FINAL:
        story.offend("a_final_state_is_final", None, f"{fact} in state {story.state}")
        return
    states = [step.state for step in story.steps]
    unfinished = {s.plan.name: s.state for s in story.steps if s.state not in STEP_FINAL}
    if unfinished:
        story.offend("a_task_ends_with_its_steps", None, f"{fact} with {unfinished}")
    if story.cancelling and "cancelled" in states:
        expected = "cancelled"
    elif any(step.state == "failed" and not step.plan.allow_failure for step in story.steps):
        expected = "failed"
    else:
        expected = "completed"
    if fact[2] != expected:
        story.offend("a_task_ends_as_its_steps_did", None, f"{fact} with {states}")
    story.state = fact[2]
    story.finished_ms = fact[1]
    story.ended_states.append(fact[2])


_STEP: Final[dict[str, Callable[[TaskStory, StepStory, Fact, str], None]]] = {
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
_TASK: Final[dict[str, Callable[[TaskStory, Fact], None]]] = {
    "submitted": _submitted,
    "activated": _moved,
    "paused": _moved,
    "resumed": _moved,
    "task_reopened": _moved,
    "cancel_asked": _cancel_asked,
    "operated": _operated,
    "noticed": _noticed,
    "ended": _ended,
}
