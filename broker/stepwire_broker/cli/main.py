"""`stepwire`: the table of commands. Each command has its own file, which is imported when the command is called."""

import gc

import click

from .options import Options, StepwireGroup

_HERE = "stepwire_broker.cli"
GC_THRESHOLDS = (50_000, 20, 100)  # objects, and collections of each younger generation


@click.group(
    cls=StepwireGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    lazy={
        "serve": f"{_HERE}.serve:serve",
        "workflow": f"{_HERE}.workflow:workflow",
        "task": f"{_HERE}.task.group:task",
        "step": f"{_HERE}.step:step",
        "why": f"{_HERE}.why:why",
        "worker": f"{_HERE}.worker:worker",
        "executor": f"{_HERE}.executor:executor",
        "route": f"{_HERE}.route:route",
        "breaker": f"{_HERE}.breaker:breaker",
        "db": f"{_HERE}.db:db",
        "tap": f"{_HERE}.tap:tap",
        "bench": f"{_HERE}.bench:bench",
        "token": f"{_HERE}.token:token",
        "config": f"{_HERE}.config_commands:configuration",
        "demo": f"{_HERE}.demo:demo",
        "dev": f"{_HERE}.dev:dev",
        "new": f"{_HERE}.new:new",
        "doctor": f"{_HERE}.doctor:doctor",
        "top": f"{_HERE}.top:top",
        "completion": f"{_HERE}.completion:completion",
        "version": f"{_HERE}.version:version",
    },
)
@click.pass_context
def main(context: click.Context) -> None:
    """Run workflows of steps whose handlers are written in any language."""
    gc.set_threshold(*GC_THRESHOLDS)  # a command mostly imports modules, which are never garbage
    context.ensure_object(Options)
