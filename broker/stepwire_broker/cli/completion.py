"""`stepwire completion`: the script that lets a shell complete commands, options, names and ids."""

from typing import Any

import click

from .options import Options, StepwireCommand


class Shell(click.Choice[str]):
    """One of the shells, completed like any choice, with a short message for another one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise click.UsageError(f"{value} is not supported; the shells are {', '.join(self.choices)}", ctx)
        return super().convert(value, param, ctx)


@click.command(cls=StepwireCommand)
@click.argument("shell", type=Shell(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(options: Options, shell: str) -> None:
    """Print the completion script of a shell. It completes commands, options, and what the broker knows: workflows,
    versions, states, tasks, steps, workers, handlers and executors.

    \b
    bash   stepwire completion bash > ~/.local/share/bash-completion/completions/stepwire
    zsh    stepwire completion zsh > "${fpath[1]}/_stepwire"
    fish   stepwire completion fish > ~/.config/fish/completions/stepwire.fish
    """
    from click.shell_completion import get_completion_class

    from . import completion_scripts
    from .main import COMPLETE_VARIABLE, main

    completion_scripts.register()
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "stepwire", COMPLETE_VARIABLE)
    # Not script.source(), which runs bash to check its version: the script may be meant for another machine.
    click.echo(script.source_template % script.source_vars())
