"""One file of `bus.curve.clients_dir`: a principal, named as the file, its keys and its grant.

    # any comment
    public=rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
    handlers=shop::**,billing.charge
    labels=region=eu
    expires=2027-01-01T00:00:00Z

A member occurs once, except `public` and `unix`. The values of a list are separated by commas.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.model.principal import BUILT_IN, SESSIONS_MAX, SLOTS_MAX, Grant
from stepwire_broker.core.reading.nearest import did_you_mean
from stepwire_broker.timestamps import parse_rfc3339, rfc3339

from .key_text import KeyFileError, is_key
from .trusted_text import read_public

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
PUBLIC_KEYS_MAX: Final = 8
VALUE_CHARACTERS_MAX: Final = 256
UID_MAX: Final = 2**32 - 2


class ClientFile(Struct, frozen=True, kw_only=True):
    """A principal of a client file. `public` begins with the newest key."""

    grant: Grant
    public: tuple[str, ...] = ()
    unix: tuple[int, ...] = ()
    revoked_ms: int | None = None  # UTC
    is_dead: bool = False  # an operator states that the workers of this revoked principal have ended

    @property
    def name(self) -> str:
        return self.grant.principal

    def refusal(self, now_ms: int) -> str | None:
        """The reason why this principal has no access at this time; None if it has access."""
        if self.revoked_ms is not None:
            return "revoked_key"
        expires_ms = self.grant.expires_ms
        return "expired_key" if expires_ms is not None and expires_ms <= now_ms else None


def check_name(name: str) -> None:
    """Raise KeyFileError if no principal can have this name."""
    if not NAME.fullmatch(name):
        raise KeyFileError(f"{name!r} cannot name a principal: use 1 to 64 letters, digits, . _ and -")
    if name in BUILT_IN:
        raise KeyFileError(f"{name!r} is the name of a built-in principal: choose another name")


def read(path: Path) -> ClientFile:
    """Read a client file. Raises KeyFileError, which names the file and the line."""
    check_name(path.name)
    return parse(path.name, read_public(path), str(path))


def parse(name: str, text: str, where: str) -> ClientFile:
    members: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        member, equals, value = line.partition("=")
        try:
            if not equals:
                raise ValueError("a line has the form member=value, like handlers=shop::**")
            _take(members, member.strip(), value.strip())
        except ValueError as error:
            raise KeyFileError(f"{where}, line {number}: {error}") from None
    public, unix = tuple(members.pop("public", ())), tuple(members.pop("unix", ()))
    if not public and not unix:
        raise KeyFileError(f"{where}: the file needs a line public=KEY, or unix=UID for a user of this host")
    if "sessions" in members and not members["sessions"]:
        raise KeyFileError(f"{where}: sessions=0 allows no worker; `stepwire keys revoke {name}` ends its access")
    revoked_ms, is_dead = members.pop("revoked", None), members.pop("dead", False)
    members.setdefault("workers", (name,))
    identities = sha256(repr((sorted(public), sorted(unix))).encode()).hexdigest()
    fields = {_FIELDS.get(member, member): value for member, value in members.items()}
    grant = Grant(principal=name, identities=identities, **fields)
    return ClientFile(grant=grant, public=public, unix=unix, revoked_ms=revoked_ms, is_dead=is_dead)


def text_of(client: ClientFile) -> str:
    """The text of a client file. `parse` reads the same client from it."""
    grant, plain = client.grant, Grant(principal=client.name)
    lines = [f"public={key}" for key in client.public] + [f"unix={uid}" for uid in client.unix]
    if grant.workers != (client.name,):
        lines.append(f"workers={','.join(grant.workers)}")
    lines.append(f"handlers={','.join(grant.handlers)}")
    if grant.namespaces != plain.namespaces:
        lines.append(f"namespaces={','.join(grant.namespaces)}")
    if grant.labels:
        lines.append(f"labels={','.join(f'{key}={value}' for key, value in grant.labels)}")
    if grant.level0:
        lines.append("level0=yes")
    for member in ("sessions", "slots", "messages_per_s", "bytes_per_s"):
        if getattr(grant, member) != getattr(plain, member):
            lines.append(f"{member}={getattr(grant, member)}")
    if grant.expires_ms is not None:
        lines.append(f"expires={rfc3339(grant.expires_ms)}")
    if client.revoked_ms is not None:
        lines += [f"revoked={rfc3339(client.revoked_ms)}", *(["dead=yes"] if client.is_dead else [])]
    return "\n".join(lines) + "\n"


def _take(members: dict[str, Any], member: str, value: str) -> None:
    read_value = _READERS.get(member)
    if read_value is None:
        hint = did_you_mean(member, list(_READERS)) or f"members are {', '.join(_READERS)}"
        raise ValueError(f"{member[:64]!r} is unknown; {hint}")
    if member in _REPEATED:
        seen = members.setdefault(member, [])
        read = read_value(value)
        if read in seen:
            raise ValueError(f"`{member}` states the same value twice")
        seen.append(read)
        if len(seen) > PUBLIC_KEYS_MAX:
            raise ValueError(f"a principal has at most {PUBLIC_KEYS_MAX} lines {member}=")
    elif member in members:
        raise ValueError(f"`{member}` occurs twice; separate the values of a list with commas")
    else:
        members[member] = read_value(value)


def _key(value: str) -> str:
    if not is_key(value):
        raise ValueError(f"`public` is no key: it needs 40 characters of Z85, and has {len(value)}")
    return value


def _uid(value: str) -> int:
    return _number(value, 0, UID_MAX)


def words(value: str) -> tuple[str, ...]:
    """The values of a list. Raises ValueError. An empty list is valid: it grants nothing."""
    each = tuple(word.strip() for word in value.split(",")) if value else ()
    for word in each:
        if not word or len(word) > VALUE_CHARACTERS_MAX or not word.isprintable() or " " in word:
            raise ValueError(f"{word[:64]!r} is no pattern: use at most {VALUE_CHARACTERS_MAX} characters, no spaces")
    return each


def namespaces(value: str) -> tuple[str, ...]:
    return words(value) or (patterns.ANY,)


def labels(value: str) -> tuple[tuple[str, str], ...]:
    """Labels `key=value`, where the value `*` allows each value. Raises ValueError."""
    pairs = tuple(word.partition("=") for word in words(value))
    if any(not (key and equals and text) for key, equals, text in pairs):
        raise ValueError("a label has the form key=value, or key=* for each value")
    return tuple((key, text) for key, _, text in pairs)


def _yes(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError(f"{value[:64]!r} is neither yes nor no")
    return value == "yes"


def _limit(maximum: int) -> Callable[[str], int]:
    return lambda value: _number(value, 0, maximum)


def _number(value: str, least: int, most: int) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else -1
    if not least <= number <= most:
        raise ValueError(f"{value[:64]!r} is no whole number from {least} to {most}")
    return number


def _time(value: str) -> int:
    ms = parse_rfc3339(value)
    if ms is None:
        raise ValueError(f"{value[:64]!r} is no time with a zone, like 2027-01-01T00:00:00Z")
    return ms


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "public": _key,
    "unix": _uid,
    "workers": words,
    "handlers": words,
    "namespaces": namespaces,
    "labels": labels,
    "level0": _yes,
    "sessions": _limit(SESSIONS_MAX),
    "slots": _limit(SLOTS_MAX),
    "messages_per_s": _limit(10**9),
    "bytes_per_s": _limit(10**12),
    "expires": _time,
    "revoked": _time,
    "dead": _yes,
}
_REPEATED: Final = ("public", "unix")
_FIELDS: Final = {"expires": "expires_ms"}
