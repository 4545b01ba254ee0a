"""The SDK's client for a command: its address and token come from the command line, environment or configuration."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stepwire.client import Client, ClientError
from stepwire.errors import ConfigurationError

from stepwire_broker.api.token import TokenError, first_token
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.reading.durations import milliseconds

from . import output
from .config_commands import load
from .failure import OF_STATUS, Exit, Failure, usage
from .hints import next_text
from .options import Options

PAGE_MAX: Final = 500
UNREACHABLE = 0  # the client's status when there was no answer

_DENIED = "run this in the broker's directory, or pass its token: --token-file FILE, or STEPWIRE_TOKEN"
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
        raise _failure(error) from None


def open_client(options: Options, settings: Settings | None = None, *, waits: bool = False) -> Client:
    """A client that has sent nothing yet. With `settings`, the configuration is not read again."""
    url, token_file = address(options, settings)
    outage_s = _outage_s(options)
    is_set = outage_s is not None or bool(os.environ.get("STEPWIRE_OUTAGE_S"))
    try:
        return Client(
            url,
            token=first_token(Path(token_file)) if token_file else None,
            outage_s=outage_s,
            first_contact_s=None if waits or is_set else 0.0,
            on_outage=lambda text, is_over: output.note(options, text if is_over else f"{text} (Ctrl-C gives up)"),
        )
    except (ConfigurationError, TokenError) as error:
        raise Failure(Exit.USAGE, str(error)) from None


def address(options: Options, settings: Settings | None = None) -> tuple[str, str | None]:
    """The broker's URL and, if one is set, the file that holds its token."""
    token_file = options.token_file or _unless_in_environment(os.environ.get("STEPWIRE_TOKEN_FILE"))
    url = options.url or os.environ.get("STEPWIRE_URL")
    if url is not None:
        return url, token_file
    http = (settings or load(options).settings).http
    return f"http://{http.listen}", token_file or _unless_in_environment(http.tokens_file)


def all_pages(
    fetch_page: Callable[..., dict[str, Any]], member: str, limit: int, filters: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool]:
    """Up to `limit` items from as many pages as needed, and whether there are more."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(items) < limit:
        page = fetch_page(**filters, limit=min(PAGE_MAX, limit - len(items)), cursor=cursor)
        items += page[member]
        cursor = page["next_cursor"]
        if cursor is None:
            return items, False
    return items, bool(fetch_page(**filters, limit=1, cursor=cursor)[member])


def _outage_s(options: Options) -> float | None:
    if options.outage is None:
        return None
    ms = milliseconds(options.outage)
    if ms is None:
        usage(f"--outage {options.outage}: use a form like 30s; 0s gives up at once")
    return ms / 1000


def _failure(error: ClientError) -> Failure:
    if error.may_be_done:
        hint = "the broker may have carried out the command: look at the state before you repeat it"
        return Failure(
            OF_STATUS.get(error.status, Exit.UNREACHABLE), error.message.rstrip("."), hint, _problem(error, hint)
        )
    if error.status == UNREACHABLE:
        return Failure(Exit.UNREACHABLE, error.message.rstrip("."), START_A_BROKER, _problem(error, START_A_BROKER))
    hint = _DENIED if error.status == 401 else next_text(error.next, error.hint)
    return Failure(OF_STATUS.get(error.status, Exit.FAILURE), error.message, hint, _problem(error, hint))


def _problem(error: ClientError, hint: str) -> dict[str, object]:
    status = error.status or None
    problem: dict[str, object] = {"code": error.code, "status": status, "detail": error.message, "hint": hint}
    return problem if error.next is None else {**problem, "next": error.next}


def _unless_in_environment(token_file: str | None) -> str | None:
    return None if os.environ.get("STEPWIRE_TOKEN") else token_file
