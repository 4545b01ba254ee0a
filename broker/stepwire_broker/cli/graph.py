"""`stepwire workflow graph`: the dependencies between steps, as text or as source for a drawing program.

Names of workflows and steps hold only characters that Mermaid and DOT accept without escaping.
"""

from typing import TYPE_CHECKING, Literal

import click

from . import completing
from .connection import broker_client
from .failure import Exit, Failure
from .options import Options, StepwireCommand
from .workflow import stored

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.workflow import Workflow


@click.command(cls=StepwireCommand)
@click.argument("name", metavar="NAME|FILE", shell_complete=completing.workflows)
@click.option("--namespace", metavar="NAME", help="The workflow's namespace.")
@click.option("--version", metavar="VERSION", help="The workflow's version. [the active one]")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "mermaid", "dot"]),
    default="text",
    help="Format: text, or source for Mermaid or Graphviz.",
)
@click.pass_obj
def graph(
    options: Options,
    name: str,
    namespace: str | None,
    version: str | None,
    form: Literal["text", "mermaid", "dot"],
) -> None:
    """Print which step depends on which, for a stored workflow or a file. A file needs no broker."""
    from . import definitions

    if definitions.is_definition(name):
        workflow = _of_file(name)
    else:
        from stepwire_broker.core.definitions.workflow import read_workflow

        with broker_client(options) as client:
            workflow = read_workflow(stored(client, name, namespace, version)["document"])
    click.echo({"text": text, "mermaid": mermaid, "dot": dot}[form](workflow))


def text(workflow: "Workflow") -> str:
    """One line per step, after the steps that it depends on. Steps that can start later are indented further."""
    depths: dict[int, int] = {}
    for index in _in_order(workflow):
        depths[index] = 1 + max((depths[before] for before in workflow.steps[index].depends_on), default=-1)
    lines = [f"{workflow.namespace}::{workflow.name} {workflow.version}"]
    for index in sorted(depths, key=lambda index: (depths[index], index)):
        step = workflow.steps[index]
        after = ", ".join(workflow.steps[before].name for before in step.depends_on)
        lines.append(f"{'  ' * (depths[index] + 1)}{step.name}" + (f"  after {after}" if after else ""))
    return "\n".join(lines)


def mermaid(workflow: "Workflow") -> str:
    lines = ["flowchart TD"]
    lines += [f'  s{step.index}["{step.name}"]' for step in workflow.steps]
    lines += [f"  s{before} --> s{step.index}" for step in workflow.steps for before in step.depends_on]
    return "\n".join(lines)


def dot(workflow: "Workflow") -> str:
    lines = [f'digraph "{workflow.namespace}::{workflow.name} {workflow.version}" {{']
    lines += ["  rankdir=TB;", "  node [shape=box, style=rounded];"]
    lines += [f'  s{step.index} [label="{step.name}"];' for step in workflow.steps]
    lines += [f"  s{before} -> s{step.index};" for step in workflow.steps for before in step.depends_on]
    return "\n".join([*lines, "}"])


def _of_file(name: str) -> "Workflow":
    from stepwire_broker.core.reading.document_problems import InvalidWorkflow

    from . import definitions

    try:
        return definitions.compiled(definitions.read(name))
    except InvalidWorkflow as error:
        raise Failure(Exit.USAGE, f"{name}: {error}", f"see: stepwire workflow validate {name}") from None


def _in_order(workflow: "Workflow") -> list[int]:
    """The steps, each after all steps that it depends on. A readable workflow has no cycles."""
    waits_for = [len(step.depends_on) for step in workflow.steps]
    order = list(workflow.roots)
    for index in order:  # the list grows during the loop
        for later in workflow.steps[index].dependents:
            waits_for[later] -= 1
            if waits_for[later] == 0:
                order.append(later)
    return order
