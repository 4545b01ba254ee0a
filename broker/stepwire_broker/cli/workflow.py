"""`stepwire workflow`: validates workflow files, stores them in the broker, and prints stored workflows."""

from typing import Any

import click
from stepwire.client import Client
from stepwire_protocol.patterns import split_name

from . import completing, output, warnings
from .connection import broker_client
from .failure import Exit, Failure
from .options import Options, StepwireGroup

FILES = click.argument("files", metavar="FILE..", nargs=-1, required=True, type=click.Path())


@click.group(cls=StepwireGroup, lazy={"graph": "stepwire_broker.cli.graph:graph"})
def workflow() -> None:
    """Validate, store and print workflows: definitions of steps and what each depends on."""


@workflow.command()
@FILES
@click.option("--no-activate", is_flag=True, help="Store the version, and keep the active version for new tasks.")
@click.pass_obj
def apply(options: Options, files: tuple[str, ...], no_activate: bool) -> None:
    """Store the workflows in these files: YAML, JSON, or Python that builds one (`order.py` or `order.py:name`).

    A file may be applied again if its content is unchanged.
    """
    from . import definitions

    sources = [definitions.read(file) for file in files]  # all are read and checked before any is sent
    problems = [problem for source in sources for problem in definitions.problems_of(source)]
    if problems:
        raise Failure(Exit.USAGE, "\n".join(problems))
    applied: list[dict[str, Any]] = []
    for file, source in zip(files, sources, strict=True):
        try:
            with broker_client(options, waits=True) as client:
                one = client.apply_workflow_text(source.content, source.content_type, activate=not no_activate)
        except Failure as failure:
            raise failure.about(definitions.name_of(file)) from None
        applied.append(one)
        warnings.show(options, one["warnings"], f"{definitions.name_of(file)}: ")
        if options.output == "text":
            outcome = "applied" if one["created"] else "is unchanged"
            click.echo(f"{one['namespace']}::{one['name']} {one['version']} {outcome}")
    if options.output != "text":
        output.several(options, applied, [], "")
    elif applied:
        output.note(options, _next_after_apply(applied[-1], is_active=not no_activate))


def _next_after_apply(applied: dict[str, Any], *, is_active: bool) -> str:
    name, version = f"{applied['namespace']}::{applied['name']}", applied["version"]
    if is_active:
        return f"next: stepwire task submit {name}"
    return (
        f"new tasks still use the active version; next: stepwire workflow activate {name} {version},"
        f" or try it: stepwire task submit {name} --version {version}"
    )


@workflow.command()
@FILES
@click.pass_obj
def validate(options: Options, files: tuple[str, ...]) -> None:
    """Check workflow files without a broker. Each problem names its file and line. `-` reads standard input."""
    import msgspec

    from stepwire_broker.core.reading.document_problems import InvalidWorkflow
    from stepwire_broker.core.workflow_warnings import WorkflowWarning, of_document

    from . import definitions

    results: list[dict[str, Any]] = []
    for file in files:
        found: list[WorkflowWarning] = []
        problems: list[str] = []
        try:
            found = of_document(definitions.compiled(definitions.read(file)))
        except InvalidWorkflow as error:
            problems = list(map(str, error.problems))
        except Failure as failure:
            problems = [f"{failure.message}; {failure.hint}" if failure.hint else failure.message]
        name = definitions.name_of(file)
        one = {"file": name, "valid": not problems, "problems": problems, "warnings": msgspec.to_builtins(found)}
        results.append(one)
    if options.output != "text":
        output.several(options, results, [], "")
    for one in results:
        if options.output == "text" and one["valid"]:
            click.echo(f"{one['file']}: valid")
        warnings.show(options, one["warnings"])
    problems = [problem for one in results for problem in one["problems"]]
    if problems:
        raise Failure(Exit.USAGE, "\n".join(problems))


@workflow.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors and validators."""
    import msgspec

    from stepwire_broker.core.definitions.workflow_schema import workflow_schema

    click.echo(msgspec.json.format(msgspec.json.encode(workflow_schema())).decode())


@workflow.command(name="list")
@output.columns_option
@click.pass_obj
def list_workflows(options: Options) -> None:
    """List the stored workflows with their versions."""
    with broker_client(options) as client:
        page = client.workflows()
    columns = [output.Column(name, name) for name in ("namespace", "name", "version", "active")]
    columns.append(output.Column("created", "created_at", is_extra=True))
    output.several(options, page["workflows"], columns, "no workflow is stored; next: stepwire workflow apply FILE")


@workflow.command()
@click.argument("name", shell_complete=completing.workflows)
@click.option("--namespace", metavar="NAME", shell_complete=completing.namespaces, help="The workflow's namespace.")
@click.option(
    "--version", metavar="VERSION", shell_complete=completing.versions, help="The workflow's version. [the active one]"
)
@click.pass_obj
def show(options: Options, name: str, namespace: str | None, version: str | None) -> None:
    """Print a stored workflow. NAME may have the form NAMESPACE::NAME."""
    with broker_client(options) as client:
        document = stored(client, name, namespace, version)
    if options.output != "text":
        output.one(options, document, "")
        return
    title = f"{document['namespace']}::{document['name']} {document['version']}"
    active = "active" if document["active"] else "not active"
    click.echo(f"{title}  {active}, created {document['created_at']}")
    columns = [output.Column(title, title) for title in ("step", "handler", "after", "delivery", "retries", "timeout")]
    output.several(options, [_step_row(step) for step in document["document"]["steps"]], columns, "")
    warnings.show(options, document["warnings"])


@workflow.command()
@click.argument("name", shell_complete=completing.workflows)
@click.argument("version", shell_complete=completing.versions)
@click.option("--namespace", metavar="NAME", shell_complete=completing.namespaces, help="The workflow's namespace.")
@click.pass_obj
def activate(options: Options, name: str, version: str, namespace: str | None) -> None:
    """Use VERSION for new tasks that name no version. Running tasks keep their version."""
    namespace, name = split_name(name, namespace)
    with broker_client(options) as client:
        active = client.activate_workflow(name, version, namespace=namespace)
    output.one(options, active, f"{active['namespace']}::{active['name']} {active['version']} is the active version")


def stored(client: Client, name: str, namespace: str | None, version: str | None) -> dict[str, Any]:
    namespace, name = split_name(name, namespace)
    return client.workflow(name, namespace=namespace, version=version)


def _step_row(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a stored workflow as a table row. The stored form omits the defaults."""
    return {
        "step": step["name"],
        "handler": step["handler_class"],
        "after": ", ".join(step.get("depends_on", [])) or None,
        "delivery": step.get("delivery_mode", "at_least_once"),
        "retries": step.get("retry_limit"),
        "timeout": f"{step['timeout_ms']} ms" if "timeout_ms" in step else None,
    }
