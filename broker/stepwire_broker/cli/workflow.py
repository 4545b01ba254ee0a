"""`stepwire workflow`: check workflow files, and give them to the broker."""

from typing import Any

import click
from stepwire.client import Client

from . import output
from .connection import broker
from .failure import Exit, Failure
from .options import Options, StepwireGroup

FILES = click.argument("files", metavar="FILE..", nargs=-1, required=True)


@click.group(cls=StepwireGroup, lazy={"graph": "stepwire_broker.cli.graph:graph"})
def workflow() -> None:
    """Definitions: steps, and what each depends on."""


@workflow.command()
@FILES
@click.option("--no-activate", is_flag=True, help="Store the version; tasks go on with the one that is active.")
@click.pass_obj
def apply(options: Options, files: tuple[str, ...], no_activate: bool) -> None:
    """Store the workflows in these files: YAML, JSON, or Python that builds one (`order.py` or `order.py:name`).

    The same content again is fine.
    """
    from . import definitions

    texts = [definitions.read(file) for file in files]  # all are readable before any is sent
    applied: list[dict[str, Any]] = []
    for file, text in zip(files, texts, strict=True):
        try:
            with broker(options) as client:
                one = client.apply_workflow_text(text.content, text.content_type, activate=not no_activate)
        except Failure as failure:
            raise failure.about(file) from None
        applied.append(one)
        for warning in one["warnings"]:
            output.note(options, f"{file}: {warning} (a warning)")
        if options.output == "text":
            done = "applied" if one["created"] else "is there already"
            click.echo(f"{one['namespace']}::{one['name']} {one['version']} {done}")
    if options.output != "text":
        output.several(options, applied, [], "")
    elif applied:
        last = applied[-1]
        name = f"{last['namespace']}::{last['name']}"
        if not no_activate:
            output.note(options, f"next: stepwire task submit {name}")
        else:
            version = last["version"]
            output.note(
                options,
                f"tasks go on with the active version; next: stepwire workflow activate {name} {version},"
                f" or try it: stepwire task submit {name} --version {version}",
            )


@workflow.command()
@FILES
@click.pass_obj
def validate(options: Options, files: tuple[str, ...]) -> None:
    """Check the files; no broker is asked. Names the file, the line and the rule."""
    from stepwire_broker.core.definitions.document_problems import InvalidWorkflow

    from . import definitions

    results: list[dict[str, Any]] = []
    for file in files:
        warnings: list[str] = []
        problems: list[str] = []
        try:
            warnings = list(map(str, definitions.compiled(definitions.read(file)).warnings))
        except InvalidWorkflow as error:
            problems = list(map(str, error.problems))
        except Failure as failure:
            problems = [f"{failure.message}; {failure.hint}" if failure.hint else failure.message]
        results.append({"file": file, "valid": not problems, "problems": problems, "warnings": warnings})
    if options.output != "text":
        output.several(options, results, [], "")
    for one in results:
        if options.output == "text" and one["valid"]:
            click.echo(f"{one['file']}: valid")
        for warning in one["warnings"]:
            output.note(options, f"{warning} (a warning)")
    problems = [problem for one in results for problem in one["problems"]]
    if problems:
        raise Failure(Exit.USAGE, "\n".join(problems))


@workflow.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors and checks."""
    import msgspec

    from stepwire_broker.core.definitions.workflow_schema import workflow_schema

    click.echo(msgspec.json.format(msgspec.json.encode(workflow_schema())).decode())


@workflow.command(name="list")
@click.pass_obj
def list_workflows(options: Options) -> None:
    """Print the workflows and their active versions."""
    with broker(options) as client:
        page = client.workflows()
    columns = [output.Column(name, name) for name in ("namespace", "name", "version", "active", "created_at")]
    output.several(options, page["workflows"], columns, "no workflow is stored; next: stepwire workflow apply FILE")


@workflow.command()
@click.argument("name")
@click.option("--namespace", metavar="NAME", help="The workflow's namespace.")
@click.option("--version", metavar="VERSION", help="Without it the active one.")
@click.pass_obj
def show(options: Options, name: str, namespace: str | None, version: str | None) -> None:
    """Print a workflow as it is stored. NAME may be written NAMESPACE::NAME."""
    with broker(options) as client:
        found = stored(client, name, namespace, version)
    if options.output != "text":
        output.one(options, found, "")
        return
    active = "active" if found["active"] else "not active"
    click.echo(f"{found['namespace']}::{found['name']} {found['version']}  {active}, since {found['created_at']}")
    columns = [output.Column(title, title) for title in ("step", "handler", "after", "delivery", "retries", "timeout")]
    output.several(options, [_step_row(step) for step in found["document"]["steps"]], columns, "")


@workflow.command()
@click.argument("name")
@click.argument("version")
@click.option("--namespace", metavar="NAME", help="The workflow's namespace.")
@click.pass_obj
def activate(options: Options, name: str, version: str, namespace: str | None) -> None:
    """Let tasks that name no version go with VERSION from now on. What runs stays on the version it has."""
    namespace, name = split_name(name, namespace)
    with broker(options) as client:
        done = client.activate_workflow(name, version, namespace=namespace)
    output.one(options, done, f"{done['namespace']}::{done['name']} {done['version']} is the active version")


def stored(client: Client, name: str, namespace: str | None, version: str | None) -> dict[str, Any]:
    namespace, name = split_name(name, namespace)
    return client.workflow(name, namespace=namespace, version=version)


def split_name(name: str, namespace: str | None) -> tuple[str | None, str]:
    """`shop::eu::order` → `shop::eu` and `order`."""
    if namespace is None and "::" in name:
        namespace, _, name = name.rpartition("::")
    return namespace, name


def _step_row(step: dict[str, Any]) -> dict[str, Any]:
    """Of the stored form, which leaves the defaults out."""
    return {
        "step": step["name"],
        "handler": step["handler_class"],
        "after": ", ".join(step.get("depends_on", [])) or None,
        "delivery": step.get("delivery_mode", "at_least_once"),
        "retries": step.get("retry_limit"),
        "timeout": f"{step['timeout_ms']} ms" if "timeout_ms" in step else None,
    }
