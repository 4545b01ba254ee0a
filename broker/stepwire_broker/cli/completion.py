"""`stepwire completion`: the lines that teach a shell our words."""

import click

from .options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(options: Options, shell: str) -> None:
    """Print the completion of a shell.

    \b
    bash   stepwire completion bash > ~/.local/share/bash-completion/completions/stepwire
    zsh    stepwire completion zsh > "${fpath[1]}/_stepwire"
    fish   stepwire completion fish > ~/.config/fish/completions/stepwire.fish
    """
    from click.shell_completion import get_completion_class

    from .main import main

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(main, {}, "stepwire", "_STEPWIRE_COMPLETE")
    # Not made.source(), which runs bash to see how old it is: this may be written on another machine.
    click.echo(made.source_template % made.source_vars())
