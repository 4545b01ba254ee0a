"""`stepwire token`: creates, lists and revokes tokens of the HTTP API.

The commands change the tokens file. A running broker notices a change within 2 s, and a new token with its first use.
"""

import re
import secrets
import time
from pathlib import Path
from typing import Final

import click

from stepwire_broker.api.token import (
    NEVER,
    Grant,
    TokenError,
    add_token,
    read_lines,
    revoke_token,
    strict_refusal,
    tokens_file_of,
    uses_file_of,
)
from stepwire_broker.api.token_rate import Rate, RateError, read_rate
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.last_uses import DIGITS, read_uses
from stepwire_broker.timestamps import rfc3339

from . import output
from .config_commands import load
from .failure import Exit, Failure, usage
from .options import Options, StepwireGroup
from .task.waiting import seconds

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PART: Final = re.compile(r"[^\s#,]+")
SCOPES_DEFAULT: Final = (Scope.READ,)
EXPIRES_DEFAULT: Final = "90d"
COLUMNS: Final = [
    output.Column("name", "name"),
    output.Column("scopes", "scopes"),
    output.Column("via", "via"),
    output.Column("namespaces", "namespaces"),
    output.Column("roles", "roles"),
    output.Column("last used", "last_used_at"),
    output.Column("expires", "expires_at"),
    output.Column("sha256", "sha256"),
]


@click.group(cls=StepwireGroup)
def token() -> None:
    """Create, list and revoke tokens of the HTTP API, in http.tokens_file or in the generated file."""


@token.command()
@click.argument("name", required=False)
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    help="Permission: read, inspect, submit, work, operate, metrics, or admin for all. Repeat it for several. [read]",
)
@click.option("--namespaces", metavar="NAMES", help="Only namespaces that it reads and changes: shop,shop::**. [all]")
@click.option("--roles", metavar="NAMES", help="Roles of its holder, for approvals: finance,legal. [none]")
@click.option("--workers", metavar="NAMES", help="Names of workers that lease steps with it: shop,shop-*. [*]")
@click.option("--handlers", metavar="PATTERNS", help="Handlers that its workers may offer: shop::**,mail.send. [**]")
@click.option("--labels", metavar="LABELS", help="Labels that its workers may have: region=eu,tier=*. [*=*]")
@click.option("--sessions", metavar="N", type=click.IntRange(1), help="Number of its workers at the same time. [128]")
@click.option("--rate", metavar="RATE", help="Maximum per second: requests=100,steps=1000,bytes=10MiB. [no limit]")
@click.option("--expires", metavar="DURATION", help="Time until the token expires: 12h, 90d, or never. [90d]")
@click.pass_obj
def new(
    options: Options,
    name: str | None,
    scopes: tuple[str, ...],
    namespaces: str | None,
    roles: str | None,
    workers: str | None,
    handlers: str | None,
    labels: str | None,
    sessions: int | None,
    rate: str | None,
    expires: str | None,
) -> None:
    """Create a token and print it once: the file holds only its SHA-256. Logs and `token list` show NAME."""
    name = name or f"token-{secrets.token_hex(3)}"
    if not NAME.fullmatch(name):
        usage(f"{name!r} cannot name a token: use 1 to 64 letters, digits, . _ and -")
    grant = Grant(name, _scopes(scopes), _expires_ms(expires))
    if namespaces is not None:
        grant = grant._replace(namespaces=_parts("--namespaces", namespaces))
    if roles is not None:
        grant = grant._replace(roles=_parts("--roles", roles))
    if workers is not None:
        grant = grant._replace(workers=_parts("--workers", workers))
    if handlers is not None:
        grant = grant._replace(handlers=_parts("--handlers", handlers))
    if labels is not None:
        grant = grant._replace(labels=tuple(each.partition("=")[::2] for each in _parts("--labels", labels)))
    if sessions is not None:
        grant = grant._replace(sessions=sessions)
    settings = load(options).settings
    if settings.security.strict and (refusal := strict_refusal(grant)) is not None:
        usage(refusal)
    if rate is not None:
        grant = grant._replace(rate=_rate(rate))
    file = _file(options)
    try:
        value = add_token(file, grant)
    except TokenError as error:
        raise Failure(Exit.FAILURE, str(error)) from None
    output.one(options, {"name": name, "scopes": sorted(grant.scopes), "token": value, "file": str(file)}, value)


@token.command(name="list")
@output.columns_option
@click.pass_obj
def list_tokens(options: Options) -> None:
    """List the tokens with their scopes and their last use, to the hour. Token values are not stored."""
    file = _file(options)
    uses = read_uses(uses_file_of(load(options).settings.http.tokens_file))
    try:
        lines = read_lines(file) if file.exists() else []
    except TokenError as error:
        raise Failure(Exit.FAILURE, str(error)) from None
    shown = [
        {
            "name": line.grant.name,
            "scopes": sorted(line.grant.scopes),
            "namespaces": None if line.grant.is_for_all_namespaces else list(line.grant.namespaces),
            "roles": list(line.grant.roles) or None,
            "via": line.grant.via,
            "last_used_at": _time(uses.get(line.digest.hex()[:DIGITS])),
            "expires_at": _time(line.grant.expires_ms),
            "sha256": line.digest.hex()[:DIGITS],
        }
        for line in lines
    ]
    output.several(options, shown, COLUMNS, f"{file} holds no tokens; create one: stepwire token new NAME")


@token.command()
@click.argument("names", metavar="NAME..", nargs=-1, required=True)
@click.pass_obj
def revoke(options: Options, names: tuple[str, ...]) -> None:
    """Revoke tokens. A running broker refuses them within 3 s, and ends their waits and streams."""
    file = _file(options)
    for name in names:
        try:
            revoke_token(file, name)
        except TokenError as error:
            raise Failure(Exit.NOT_FOUND, str(error)) from None
        output.one(options, {"name": name, "revoked": True}, f"revoked {name}")


def _file(options: Options) -> Path:
    return tokens_file_of(load(options).settings.http.tokens_file)


def _time(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def _expires_ms(text: str | None) -> int | None:
    if text == NEVER:
        return None
    expires_s = seconds(EXPIRES_DEFAULT if text is None else text, "--expires")
    return time.time_ns() // 1_000_000 + int((expires_s or 0) * 1000)


def _parts(option: str, text: str) -> tuple[str, ...]:
    """The parts of a list. They are words of a line in the token file, so they contain no space and no `#`."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts or any(not PART.fullmatch(part) for part in parts):
        usage(f"{option} is {text!r}: it needs one or more parts without spaces, separated by commas")
    return parts


def _rate(text: str) -> Rate:
    try:
        return read_rate(text)
    except RateError as error:
        usage(f"--rate: {error}")


def _scopes(texts: tuple[str, ...]) -> frozenset[Scope]:
    """The scopes of all --scope options. One option may hold several, separated by commas."""
    names = [name.strip() for text in texts for name in text.split(",")]
    try:
        return frozenset(Scope(name) for name in names or SCOPES_DEFAULT)
    except ValueError as error:
        usage(f"--scope: {error}", f"scopes are {', '.join(Scope)}")
