"""The options that state the rights of a principal."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import msgspec

from stepwire_broker.bus.keys import client_file
from stepwire_broker.core.model.principal import SESSIONS_MAX, SLOTS_MAX, Grant

from .failure import usage
from .task.waiting import seconds


class GrantOptions(NamedTuple):
    """The members of a grant that the command line states."""

    members: dict[str, Any]

    def applied(self, grant: Grant) -> Grant:
        return msgspec.structs.replace(grant, **self.members)


def grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as its argument `rights`."""

    def with_rights(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in _NAMES}
        return command(*args, **kwargs, rights=GrantOptions(_members(given)))

    with_rights.__name__, with_rights.__doc__ = command.__name__, command.__doc__
    with_rights.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        with_rights = option(with_rights)
    return with_rights


_OPTIONS = (
    click.option("--handlers", metavar="P,..", multiple=True, help="Handlers that its workers may offer: 'shop::**'."),
    click.option("--namespaces", metavar="N,..", multiple=True, help="Namespaces of its steps. [all]"),
    click.option("--labels", metavar="K=V,..", multiple=True, help="Labels that its workers may have. K=* for any V."),
    click.option("--workers", metavar="P,..", multiple=True, help="Names of its workers: 'shop,shop-*'. [NAME]"),
    click.option("--level0/--no-level0", default=None, help="Allow level-0 handlers."),
    click.option("--sessions", type=click.IntRange(1, SESSIONS_MAX), help="Maximum number of connected workers. [64]"),
    click.option("--slots", type=click.IntRange(1, SLOTS_MAX), help="Maximum number of slots of a worker. [10000]"),
    click.option("--expires", metavar="DURATION", help="Time until the access ends: 12h, 90d, or never. [never]"),
)
_NAMES = ("handlers", "namespaces", "labels", "workers", "level0", "sessions", "slots", "expires")
_LISTS = {
    "handlers": client_file.words,
    "namespaces": client_file.namespaces,
    "labels": client_file.labels,
    "workers": client_file.words,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _members(given: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {name: given[name] for name in ("level0", "sessions", "slots") if given[name] is not None}
    for name, read in _LISTS.items():
        if given[name]:
            try:
                members[name] = read(",".join(given[name]))
            except ValueError as error:
                usage(f"--{name}: {error}")
    expires = given["expires"]
    if expires is not None:
        expires_s = None if expires == "never" else seconds(expires)
        members["expires_ms"] = None if expires_s is None else now_ms() + int(expires_s * 1000)
    return members
