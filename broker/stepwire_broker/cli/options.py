"""The options that every command accepts, before or after its name: `stepwire -o json task show 7` works too."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any, Final, Literal

import click


class Options:
    """The values of the global options. Click fills them in while it reads the command line."""

    def __init__(self) -> None:
        self.output: Literal["text", "json", "jsonl"] = "text"
        self.url: str | None = None
        self.token_file: str | None = None
        self.ca_file: str | None = None
        self.outage: str | None = None
        self.is_outage_reported = False
        self.config_file: str | None = None
        self.verbosity = 0
        self.yes = False
        self.no_input = False
        self.columns: tuple[str, ...] = ()


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
        option(
            "--url",
            metavar="URL",
            callback=_store("url"),
            help="The broker's HTTP address. Several brokers are separated by commas: a command uses one that answers."
            " [STEPWIRE_URL]",
        ),
        option(
            "--token-file",
            metavar="FILE",
            callback=_store("token_file"),
            help="File that holds the API token. [STEPWIRE_TOKEN_FILE]",
        ),
        option(
            "--ca-file",
            metavar="FILE",
            callback=_store("ca_file"),
            help="Authorities that may have issued the broker's certificate, PEM, for https:// addresses. By default,"
            " those of the system. [STEPWIRE_CA_FILE]",
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
    """Adds the global options after the command's own, under their own heading, and the command's examples.

    A command that defines an option of the same name keeps its own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for param in self.params for name in param.opts}
        self._global = [option for option in global_options() if own.isdisjoint(option.opts)]
        self.params = [*self.params, *self._global]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise _usage_failure(error, ctx, words) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                (shared if param in self._global else own).append(record)
        for heading, records in (("Options", own), ("Global options", shared)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from .examples import EXAMPLES

        lines = EXAMPLES.get(path_of(ctx))
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class StepwireCommand(_WithGlobalOptions):
    """A command without subcommands."""


class StepwireGroup(click.Group, _WithGlobalOptions):
    """A command with subcommands. Lazy ones are imported when they are called, so that no command loads another's
    imports. `sections` lists them in the help under several headings instead of one."""

    def __init__(
        self,
        *args: Any,
        lazy: dict[str, str] | None = None,
        sections: dict[str, dict[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = {heading: tuple(commands) for heading, commands in (sections or {}).items()}
        self._lazy = {**(lazy or {})}
        for commands in (sections or {}).values():
            self._lazy |= commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        if self.sections:
            return [name for names in self.sections.values() for name in names]
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = list(args)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            is_option = words[0].startswith("-")
            refusal = error if is_option else click.UsageError(unknown_command(ctx, words[0]))
            raise _usage_failure(refusal, ctx, words) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _WithGlobalOptions.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self.sections or {"Commands": tuple(self.list_commands(ctx))}
        width = max(len(name) for names in sections.values() for name in names)
        for heading, names in sections.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None and not command.hidden:
                    rows.append((f"{name:<{width}}", summary_of(command)))
            with formatter.section(heading):
                formatter.write_dl(rows)


StepwireGroup.command_class = StepwireCommand
StepwireGroup.group_class = StepwireGroup


def path_of(ctx: click.Context) -> str:
    """The command's words without the program's name: `task submit`."""
    names = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.append(at.info_name or "")
        at = at.parent
    return " ".join(reversed(names))


def unknown_command(ctx: click.Context, word: str) -> str:
    """The message for a word after this command, with the nearest subcommand."""
    from stepwire_broker.core.reading.nearest import did_you_mean

    names = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else ()
    hint = did_you_mean(word, names)
    return f"there is no command {ctx.command_path} {word}{'; ' if hint else ''}{hint}"


def summary_of(command: click.Command) -> str:
    """The first sentence of the command's help, whole."""
    text = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
    sentence, stop, _ = text.partition(". ")
    return sentence + stop.rstrip()


def _usage_failure(error: click.UsageError, ctx: click.Context, words: list[str]) -> click.ClickException:
    """The failure for a wrong command line. Options of a command line that click refused may not have been read yet:
    whether the error must be JSON is read from the words themselves."""
    from .failure import Exit, Failure

    if any(word in _JSON_WORDS for word in words) or any(pair in _JSON_PAIRS for pair in itertools.pairwise(words)):
        ctx.ensure_object(Options).output = "json"
    text = error.format_message()
    with ctx:  # Failure reads the options of the current context
        return Failure(Exit.USAGE, text[:1].lower() + text[1:].rstrip("."), f"see: {ctx.command_path} --help")


_JSON_WORDS: Final = frozenset(
    {"--json", "-ojson", "-ojsonl", "-o=json", "-o=jsonl", "--output=json", "--output=jsonl"}
)
_JSON_PAIRS: Final = frozenset((name, form) for name in ("-o", "--output") for form in ("json", "jsonl"))
