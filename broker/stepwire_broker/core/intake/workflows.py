"""Workflows: applying a version, which is stored once and never changes, and choosing the active version."""

from typing import Final

from stepwire_broker.core.answers.answers import Applied, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.commit_group import AuditPart, WorkflowNew, WorkflowOutcome
from stepwire_broker.core.model.events import ActivateWorkflow, ApplyWorkflow, Now
from stepwire_broker.core.state import BrokerState

from .submission import intake_refused
from .unknown_workflow import unknown_workflow

ACTIVE: Final = "active"  # the kind of a change of the active version, among changes of controls


def on_apply(state: BrokerState, event: ApplyWorkflow, now: Now) -> None:
    refused = intake_refused(state)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    workflow = event.workflow
    lane = state.outbox.touch_any()
    lane.workflows.append(
        WorkflowNew(
            event.request,
            workflow.namespace,
            workflow.name,
            workflow.version,
            workflow.digest,
            workflow.document,
            now.wall,
            event.activate,
        )
    )
    lane.bytes += len(workflow.document)
    detail = {"digest": workflow.digest, "steps": len(workflow.steps), "activate": event.activate}
    state.audit(event, "apply_workflow", _named(workflow), now, part=("request", event.request), detail=detail)
    state.undecided_workflows[event.request] = event


def on_applied(state: BrokerState, outcome: WorkflowOutcome, now: Now) -> None:
    event = state.undecided_workflows.pop(outcome.request)
    workflow = event.workflow
    if outcome.failed is not None:
        state.refuse_now(
            outcome.request,
            CommandRefused("refused_by_database", f"the database refused the definition: {outcome.failed}"),
        )
        return
    if outcome.conflict:
        state.refuse_now(
            outcome.request,
            CommandRefused(
                "version_conflict",
                f"{workflow.namespace}::{workflow.name} version {workflow.version} exists with other content",
                Hint(HintCode.USE_NEW_VERSION),
            ),
        )
        return
    if state.is_shared and event.activate and outcome.created:
        lane = state.outbox.lanes[min(state.outbox.lanes)]
        state.catalogue.changed((ACTIVE, full_name(workflow)), lane.number, lane.committed)
        state.catalogue.commit(lane.number, lane.committed, state.reads)
        state.decision.notifications.append(Notification(controls=True))
    # Applying an existing version changes nothing, and does not make it the active version.
    add_workflow(state, workflow.with_id(outcome.workflow_id), event.activate and outcome.created)
    state.answer(
        outcome.request,
        Applied(outcome.workflow_id, workflow.namespace, workflow.name, workflow.version, outcome.created),
    )


def add_workflow(state: BrokerState, workflow: Workflow, active: bool) -> None:
    """Add a stored workflow, so that its tasks can be submitted."""
    known = state.workflows.setdefault(workflow.id, workflow)
    state.versions[(workflow.namespace, workflow.name, workflow.version)] = known
    if active:
        state.active[(workflow.namespace, workflow.name)] = known


def on_activate(state: BrokerState, event: ActivateWorkflow, now: Now) -> None:
    workflow = state.versions.get((event.namespace, event.name, event.version))
    refused = intake_refused(state)
    if refused is None and workflow is None and state.catalogue.look_up(event, state):
        return
    if refused is None and workflow is None:
        refused = unknown_workflow(event.namespace, event.name, event.version, state.versions)
    if refused is not None or workflow is None:
        state.refuse_now(event.request, refused or CommandRefused("not_found", "no such workflow"))
        return
    lane = state.outbox.touch_any()
    lane.activations.append((event.request, workflow.id))
    if state.is_shared:
        state.catalogue.changed((ACTIVE, full_name(workflow)), lane.number, lane.handed + 1)
    part: AuditPart = ("request", event.request)
    state.audit(event, "activate_workflow", _named(workflow), now, part=part, detail={"digest": workflow.digest})
    add_workflow(state, workflow, active=True)
    state.answer(event.request, Applied(workflow.id, workflow.namespace, workflow.name, workflow.version, False))


def full_name(workflow: Workflow) -> str:
    return f"{workflow.namespace}::{workflow.name}"


def _named(workflow: Workflow) -> str:
    return f"workflow {workflow.namespace}::{workflow.name} {workflow.version}"
