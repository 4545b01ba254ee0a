"""The texts of the core's hints for HTTP users: each text names the route, or the member of the body."""

from typing import Final

from stepwire_broker.core.answers.hints import TEXTS as NEUTRAL_TEXTS
from stepwire_broker.core.answers.hints import Hint, HintCode, hint_text

TEXTS: Final[dict[HintCode, str]] = {
    HintCode.LIST_TASKS: "GET /v1/tasks lists the tasks; ended tasks are removed after their retention time",
    HintCode.SHOW_TASK: "GET /v1/tasks/{task_id} shows the states of its steps",
    HintCode.LIST_HELD_STEPS: "GET /v1/steps?state=held lists the held steps",
    HintCode.LIST_WORKFLOWS: "GET /v1/workflows lists the workflows",
    HintCode.LIST_RULES: "GET /v1/rules lists the rules; remove rules of the configuration in the configuration",
    HintCode.LIST_HANDLERS: "GET /v1/workflows and GET /v1/workers list the handlers that exist",
    HintCode.APPLY_WORKFLOW: "apply the workflow first: POST /v1/workflows",
    HintCode.RESUME_TASK: "resume it: POST /v1/tasks/{task_id}/resume",
    HintCode.RESOLVE_STEP: "find out what the step did, then resolve it: POST /v1/steps/{step_id}/resolve",
    HintCode.RESUME_EXECUTOR: "resume it: POST /v1/executors/{executor}/resume",
    HintCode.ROUTE_TO_EXECUTOR: "send the step there: POST /v1/rules with `match`: {path} and `executor`: {executor}",
    HintCode.RELEASE_BREAKER: "return it to automatic control: POST /v1/breakers/{handler_class} with `state`: auto",
    HintCode.RELEASE_ANY_BREAKER: "return one to automatic control: POST /v1/breakers/{{handler_class}} with"
    " `state`: auto",
    HintCode.CONFIGURE_RULES: "move rules into the configuration and remove the rules set at run time:"
    " POST /v1/rules/remove",
    HintCode.CANCEL_FIRST: "cancel it first: POST /v1/tasks/{task_id}/cancel, and wait until it has ended",
    HintCode.CONFIRM_SECOND_RUN: "pass `again`: true to run them a second time",
    HintCode.WAIT_OR_RESOLVE: "wait until running steps have finished, and resolve held steps first:"
    " POST /v1/steps/{{step_id}}/resolve",
}


def worded(hint: Hint) -> str:
    return hint_text(hint, TEXTS)


def template(code: HintCode) -> str:
    """The text of a code with the names of its parameters, for the reference."""
    return TEXTS.get(code, NEUTRAL_TEXTS[code]).replace("{{", "{").replace("}}", "}")
