"""The options that every command has, before or after its name: `stepwire -o json task show 7 -o json` alike."""

import importlib
from collections.abc import Callable
from typing import Any, Literal

import click


class Options:
    """What the global options said, filled in while click reads the command line."""

    def __init__(self) -> None:
        self.output: Literal["text", "json", "jsonl"] = "text"
        self.url: str | None = None
        self.token_file: str | None = None
        self.config_file: str | None = None
        self.verbosity = 0
        self.yes = False
        self.no_input = False


def _keep(name: str, of: Callable[[Any], Any] = lambda value: value) -> Callable[..., None]:
    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value is not False and value != 0:
            setattr(context.ensure_object(Options), name, of(value))

    return keep


def _louder(context: click.Context, _: click.Parameter, value: int) -> None:
    context.ensure_object(Options).verbosity += value


def _quieter(context: click.Context, _: click.Parameter, value: int) -> None:
    context.ensure_object(Options).verbosity -= value


def global_options() -> list[click.Option]:
    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, **settings)

    return [
        option(
            "-o",
            "--output",
            type=click.Choice(["text", "json", "jsonl"]),
            callback=_keep("output"),
            help="Form of the data on stdout.",
        ),
        option("--json", is_flag=True, callback=_keep("output", lambda _: "json"), help="The same as -o json."),
        option("--url", metavar="URL", callback=_keep("url"), help="The broker's HTTP address. [STEPWIRE_URL]"),
        option(
            "--token-file",
            metavar="FILE",
            callback=_keep("token_file"),
            help="Holds the API token. [STEPWIRE_TOKEN_FILE]",
        ),
        option(
            "-c",
            "--config",
            metavar="FILE",
            callback=_keep("config_file"),
            help="The configuration file. [STEPWIRE_CONFIG]",
        ),
        option("-v", "--verbose", count=True, callback=_louder, help="Say more."),
        option("-q", "--quiet", count=True, callback=_quieter, help="Say less."),
        option("--yes", is_flag=True, callback=_keep("yes"), help="Do not ask, do it."),
        option("--no-input", is_flag=True, callback=_keep("no_input"), help="Never ask: fail instead."),
    ]


class _WithGlobalOptions(click.Command):
    """The global options come after the command's own, and under their own heading. A command may have one of them
    as its own, with other values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for param in self.params for name in param.opts}
        self._global = [option for option in global_options() if own.isdisjoint(option.opts)]
        self.params = [*self.params, *self._global]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (shared if param in self._global else own).append(record)
        for heading, records in (("Options", own), ("Global options", shared)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class StepwireCommand(_WithGlobalOptions):
    """A command that does something."""


class StepwireGroup(click.Group, _WithGlobalOptions):
    """Commands by name; each is imported when it is asked for, so that none waits for what another needs."""

    def __init__(self, *args: Any, lazy: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _WithGlobalOptions.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


StepwireGroup.command_class = StepwireCommand
StepwireGroup.group_class = StepwireGroup
