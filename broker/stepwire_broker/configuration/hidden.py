"""Settings without the secrets in them, for output and logs."""

import re
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stepwire_broker.core.definitions.settings import CommandSettings

HIDDEN: Final = "***"

# `--token=…`, `--db-password …`, `API_KEY=…`: an argument whose name ends like that of a secret
_SECRET_NAME: Final = re.compile(
    r"-{0,2}(?:[\w.-]*[-_.])?(?:token|passw(?:or)?d|passphrase|secret|api[-_]?key|key|credentials?|auth)", re.IGNORECASE
)
_BEARER: Final = re.compile(r"(\b(?:bearer|basic|token)\s+)\S+", re.IGNORECASE)  # in a header


def without_secrets(command: CommandSettings | tuple[str, ...]) -> Any:
    """A command without the values of its environment and without arguments that look like secrets."""
    if isinstance(command, tuple):
        return _arguments(command)
    return msgspec.structs.replace(command, argv=_arguments(command.argv), env=dict.fromkeys(command.env, HIDDEN))


def without_password(url: str) -> str:
    """A URL in a form that may be printed and logged. Other text is unchanged."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
    except ValueError:
        return HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{HIDDEN}@{host}"))


def _arguments(argv: tuple[str, ...]) -> tuple[str, ...]:
    shown = []
    is_secret = False  # the argument before is the name of this one
    for word in argv:
        name, equals, _ = word.partition("=")
        if is_secret and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and _SECRET_NAME.fullmatch(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_BEARER.sub(rf"\1{HIDDEN}", without_password(word)))
        is_secret = not equals and word.startswith("-") and _SECRET_NAME.fullmatch(word) is not None
    return tuple(shown)
