"""`stepwire config`: print, check and create the configuration. No command here starts a broker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stepwire_broker.configuration import loader

from . import output
from .confirmation import confirm
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings


@click.group(name="config", cls=StepwireGroup)
def configuration() -> None:
    """Print, check and create the configuration."""


@configuration.command()
@click.option("--origin", is_flag=True, help="Also print where each value comes from.")
@click.pass_obj
def show(options: Options, origin: bool) -> None:
    """Print every setting with its value, without passwords."""
    loaded = load(options)
    rows: list[dict[str, Any]] = [
        {"key": key, "value": value, "origin": where} for key, value, where in loader.show(loaded)
    ]
    columns = [output.Column("key", "key"), output.Column("value", "value")]
    if origin:
        columns.append(output.Column("origin", "origin"))
    output.several(options, rows, columns, "")
    print_notes(options, loaded)


@configuration.command()
@click.pass_obj
def validate(options: Options) -> None:
    """Read the configuration as `serve` does, and report what is wrong with it.

    Ports, sockets and the database are not opened. Modules of executors.local.modules are imported.
    """
    loaded = load(options)
    settings = loaded.settings
    check(settings)
    notes = [*loaded.notes, *_hidden_rules(settings), *_rotation(settings)]
    where = str(loaded.file) if loaded.file else "no file: every value is a default or from the environment"
    facts = {"valid": True, "file": loaded.file and str(loaded.file), "notes": notes}
    output.one(options, facts, f"valid ({where})")
    for text in notes:
        output.note(options, text)


def check(settings: "Settings") -> None:
    """Check what a broker checks when it starts, without a start. Raises Failure with the first fault."""
    from stepwire_broker.api.listening import ListenError, check_listen
    from stepwire_broker.api.token import TokenError, Tokens
    from stepwire_broker.bus.endpoints import EndpointRefused
    from stepwire_broker.bus.sockets import read_endpoints
    from stepwire_broker.core.routing import router
    from stepwire_broker.engine import CannotStart
    from stepwire_broker.executors.host import BadExecutor
    from stepwire_broker.executors.registry import Executors, known

    check_database(settings, connects=True)
    try:
        is_strict = settings.security.strict
        check_listen(settings.http, is_strict=is_strict)
        if settings.http.tokens_file is not None:
            Tokens(Path(settings.http.tokens_file), is_strict=is_strict)
        read_endpoints(settings.bus, is_strict=is_strict)
        Executors(settings).configure()
        router.check(settings.execution, known(settings))
    except (ListenError, TokenError, EndpointRefused, CannotStart, BadExecutor) as error:
        raise Failure(Exit.USAGE, str(error), getattr(error, "hint", "")) from None
    except router.RulesRefused as error:
        raise Failure(Exit.USAGE, str(error)) from None


def check_database(settings: "Settings", *, connects: bool = False) -> None:
    """Refuse a database that no broker can use. No file is opened; `connects`: a server is asked."""
    from stepwire_broker.store import StoreRefused, check_server, check_settings

    try:
        check_settings(settings.database)
        if connects:
            check_server(settings.database)
    except StoreRefused as error:
        text = loader.shown_without_password(str(error), settings.database.url)
        raise Failure(Exit.USAGE, text) from None


def _hidden_rules(settings: "Settings") -> list[str]:
    """A note for each valid rule that can never match."""
    from stepwire_broker.core.routing.router import Router, hidden
    from stepwire_broker.executors.registry import known

    router = Router(settings.execution, known(settings), bus_is_distributed=True)
    return [
        f"execution.rules[{rule.number - 1}] ({rule.match}) never matches:"
        f" rules[{earlier.number - 1}] ({earlier.match}) comes first and matches all the same steps"
        for rule, earlier in hidden(router.rules)
    ]


def _rotation(settings: "Settings") -> list[str]:
    """A note for a rotation of the brokers' key that has begun, or for a next key that cannot be used."""
    from stepwire_broker.bus.keys import server_key
    from stepwire_broker.bus.keys.key_text import KeyFileError

    secret_file = settings.bus.curve.secret_file
    if secret_file is None or not server_key.next_file(Path(secret_file)).exists():
        return []
    try:
        return [server_key.read_all(Path(secret_file)).phase]
    except KeyFileError as error:
        return [str(error)]


@configuration.command()
@click.pass_obj
def schema(options: Options) -> None:
    """Print the JSON Schema of the configuration file, for editors and validators."""
    from stepwire_broker.configuration import setting_texts

    click.echo(msgspec.json.format(msgspec.json.encode(setting_texts.schema())).decode())


@configuration.command()
@click.argument("file", default=loader.FILE_NAME, type=click.Path(dir_okay=False, path_type=Path))
@click.pass_obj
def init(options: Options, file: Path) -> None:
    """Write ./stepwire.yaml, or FILE, with every setting, its default and a description."""
    from stepwire_broker.configuration import setting_texts

    if file.exists() and not confirm(options, f"{file} exists already: overwrite it?"):
        leave(Exit.FAILURE)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # a user may add a password
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(setting_texts.sample_file())
    except OSError as error:
        raise Failure(Exit.FAILURE, f"{file} cannot be written: {error.strerror}") from None
    output.one(options, {"file": str(file)}, f"wrote {file}")
    output.note(options, "next: edit it, then: stepwire config validate")


def print_notes(options: Options, loaded: loader.Configuration) -> None:
    """Print a note for each accepted value that is probably a mistake."""
    for text in loaded.notes:
        output.note(options, text)


def load(options: Options, flags: dict[str, str] | None = None) -> loader.Configuration:
    """Load the configuration of this command. Raises Failure with the fault."""
    try:
        return loader.load(options.config_file, flags or {}, os.environ)
    except loader.SettingsError as error:
        raise Failure(Exit.USAGE, str(error), error.hint) from None
