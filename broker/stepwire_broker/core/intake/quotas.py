"""Quotas: the limits of the tasks of one namespace, from `limits.namespaces`.

A submission that exceeds a quota is refused whole, before anything of it is stored. Retries of stored tasks count and
are never refused.
"""

from collections.abc import Sequence
from typing import Final

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.settings import QuotaSettings
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.guards.step_rate import StepRate, full
from stepwire_broker.core.model.events import NewTask, Now, QuotasChanged
from stepwire_broker.core.state import BrokerState

OPEN_STEPS: Final = "open_steps_of_namespace"
STEPS_PER_S: Final = "steps_per_s_of_namespace"
PRIORITY: Final = "priority_of_namespace"
RETRY_AFTER_MS: Final = 1_000  # open steps end at times that the broker does not know


def on_quotas_changed(state: BrokerState, event: QuotasChanged, now: Now) -> None:
    """Use these quotas. A namespace keeps what it has used of its rate; one that used nothing has a full second."""
    used = {}
    for namespace in state.step_rates:
        steps_per_s, rate = _rate_of(state, namespace), _refilled(state, namespace, now)  # at the earlier rate
        if steps_per_s is not None and rate is not None and not rate.is_full(steps_per_s):
            used[namespace] = rate
    state.quotas = event.quotas
    state.step_rates = {name: rate for name, rate in used.items() if _rate_of(state, name) is not None}


def refusal(
    state: BrokerState, tasks: Sequence[NewTask], workflows: Sequence[Workflow], now: Now
) -> CommandRefused | None:
    """Refuse a submission with which a namespace would exceed its quota. `workflows`: of the tasks, in their order."""
    refused = _over_priority(state, tasks, workflows)
    for namespace, steps in _steps_of(workflows).items():
        if refused is None and (quota := state.quotas.get(namespace)) is not None:
            refused = _over_open_steps(state, namespace, quota, steps, len(tasks)) or _over_rate(
                state, namespace, quota, now
            )
    if refused is not None:
        state.counters.count_over_quota(refused.owner, refused.limit)
    return refused


def pay(state: BrokerState, workflows: Sequence[Workflow], now: Now) -> None:
    """Pay the steps of an accepted submission from the rates of their namespaces."""
    if not state.quotas:
        return
    for namespace, steps in _steps_of(workflows).items():
        if (rate := _refilled(state, namespace, now)) is not None:
            rate.pay(steps)


def _steps_of(workflows: Sequence[Workflow]) -> dict[str, int]:
    """The number of steps in each namespace, in the order of the submission."""
    steps: dict[str, int] = {}
    for workflow in workflows:
        steps[workflow.namespace] = steps.get(workflow.namespace, 0) + len(workflow.steps)
    return steps


def _over_open_steps(
    state: BrokerState, namespace: str, quota: QuotaSettings, steps: int, tasks: int
) -> CommandRefused | None:
    most = quota.max_open_steps
    open_steps = state.open_by_namespace.get(namespace, 0) + state.open_elsewhere.get(namespace, 0)
    if most is None or open_steps + steps <= most:
        return None
    if steps <= most:
        hint = Hint(HintCode.WAIT_FOR_QUOTA, namespace=namespace)
    else:
        hint = Hint(HintCode.SPLIT_SUBMISSION) if tasks > 1 else Hint(HintCode.RAISE_QUOTA, namespace=namespace)
    return CommandRefused(
        "quota",
        f"{open_steps} steps of the namespace {namespace} are open and this submission adds {steps}; the quota is "
        f"{most} (max_open_steps)",
        hint,
        RETRY_AFTER_MS if steps <= most else None,
        OPEN_STEPS,
        namespace,
    )


def _over_rate(state: BrokerState, namespace: str, quota: QuotaSettings, now: Now) -> CommandRefused | None:
    rate = _refilled(state, namespace, now)
    if rate is None or quota.steps_per_s is None or (wait_ms := rate.wait_ms(quota.steps_per_s)) == 0:
        return None
    return CommandRefused(
        "quota",
        f"the namespace {namespace} has submitted more steps than its quota of {quota.steps_per_s} per second "
        "(steps_per_s)",
        Hint(HintCode.WAIT_FOR_QUOTA, namespace=namespace),
        wait_ms,
        STEPS_PER_S,
        namespace,
    )


def _over_priority(
    state: BrokerState, tasks: Sequence[NewTask], workflows: Sequence[Workflow]
) -> CommandRefused | None:
    """A step is ranked by its task's priority and its own together, so both count."""
    highest: dict[int, int] = {}  # by workflow: the priority of its steps
    for number, (new, workflow) in enumerate(zip(tasks, workflows, strict=True)):
        quota = state.quotas.get(workflow.namespace)
        if quota is None or quota.priority_max is None:
            continue
        if workflow.id not in highest:
            highest[workflow.id] = max(step.priority for step in workflow.steps)
        priority = new.priority + highest[workflow.id]
        if priority > quota.priority_max:
            text = (
                f"the priority is {priority} ({new.priority} of the task and {highest[workflow.id]} of a step); the "
                f"quota of the namespace {workflow.namespace} is {quota.priority_max} (priority_max)"
            )
            return CommandRefused(
                "quota",
                text if len(tasks) == 1 else f"tasks[{number}]: {text}",
                Hint(HintCode.RAISE_QUOTA, namespace=workflow.namespace),
                limit=PRIORITY,
                owner=workflow.namespace,
            )
    return None


def _rate_of(state: BrokerState, namespace: str) -> int | None:
    quota = state.quotas.get(namespace)
    return None if quota is None else quota.steps_per_s


def _refilled(state: BrokerState, namespace: str, now: Now) -> StepRate | None:
    """The rate of this namespace as it is now; None without a limit. A broker begins with a full second."""
    steps_per_s = _rate_of(state, namespace)
    if steps_per_s is None:
        return None
    rate = state.step_rates.get(namespace)
    if rate is None:
        rate = state.step_rates[namespace] = full(steps_per_s, now.mono)
    rate.refill(steps_per_s, now.mono)
    return rate
