"""The texts of the broker's hints for shell users: each text names the command."""

from typing import Any, Final

import msgspec

from stepwire_broker.core.answers.hints import Hint, HintCode, hint_text

TEXTS: Final[dict[HintCode, str]] = {
    HintCode.LIST_TASKS: "see: stepwire task list; ended tasks are removed after their retention time",
    HintCode.SHOW_TASK: "see: stepwire task show {task_id}",
    HintCode.LIST_HELD_STEPS: "see: stepwire step list --state held",
    HintCode.LIST_WORKFLOWS: "see: stepwire workflow list",
    HintCode.LIST_RULES: "see: stepwire executor routes; rules of the configuration are removed in the configuration",
    HintCode.LIST_HANDLERS: "see: stepwire workflow list, stepwire worker list",
    HintCode.APPLY_WORKFLOW: "apply it first: stepwire workflow apply FILE",
    HintCode.RESUME_TASK: "resume it: stepwire task resume {task_id}",
    HintCode.RESOLVE_STEP: "find out what the step did, then: stepwire step resolve {step_id}",
    HintCode.RESUME_EXECUTOR: "resume it: stepwire executor resume {executor}",
    HintCode.ROUTE_TO_EXECUTOR: "send the step there: stepwire executor route {path} --executor {executor}",
    HintCode.RELEASE_BREAKER: "return it to automatic control: stepwire breaker auto {handler_class}",
    HintCode.RELEASE_ANY_BREAKER: "return one to automatic control: stepwire breaker auto HANDLER",
    HintCode.CONFIGURE_RULES: "move rules into the configuration and remove the rules set at run time:"
    " stepwire executor route MATCH --reset",
    HintCode.CANCEL_FIRST: "pass --cancel to cancel it first and to wait until it has ended",
    HintCode.ACCEPT_LOSS: "make the lost commits available again, or accept their loss: stepwire db accept-loss",
    HintCode.CONFIRM_SECOND_RUN: "pass --again to run them a second time",
    HintCode.WAIT_OR_RESOLVE: "wait until running steps have finished, and resolve held steps first:"
    " stepwire step resolve STEP",
}


def worded(hint: Hint) -> str:
    if hint.code is HintCode.NAME_A_STEP and hint.task_id is not None:  # as the arguments of commands name steps
        hint = msgspec.structs.replace(hint, names=tuple(f"{hint.task_id}/{name}" for name in hint.names or ()))
    return hint_text(hint, TEXTS)


def next_text(document: dict[str, Any] | None, otherwise: str) -> str:
    """The text of a `next` member. A code that this version does not know keeps the broker's own text."""
    if document is None:
        return otherwise
    try:
        return worded(msgspec.convert(document, Hint))
    except msgspec.ValidationError:
        return otherwise
