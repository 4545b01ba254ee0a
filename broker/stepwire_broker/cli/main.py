"""`stepwire`: the table of commands. Each command has its own file, which is imported when the command is called."""

import gc
import os
from typing import Final

import click

from .options import Options, StepwireGroup

_HERE = "stepwire_broker.cli"
COMPLETE_VARIABLE: Final = "_STEPWIRE_COMPLETE"
GC_THRESHOLDS = (50_000, 20, 100)  # objects, and collections of each younger generation


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from .version import version

        context.ensure_object(Options)
        context.invoke(version)
        context.exit()


@click.group(
    cls=StepwireGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    sections={
        "Start": {
            "demo": f"{_HERE}.demo:demo",
            "new": f"{_HERE}.new:new",
            "dev": f"{_HERE}.dev:dev",
            "serve": f"{_HERE}.serve:serve",
            "exec-worker": f"{_HERE}.exec_worker:exec_worker",
        },
        "Workflows and tasks": {
            "workflow": f"{_HERE}.workflow:workflow",
            "task": f"{_HERE}.task.group:task",
            "step": f"{_HERE}.step:step",
            "why": f"{_HERE}.why:why",
            "top": f"{_HERE}.top:top",
        },
        "Where steps run": {
            "worker": f"{_HERE}.worker:worker",
            "backlog": f"{_HERE}.backlog:backlog",
            "handler": f"{_HERE}.handler:handler",
            "executor": f"{_HERE}.executor:executor",
            "route": f"{_HERE}.route:route",
            "breaker": f"{_HERE}.breaker:breaker",
        },
        "Operate a broker": {
            "broker": f"{_HERE}.broker:broker",
            "lane": f"{_HERE}.lane:lane",
            "config": f"{_HERE}.config_commands:configuration",
            "token": f"{_HERE}.token:token",
            "keys": f"{_HERE}.keys:keys",
            "db": f"{_HERE}.db:db",
            "audit": f"{_HERE}.audit:audit",
            "doctor": f"{_HERE}.doctor:doctor",
            "tap": f"{_HERE}.tap:tap",
            "bench": f"{_HERE}.bench:bench",
        },
        "This program": {
            "completion": f"{_HERE}.completion:completion",
            "help": f"{_HERE}.help:help_command",
            "version": f"{_HERE}.version:version",
        },
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """Run workflows of steps whose handlers are written in any language."""
    gc.set_threshold(*GC_THRESHOLDS)  # a command mostly imports modules, which are never garbage
    context.ensure_object(Options)


if COMPLETE_VARIABLE in os.environ:  # a shell asks for completions: click must know our way to read its line
    from . import completion_scripts

    completion_scripts.register()
