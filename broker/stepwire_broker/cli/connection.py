"""The SDK's client for a command: its address and token come from the command line, environment or configuration."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from stepwire.client import Client, ClientError, destinations
from stepwire.errors import ConfigurationError

from stepwire_broker.api.token import TOKEN_FILE, URL_FILE, TokenError, first_token
from stepwire_broker.configuration.loader import Configuration
from stepwire_broker.core.definitions.settings import HttpSettings
from stepwire_broker.core.reading.durations import milliseconds

from . import output
from .config_commands import load
from .failure import OF_STATUS, Exit, Failure, usage
from .hints import next_text
from .options import Options

PAGE_MAX: Final = 500
UNREACHABLE = 0  # the client's status when there was no answer

_DENIED = "run this in the broker's directory, or name the broker and its token: --url URL --token-file FILE"
_LOOK_FIRST = "the broker may have carried out the command: look at the state before you repeat it"
START_A_BROKER = "start a broker: stepwire serve; or pass its address: --url URL, or STEPWIRE_URL"


@contextmanager
def broker_client(options: Options, *, waits: bool = False) -> Iterator[Client]:
    """A client for the duration of a command. A client error ends the command with the matching exit code.

    Every command continues over an outage of a broker that it has reached. With `waits`, the command also waits for a
    broker that it cannot reach: it submits work that must not be lost, or waits for a task anyway.
    """
    try:
        with open_client(options, waits=waits) as client:
            yield client
    except ClientError as error:
        raise failure_of(options, error) from None


def open_client(
    options: Options, loaded: Configuration | None = None, *, waits: bool = False, url: str | None = None
) -> Client:
    """A client that has sent nothing yet. With `loaded`, the configuration is not read again. `url`: one of the
    addresses; by default, the client may use all of them."""
    found = address(options, loaded)
    for each in found.urls:
        if each.rstrip("/").endswith("/v1"):
            usage(f"the URL {each} must not end in /v1: use {each.rstrip('/').removesuffix('/v1')}")
    outage_s = _outage_s(options)
    is_set = outage_s is not None or bool(os.environ.get("STEPWIRE_OUTAGE_S"))
    try:
        return Client(
            url or found.url,
            token=first_token(Path(found.token_file)) if found.token_file else None,
            outage_s=outage_s,
            first_contact_s=None if waits or is_set else 0.0,
            on_outage=lambda text, is_over: _report_outage(options, text, is_over),
            allow_insecure=found.is_insecure_allowed,
            ca_file=options.ca_file,
        )
    except (ConfigurationError, TokenError) as error:
        raise Failure(Exit.USAGE, str(error)) from None


class Address(NamedTuple):
    """The broker's URL, or those of several brokers separated by commas, and, if one is set, the file that holds the
    token. `is_insecure_allowed`: the configuration has declared that its network may read tokens."""

    url: str
    token_file: str | None
    is_insecure_allowed: bool = False

    @property
    def urls(self) -> list[str]:
        return [each.strip() for each in self.url.split(",")]


def address(options: Options, loaded: Configuration | None = None) -> Address:
    """The address for this command. Raises Failure if a token from the environment must not be sent there."""
    named_file = options.token_file or _unless_in_environment(os.environ.get("STEPWIRE_TOKEN_FILE"))
    url = options.url or os.environ.get("STEPWIRE_URL")
    if url is not None:
        return Address(url, named_file)
    loaded = loaded or load(options)
    http = loaded.settings.http
    token_file = named_file or _unless_in_environment(http.tokens_file)
    is_insecure_allowed = http.allow_insecure and not loaded.is_from_here("http.allow_insecure")
    has_foreign_token = not options.token_file and any(os.environ.get(name) for name in _TOKENS)
    running = _running_url(options)
    if running is not None:
        if has_foreign_token:
            _refuse_unless(destinations.is_this_machine(running), running, str(URL_FILE))
        return Address(running, token_file, is_insecure_allowed)
    url = _configured_url(http)
    if has_foreign_token:
        _refuse_unless(not loaded.is_from_here("http.listen"), url, str(loaded.file))
    return Address(url, token_file, is_insecure_allowed)


def _configured_url(http: HttpSettings) -> str:
    if http.tls.is_on and http.listen is not None:
        # A certificate seldom names the address that the broker listens on.
        return f"unix:{http.socket}" if Path(http.socket).exists() else f"https://{http.listen}"
    return f"unix:{http.socket}" if http.listen is None else f"http://{http.listen}"


def _refuse_unless(is_allowed: bool, url: str, origin: str) -> None:
    if not is_allowed:
        raise Failure(Exit.USAGE, destinations.found_text(url, origin))


def _running_url(options: Options) -> str | None:
    """The address of the broker that was started last in this directory. A configuration that is named for this command
    goes first: it may be that of another broker."""
    if options.config_file or any(os.environ.get(name) for name in _NAMING):
        return None
    try:
        return destinations.url_of_directory()
    except ConfigurationError as error:
        raise Failure(Exit.USAGE, str(error)) from None


_TOKENS: Final = ("STEPWIRE_TOKEN", "STEPWIRE_TOKEN_FILE")
_NAMING: Final = ("STEPWIRE_CONFIG", "STEPWIRE_HTTP__LISTEN", "STEPWIRE_HTTP__LISTEN_FILE")


def all_pages(
    fetch_page: Callable[..., dict[str, Any]], member: str, limit: int, filters: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool]:
    """Up to `limit` items from as many pages as needed, and whether there are more."""
    items, cursor = pages_from(fetch_page, member, limit, filters, None)
    return items, cursor is not None


def pages_from(
    fetch_page: Callable[..., dict[str, Any]], member: str, limit: int, filters: Mapping[str, Any], cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Up to `limit` items from the cursor on, and the cursor of the next item if there are more."""
    items: list[dict[str, Any]] = []
    while len(items) < limit:
        page = fetch_page(**filters, limit=min(PAGE_MAX, limit - len(items)), cursor=cursor)
        items += page[member]
        cursor = page["next_cursor"]
        if cursor is None:
            return items, None
    return items, cursor if _has_more(fetch_page, member, filters, cursor) else None


def _has_more(
    fetch_page: Callable[..., dict[str, Any]], member: str, filters: Mapping[str, Any], cursor: str | None
) -> bool:
    """True if an item follows. A page may be empty although another one follows, because the broker searches for a
    limited time."""
    while cursor is not None:
        page = fetch_page(**filters, limit=1, cursor=cursor)
        if page[member]:
            return True
        cursor = page["next_cursor"]
    return False


def _outage_s(options: Options) -> float | None:
    if options.outage is None:
        return None
    ms = milliseconds(options.outage)
    if ms is None:
        usage(f"--outage {options.outage}: use a form like 30s; 0s gives up at once")
    return ms / 1000


def _report_outage(options: Options, text: str, is_over: bool) -> None:
    """Print one line when an outage begins and one when it is over, also for a command with several clients."""
    if is_over == options.is_outage_reported:
        options.is_outage_reported = not is_over
        output.note(options, text if is_over else f"{text} (Ctrl-C gives up)")


def failure_of(options: Options, error: ClientError) -> Failure:
    """The end of a command whose request failed. The message names the address and the token that were used."""
    text, hint = error.message, next_text(error.next, error.hint)
    code = OF_STATUS.get(error.status, Exit.FAILURE)
    if error.may_be_done:
        code, text, hint = OF_STATUS.get(error.status, Exit.UNREACHABLE), text.rstrip("."), _LOOK_FIRST
    elif error.status == UNREACHABLE and any(words in error.message.lower() for words in _NOT_TLS):
        url = address(options).url
        code, text = Exit.UNREACHABLE, f"the server at {url} speaks http, not https"
        hint = f"use --url {url.replace('https:', 'http:', 1)}"
    elif error.status == UNREACHABLE and _NOT_TRUSTED in error.message.lower():
        code, text, hint = Exit.UNREACHABLE, error.message.rstrip("."), _TRUST
    elif error.status == UNREACHABLE:
        code, text, hint = Exit.UNREACHABLE, f"{error.message.rstrip('.')}{_origin(options)}", START_A_BROKER
    elif error.status == 401:
        text, hint = _denied_text(options), _DENIED
    return Failure(code, text, hint, _problem(error, text, hint))


_NOT_TRUSTED: Final = "certificate verify failed"
_TRUST: Final = "name the authority of the broker's certificate: --ca-file FILE, or STEPWIRE_CA_FILE"
_NOT_TLS: Final = ("wrong version number", "record layer failure")  # OpenSSL on an answer that is not TLS


def _origin(options: Options) -> str:
    """Where the address comes from, if the user has not named it."""
    is_named = options.url is not None or os.environ.get("STEPWIRE_URL")
    return "" if is_named or _running_url(options) is None else f" (the address in {URL_FILE})"


def _denied_text(options: Options) -> str:
    url, token_file, _ = address(options)
    if token_file is None and os.environ.get("STEPWIRE_TOKEN"):
        return f"the token in STEPWIRE_TOKEN is not one of the broker's at {url}, or has expired"
    file = Path(token_file or TOKEN_FILE).absolute()
    if not file.exists():
        return f"the broker at {url} needs a token, and {file} does not exist"
    return f"the token in {file} is not one of the broker's at {url}, or has expired"


def _problem(error: ClientError, text: str, hint: str) -> dict[str, object]:
    status = error.status or None
    problem: dict[str, object] = {"code": error.code, "status": status, "detail": text, "hint": hint}
    return problem if error.next is None else {**problem, "next": error.next}


def _unless_in_environment(token_file: str | None) -> str | None:
    return None if os.environ.get("STEPWIRE_TOKEN") else token_file
