"""`stepwire completion`: the script that lets a shell complete commands, options, names and ids."""

import click

from .options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
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
