"""`/v1/workflows`: definitions, as JSON or YAML."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import structs

from stepwire_broker import definition_files
from stepwire_broker.core.answers.answers import Applied
from stepwire_broker.core.answers.hints import HintCode
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.definitions.workflow import NAMESPACE_DEFAULT, Workflow, read_workflow
from stepwire_broker.core.intake.unknown_workflow import unknown_workflow
from stepwire_broker.core.model.events import ActivateWorkflow, ApplyWorkflow
from stepwire_broker.core.reading.document_problems import InvalidWorkflow
from stepwire_broker.core.workflow_warnings import of_document

from . import core_views, reading
from .documents import WorkflowActivated, WorkflowApplied
from .http import HttpCall
from .http_problems import HttpProblem, not_found, of_refused
from .replies import JSON, Reply, encode

READ_ON_LOOP_BYTES_MAX: Final = 8 * 1024
_READER: Final = ThreadPoolExecutor(1, "workflow reader")  # one document at a time, so that the loop keeps its share

YAML: Final = (b"application/yaml", b"application/x-yaml", b"text/yaml", b"text/x-yaml")


async def apply(call: HttpCall) -> Reply:
    activate = reading.flag("activate", call.query("activate").get("activate", "true"))
    body = await call.body(definition_files.JSON_BYTES_MAX, JSON, *YAML)
    try:
        workflow = await read(body, call.broker.settings.limits)
    except (definition_files.DocumentError, InvalidWorkflow) as error:
        raise HttpProblem(400, "invalid_workflow", str(error)) from None
    if not call.sees(workflow.namespace):
        raise not_found(f"namespace {workflow.namespace} for this token", "its `namespaces` do not include it")
    by, via = call.operator, call.via
    done = await call.ask(lambda request: ApplyWorkflow(request, workflow, activate, by=by, via=via), Applied)
    warnings = [*of_document(workflow), *core_views.handler_warnings(call.broker, workflow)]
    applied = WorkflowApplied(done.workflow_id, done.namespace, done.name, done.version, done.created, warnings)
    return Reply(201 if done.created else 200, encode(applied))


async def read(body: bytes, limits: LimitSettings) -> Workflow:
    """Read a document. A thread reads a large one, because 10,000 steps, or their mistakes, take seconds."""

    def read_now() -> Workflow:
        document = definition_files.read_document(body)
        return read_workflow(document.value, document.where, limits)

    if len(body) <= READ_ON_LOOP_BYTES_MAX:
        return read_now()
    return await asyncio.get_running_loop().run_in_executor(_READER, read_now)


async def activate(call: HttpCall) -> Reply:
    """Activate a version: tasks that name no version use it from now on."""
    query = call.query("namespace", "version")
    name, namespace = call.scope["path_params"]["name"], query.get("namespace", NAMESPACE_DEFAULT)
    version = query.get("version")
    if version is None:
        raise HttpProblem(400, "bad_query", "`version` is missing", "name the version to activate")
    await call.enter_workflow(namespace, name, version, HintCode.LIST_WORKFLOWS)
    by, via = call.operator, call.via
    done = await call.ask(lambda request: ActivateWorkflow(request, namespace, name, version, by=by, via=via), Applied)
    return Reply(200, encode(WorkflowActivated(done.workflow_id, done.namespace, done.name, done.version)))


async def page(call: HttpCall) -> Reply:
    """List every version of every workflow, without pages: there are few, and each is small without its document."""
    return Reply(
        200, await call.broker.read(reading.workflows, call.query("namespace").get("namespace"), call.namespaces)
    )


async def show(call: HttpCall) -> Reply:
    """One workflow: its active version, or the version in the query."""
    query = call.query("namespace", "version")
    name = call.scope["path_params"]["name"]
    namespace = query.get("namespace", NAMESPACE_DEFAULT)
    await call.enter_workflow(namespace, name, query.get("version"), HintCode.LIST_WORKFLOWS)
    document = await call.broker.read(reading.workflow, namespace, name, query.get("version"), call.inspects)
    if document is None:
        known = core_views.known_workflows(call.broker)
        raise of_refused(unknown_workflow(namespace, name, query.get("version"), known, HintCode.LIST_WORKFLOWS))
    workflow = call.broker.workflows.get(document.workflow_id)
    if workflow is not None:
        document = structs.replace(document, warnings=core_views.handler_warnings(call.broker, workflow))
    return Reply(200, encode(document))
