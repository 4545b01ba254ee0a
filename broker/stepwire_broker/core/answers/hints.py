"""Hints: the next action for a caller, as a code with parameters. The core never names a command or a route.

`TEXTS` holds a text of each code for any caller. The API replaces some of these texts by texts that name its routes.
The CLI replaces some by texts that name its commands.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct


class HintCode(enum.StrEnum):
    # look something up
    LIST_TASKS = "list_tasks"
    SHOW_TASK = "show_task"  # task_id
    LIST_HELD_STEPS = "list_held_steps"
    LIST_WORKFLOWS = "list_workflows"
    LIST_RULES = "list_rules"
    LIST_HANDLERS = "list_handlers"
    NAME_A_STEP = "name_a_step"  # names; task_id if the caller named a task by its id
    NAME_A_VERSION = "name_a_version"  # names
    NAME_A_WORKFLOW = "name_a_workflow"  # names
    # change something
    APPLY_WORKFLOW = "apply_workflow"
    RESUME_TASK = "resume_task"  # task_id
    RESOLVE_STEP = "resolve_step"  # step_id
    RESUME_EXECUTOR = "resume_executor"  # executor
    ROUTE_TO_EXECUTOR = "route_to_executor"  # path, executor
    RELEASE_BREAKER = "release_breaker"  # handler_class
    RELEASE_ANY_BREAKER = "release_any_breaker"
    CONFIGURE_EXECUTOR = "configure_executor"
    CONFIGURE_RULES = "configure_rules"
    RAISE_QUOTA = "raise_quota"  # namespace
    NAME_FOR_LEVEL0 = "name_for_level0"  # handler_class
    CANCEL_FIRST = "cancel_first"  # task_id
    ACCEPT_LOSS = "accept_loss"
    # send the command in another form
    CONFIRM_SECOND_RUN = "confirm_second_run"
    USE_NEW_KEY = "use_new_key"
    USE_NEW_VERSION = "use_new_version"
    # send the command again later
    SEND_AGAIN = "send_again"
    SEND_AGAIN_WITH_KEY = "send_again_with_key"
    WAIT_FOR_BROKER = "wait_for_broker"
    WAIT_FOR_DATABASE = "wait_for_database"
    WAIT_FOR_OPEN_STEPS = "wait_for_open_steps"
    WAIT_FOR_QUOTA = "wait_for_quota"  # namespace
    SPLIT_SUBMISSION = "split_submission"
    WAIT_OR_RESOLVE = "wait_or_resolve"


class Hint(Struct, frozen=True, omit_defaults=True):
    """The next action. `code` decides which of the other members are present."""

    code: HintCode
    task_id: int | None = None
    step_id: int | None = None
    executor: str | None = None
    handler_class: str | None = None
    path: str | None = None
    names: tuple[str, ...] | None = None
    namespace: str | None = None


TEXTS: Final[dict[HintCode, str]] = {
    HintCode.LIST_TASKS: "list the tasks; ended tasks are removed after their retention time",
    HintCode.SHOW_TASK: "show task {task_id} for the states of its steps",
    HintCode.LIST_HELD_STEPS: "list the held steps",
    HintCode.LIST_WORKFLOWS: "list the workflows",
    HintCode.LIST_RULES: "list the rules; remove a configured rule in the configuration",
    HintCode.LIST_HANDLERS: "list the workflows and the workers for the handlers that exist",
    HintCode.NAME_A_STEP: "its steps: {names}",
    HintCode.NAME_A_VERSION: "its versions: {names}",
    HintCode.NAME_A_WORKFLOW: "did you mean {names}?",
    HintCode.APPLY_WORKFLOW: "apply the workflow first",
    HintCode.RESUME_TASK: "resume task {task_id}",
    HintCode.RESOLVE_STEP: "find out what step {step_id} did, then resolve it",
    HintCode.RESUME_EXECUTOR: "resume executor {executor}",
    HintCode.ROUTE_TO_EXECUTOR: "set a rule that sends {path} to executor {executor}",
    HintCode.RELEASE_BREAKER: "return the breaker of {handler_class} to automatic control",
    HintCode.RELEASE_ANY_BREAKER: "return one breaker to automatic control",
    HintCode.CONFIGURE_EXECUTOR: "configure the executor, or run such steps inside the broker with"
    " execution.on_missing: local",
    HintCode.CONFIGURE_RULES: "move rules into the configuration and remove the rules set at run time",
    HintCode.RAISE_QUOTA: "raise the limit of {namespace} in limits.namespaces, and reload the configuration",
    HintCode.NAME_FOR_LEVEL0: "start a worker that offers {handler_class}, or add {handler_class} to"
    " bus.level0.handlers and restart the broker",
    HintCode.CANCEL_FIRST: "cancel task {task_id}, wait until it has ended, then erase it",
    HintCode.ACCEPT_LOSS: "make the lost commits available again, or accept their loss as an operator of the database",
    HintCode.CONFIRM_SECOND_RUN: "confirm that completed at_most_once steps may run a second time",
    HintCode.USE_NEW_KEY: "use a new idempotency key, or send the same content as the first time",
    HintCode.USE_NEW_VERSION: "a version never changes: give the new content a new version",
    HintCode.SEND_AGAIN: "send the command again after a second",
    HintCode.SEND_AGAIN_WITH_KEY: "send the same request again; with its idempotency key it has no second effect",
    HintCode.WAIT_FOR_BROKER: "send the command again when this broker is back, or send it to another broker",
    HintCode.WAIT_FOR_DATABASE: "accepted work is safe; the broker resumes by itself when the database accepts writes",
    HintCode.SPLIT_SUBMISSION: "submit the tasks in several smaller batches",
    HintCode.WAIT_FOR_OPEN_STEPS: "wait until steps have finished, or raise limits.max_open_steps",
    HintCode.WAIT_FOR_QUOTA: "submit again later, or raise the limit of {namespace} in limits.namespaces",
    HintCode.WAIT_OR_RESOLVE: "wait until running steps have finished, and resolve held steps first",
}


def hint_text(hint: Hint, texts: Mapping[HintCode, str] = TEXTS) -> str:
    """Return the hint as a sentence, from `texts` if the code is there, else from `TEXTS`."""
    members = msgspec.structs.asdict(hint)
    members["names"] = ", ".join(hint.names or ())
    return (texts.get(hint.code) or TEXTS[hint.code]).format(**members)
