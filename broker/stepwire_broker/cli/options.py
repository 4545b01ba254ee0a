"""The options that every command accepts, before or after its name: `stepwire -o json task show 7` works too."""

import importlib
from collections.abc import Callable
from typing import Any, Literal

import click


class Options:
    """The values of the global options. Click fills them in while it reads the command line."""

    def __init__(self) -> None:
        self.output: Literal["text", "json", "jsonl"] = "text"
        self.url: str | None = None
        self.token_file: str | None = None
        self.outage: str | None = None
        self.config_file: str | None = None
        self.verbosity = 0
        self.yes = False
        self.no_input = False


def _store(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Callable[..., None]:
    def store(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value is not False and value != 0:
            setattr(context.ensure_object(Options), name, convert(value))

    return store


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
            callback=_store("output"),
            help="Format of the data on stdout. [text]",
        ),
        option("--json", is_flag=True, callback=_store("output", lambda _: "json"), help="Same as -o json."),
        option("--url", metavar="URL", callback=_store("url"), help="The broker's HTTP address. [STEPWIRE_URL]"),
        option(
            "--token-file",
            metavar="FILE",
            callback=_store("token_file"),
            help="File that holds the API token. [STEPWIRE_TOKEN_FILE]",
        ),
        option(
            "--outage",
            metavar="DURATION",
            callback=_store("outage"),
            help="Maximum time to wait for a broker that does not answer, e.g. 10s; 0s gives up at once. By default,"
            " commands that submit or wait continue for 30s. [STEPWIRE_OUTAGE_S, in seconds]",
        ),
        option(
            "-c",
            "--config",
            metavar="FILE",
            callback=_store("config_file"),
            help="The configuration file. [STEPWIRE_CONFIG]",
        ),
        option("-v", "--verbose", count=True, callback=_louder, help="Print and log more."),
        option("-q", "--quiet", count=True, callback=_quieter, help="Print and log less."),
        option("--yes", is_flag=True, callback=_store("yes"), help="Answer yes to every question."),
        option("--no-input", is_flag=True, callback=_store("no_input"), help="Fail instead of asking a question."),
    ]


class _WithGlobalOptions(click.Command):
    """Adds the global options after the command's own, under their own heading.

    A command that defines an option of the same name keeps its own.
    """

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
    """A command without subcommands."""


class StepwireGroup(click.Group, _WithGlobalOptions):
    """A command with subcommands. Lazy ones are imported when they are called, so that no command loads another's
    imports."""

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
