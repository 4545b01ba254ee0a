"""The API's tokens and their permissions. The values of tokens are never logged.

The first start creates a token with full access, in a file that only its owner can read. Further tokens are in
`tokens_file` (or `.stepwire/tokens`), one per line, as their SHA-256:

    sha256:<64 hex digits> name=ci scopes=read,submit expires=2027-01-01T00:00:00Z

A line `cert:<name>` gives permissions to the client certificates with this subject alternative name.
"""

import functools
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_protocol import patterns

from stepwire_broker import private_files
from stepwire_broker.core.answers.scopes import Scope, includes
from stepwire_broker.core.answers.via import Via
from stepwire_broker.core.model import principal
from stepwire_broker.errors import BrokerError
from stepwire_broker.file_owners import strange_owner, stranger
from stepwire_broker.last_uses import DIGITS, LastUses, uses_file
from stepwire_broker.timestamps import parse_rfc3339

from .token_rate import UNLIMITED, Rate, RateError, read_rate

STATE_DIR: Final = Path(".stepwire")
TOKEN_FILE: Final = STATE_DIR / "token"
MORE_TOKENS_FILE: Final = STATE_DIR / "tokens"
URL_FILE: Final = STATE_DIR / "url"  # the address of the broker that was started last, for clients in its directory
TOKEN_BYTES: Final = 32
TOKEN_CHARACTERS_MIN: Final = 43  # 256 bits in base64

SESSIONS_DEFAULT: Final = 128  # workers of one token at the same time
MEMBERS_SHOWN: Final = (
    "name",
    "scopes",
    "namespaces",
    "workers",
    "handlers",
    "labels",
    "sessions",
    "roles",
    "rate",
    "expires",
)
MEMBERS: Final = frozenset(MEMBERS_SHOWN)

CERTIFICATE: Final = "cert:"
NAME_CHARACTERS_MAX: Final = 256
NEVER: Final = "never"  # as the value of `expires`

_HASHED: Final = "sha256:"


class TokenError(BrokerError):
    """A token file cannot be read or trusted. The message names the fault and the remedy."""


class Grant(NamedTuple):
    """The permissions of one principal of the API, and the time at which they expire."""

    name: str
    scopes: frozenset[Scope]
    expires_ms: int | None = None
    is_named: bool = True  # False: `name` is only the number of its line
    digest: bytes = b""  # of the token, so that a new token with an old name has another grant
    # of the workers that lease steps with it, as in a client file of the bus
    workers: tuple[str, ...] = ("*",)
    handlers: tuple[str, ...] = (patterns.ANY,)
    labels: tuple[tuple[str, str], ...] = (principal.ANY_LABEL,)
    sessions: int = SESSIONS_DEFAULT
    via: Via = Via.TOKEN
    proof_ends_ms: int | None = None  # when the certificate or the signed token expires
    namespaces: tuple[str, ...] = (patterns.ANY,)  # patterns of the only namespaces that the token reads and changes
    roles: tuple[str, ...] = ()  # of its holder, for approvals
    rate: Rate = UNLIMITED

    @property
    def author(self) -> str:
        """The token in the history and in log lines. An unnamed one is identified as in `stepwire token list`."""
        return self.name if self.is_named else f"sha256:{self.digest.hex()[:12]}"

    @property
    def via_text(self) -> str:
        """How the caller was identified, as rows of the audit name it."""
        return str(self.via)

    @property
    def of_workers(self) -> principal.Grant:
        """The grant of the workers that this token opens. They belong to the token."""
        return principal.Grant(
            principal=f"{self.via}:{self.author}",
            workers=self.workers,
            handlers=self.handlers,
            labels=self.labels,
            sessions=self.sessions,
            namespaces=self.namespaces,
        )

    @property
    def has_expired(self) -> bool:
        now_ms = time.time_ns() // 1_000_000
        return any(ms is not None and ms <= now_ms for ms in (self.expires_ms, self.proof_ends_ms))

    def allows(self, scope: Scope) -> bool:
        return includes(self.scopes, scope)

    @property
    def is_for_all_namespaces(self) -> bool:
        return patterns.ANY in self.namespaces

    def allows_namespace(self, namespace: str) -> bool:
        return self.is_for_all_namespaces or _any_of(self.namespaces)(namespace)


@functools.lru_cache(maxsize=1_024)
def _any_of(namespaces: tuple[str, ...]) -> Callable[[str], bool]:
    return patterns.any_of(namespaces)


class TokenChange(NamedTuple):
    """A difference between the token files before and after they were read again."""

    action: str  # `token_added`, `token_changed` or `token_revoked`
    name: str
    digest: str  # the beginning of the token's digest
    scopes: frozenset[Scope]


class Line(NamedTuple):
    """A line of a token file."""

    digest: bytes
    grant: Grant


class Tokens:
    """The tokens that the API accepts. `reload` reads the files again and replaces all tokens, or none."""

    def __init__(self, file: Path, *more: Path, is_strict: bool = False) -> None:
        """`is_strict`: every token expires and none has the scope admin. There may be no token, because the broker's
        own user needs none on the Unix socket."""
        self.file = file  # the file of the token that clients on the same machine use
        self._is_strict = is_strict
        self._more = more
        self.uses = LastUses(None)
        self._unreported: TokenError | None = None
        self._changes: list[TokenChange] = []
        self._stamps = self._read_stamps()
        self._lines = self._read()
        self.is_new = False  # True: this start has generated the token

    def discard(self) -> None:
        """Remove the token that this start has generated, because the start failed: a command in this directory would
        show it to another broker."""
        if self.is_new:
            self.file.unlink(missing_ok=True)

    def admit(self, token: bytes) -> Grant | None:
        """The permissions of a token; None if the token is unknown or expired. Takes the same time for every token."""
        presented = hashlib.sha256(token).digest()
        grant = self._grant_of(presented)
        if grant is None and self._look_again():
            grant = self._grant_of(presented)
        if grant is None or grant.has_expired:
            return None
        self.uses.note(presented.hex()[:DIGITS], time.time_ns() // 1_000_000)
        return grant

    def of_certificate(self, names: tuple[str, ...]) -> list[Grant]:
        """The grants of the lines `cert:` with one of these names. A line that was just written counts at once."""
        found = self._grants_of_names(names)
        return found if found or not self._look_again() else self._grants_of_names(names)

    def _grants_of_names(self, names: tuple[str, ...]) -> list[Grant]:
        wanted = {digest_of_name(name) for name in names}
        return [line.grant for line in self._lines if line.grant.via is Via.CERTIFICATE and line.digest in wanted]

    def _grant_of(self, presented: bytes) -> Grant | None:
        grant = None
        for line in self._lines:
            if line.grant.via is Via.TOKEN and hmac.compare_digest(presented, line.digest):
                grant = line.grant
        return grant

    def _look_again(self) -> bool:
        """An unknown token may be new. True if the files have changed, and were read."""
        if self._read_stamps() == self._stamps:
            return False
        try:
            self.reload()
        except TokenError as error:
            self._unreported = error
            return False
        return True

    def reload(self) -> int:
        """Read the files again. Returns the number of tokens. After a TokenError the previous tokens stay valid."""
        self._stamps = self._read_stamps()
        before, self._lines = self._lines, self._read()
        self._changes += _changes(before, self._lines)
        return len(self._lines)

    def take_changes(self) -> list[TokenChange]:
        """The changes of tokens since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def refresh(self) -> bool:
        """Read the files again if one of them has changed, and return whether one has. Raises TokenError once for each
        change that cannot be read; the previous tokens stay valid."""
        if self._unreported is not None:
            error, self._unreported = self._unreported, None
            raise error
        if self._read_stamps() == self._stamps:
            return False
        self.reload()
        return True

    def is_valid(self, grant: Grant) -> bool:
        """False if the line of the grant was removed or changed, or if the grant has expired."""
        if grant.via is Via.SOCKET:
            return True
        in_file = grant._replace(proof_ends_ms=None)
        return not grant.has_expired and any(line.grant == in_file for line in self._lines)

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in (self.file, *self._more)]

    def _read(self) -> tuple[Line, ...]:
        if not self.file.exists() and not self._is_strict:
            text = "cannot be read: No such file or directory; create a token: stepwire token new NAME"
            raise TokenError(f"{self.file} {text}")
        lines = read_lines(self.file) if self.file.exists() else []
        if not lines and not self._is_strict:
            raise TokenError(f"{self.file} holds no token: write one per line")
        _check_strict(self.file, lines if self._is_strict else [])
        for path in self._more:
            more = read_lines(path) if path.exists() else []
            _check_strict(path, more if self._is_strict else [])
            lines += more
        return tuple(lines)


def _changes(before: tuple[Line, ...], after: tuple[Line, ...]) -> list[TokenChange]:
    """The differences, by the names of the tokens."""
    old, new = ({line.grant.author: line.grant for line in lines} for lines in (before, after))
    changes = []
    for name in dict.fromkeys((*old, *new)):
        grant = new.get(name, old.get(name))
        if old.get(name) == new.get(name) or grant is None:
            continue
        action = "token_added" if name not in old else "token_changed" if name in new else "token_revoked"
        changes.append(TokenChange(action, name, grant.digest.hex()[:12], grant.scopes))
    return changes


def open_tokens(tokens_file: str | None, *, is_strict: bool = False) -> Tokens:
    """The tokens of `http.tokens_file`. Without this setting: the tokens of `stepwire token new`, and the generated
    token in the state directory, which `is_strict` refuses."""
    if tokens_file is not None:
        tokens = Tokens(Path(tokens_file), is_strict=is_strict)
        tokens.uses = LastUses(uses_file_of(tokens_file))
        return tokens
    make_state_dir()
    if is_strict:
        tokens = Tokens(TOKEN_FILE, MORE_TOKENS_FILE, is_strict=True)
        tokens.uses = LastUses(uses_file_of(None))
        return tokens
    is_new = not TOKEN_FILE.exists() and _generate(TOKEN_FILE)
    tokens = Tokens(TOKEN_FILE, MORE_TOKENS_FILE)
    tokens.is_new = is_new
    tokens.uses = LastUses(uses_file_of(None))
    return tokens


def note_url(url: str) -> None:
    """Write the address that this broker serves into the state directory. The file stays when the broker ends, so that
    a command waits for a restart at the right address."""
    _write(URL_FILE, f"{url}\n")


def open_token_file(path: Path) -> Tokens:
    """The tokens of this file, which is created with a generated token if it does not exist."""
    if not path.exists():
        _generate(path)
    return Tokens(path)


def tokens_file_of(tokens_file: str | None) -> Path:
    """The file that a new token is written to."""
    return MORE_TOKENS_FILE if tokens_file is None else Path(tokens_file)


def uses_file_of(tokens_file: str | None) -> Path:
    """The file with the last use of each token."""
    return uses_file(tokens_file_of(tokens_file))


def add_token(path: Path, grant: Grant) -> str:
    """Create a token. The file receives only the digest; the result is the only copy of the token."""
    if path.parent == STATE_DIR:
        make_state_dir()
    if any(line.grant.name == grant.name for line in (read_lines(path) if path.exists() else [])):
        raise TokenError(f"{path} has a token {grant.name!r} already: revoke it, or choose another name")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    words = [f"{_HASHED}{hashlib.sha256(token.encode()).hexdigest()}", f"name={grant.name}"]
    words.append(f"scopes={','.join(sorted(grant.scopes))}")
    words += [f"{name}={text}" for name, text in limiting_members(grant).items()]
    expires = None if grant.expires_ms is None else datetime.fromtimestamp(grant.expires_ms / 1000, UTC)
    words.append(f"expires={NEVER if expires is None else expires.isoformat(timespec='seconds')}")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    _write(path, f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{' '.join(words)}{chr(10)}")
    return token


def limiting_members(grant: Grant) -> dict[str, str]:
    """The members that limit a token and its workers, as in its line. Members with their default are left out."""
    members = {
        "namespaces": ",".join(grant.namespaces),
        "workers": ",".join(grant.workers),
        "handlers": ",".join(grant.handlers),
        "labels": ",".join(f"{key}={value}" for key, value in grant.labels),
        "sessions": str(grant.sessions),
        "roles": ",".join(grant.roles),
        "rate": str(grant.rate),
    }
    without = Grant(grant.name, grant.scopes)
    return {name: text for name, text in members.items() if getattr(grant, name) != getattr(without, name)}


def revoke_token(path: Path, name: str) -> None:
    """Remove the line of this token. All other lines stay, including comments."""
    if not any(line.grant.name == name for line in (read_lines(path) if path.exists() else [])):
        raise TokenError(f"{path} has no token {name!r}: see stepwire token list")
    kept = []
    for number, text in enumerate(read_private(path).splitlines(keepends=True), 1):
        line = _line(path, number, text)
        if line is None or line.grant.name != name:
            kept.append(text)
    _write(path, "".join(kept))


def read_lines(path: Path) -> list[Line]:
    """Read the tokens of a file. A line holds a token, or `sha256:` and its digest in hex, then its permissions. `#`
    begins a comment."""
    texts = enumerate(read_private(path).splitlines(), 1)
    return [line for number, text in texts if (line := _line(path, number, text)) is not None]


def first_token(path: Path) -> str:
    """The first token in the file that is in plain text, for a client on the same machine. A shorter word is another
    kind of secret, and is refused."""
    for line in read_private(path).splitlines():
        words = line.partition("#")[0].split()
        if words and not words[0].startswith((_HASHED, CERTIFICATE)):
            if len(words[0]) < TOKEN_CHARACTERS_MIN:
                raise TokenError(
                    f"{path} is no token file: its first word has fewer than {TOKEN_CHARACTERS_MIN} characters"
                )
            return words[0]
    raise TokenError(f"{path} holds no token in plain text")


def make_state_dir(path: Path = STATE_DIR) -> None:
    """Create the directory for the state of a broker without configuration. Only its owner may read it."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise TokenError(f"{path} is a file: it must be a directory for the broker's state") from None
    except OSError as error:
        raise TokenError(
            f"{path} cannot be created ({error.strerror}): start the broker in a directory that you may write to"
        ) from None
    status = path.stat()
    owner = stranger(status)
    if owner is not None:
        raise TokenError(f"{path} belongs to the user {owner}: run this as that user, or in another directory")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise TokenError(f"{path} can be read by others: chmod 700 {path}")


def strict_refusal(grant: Grant) -> str | None:
    """The reason why `security.strict` refuses such a token, and the remedy; None if it accepts the token."""
    if Scope.ADMIN in grant.scopes:
        return (
            f"the token {grant.name!r} has the scope admin, which security.strict allows only to the broker's user on "
            "the Unix socket: write other scopes into its line, as scopes=submit,operate"
        )
    if grant.expires_ms is None and grant.via is Via.TOKEN:  # a certificate expires by itself
        return (
            f"the token {grant.name!r} never expires, which security.strict refuses: add expires=2027-01-01T00:00:00Z "
            "to its line, or revoke it and create one with --expires 90d"
        )
    return None


def _check_strict(path: Path, lines: list[Line]) -> None:
    if lines and path == TOKEN_FILE:
        raise TokenError(
            f"{path} holds a token with every scope that never expires, which security.strict refuses: remove the "
            "file; commands of this user need no token on the Unix socket"
        )
    for line in lines:
        refusal = strict_refusal(line.grant)
        if refusal is not None:
            raise TokenError(f"{path}: {refusal}")


def read_private(path: Path) -> str:
    """The text of a file with secrets. Raises TokenError if another user owns the file or a link to it, or may read or
    write the file."""
    try:
        with path.open(encoding="utf-8") as file:
            owner = strange_owner(path, file.fileno())
            if owner is not None:
                raise TokenError(f"{path} belongs to the user {owner}: run this as that user, or name your own file")
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise TokenError(f"{path} can be read by others: chmod 600 {path}")
            return file.read()
    except UnicodeDecodeError:
        raise TokenError(f"{path} is not text: write one token per line") from None
    except OSError as error:
        raise TokenError(f"{path} cannot be read: {error.strerror}") from None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that differs after the file was replaced or changed. None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _generate(path: Path) -> bool:
    """Write a token file, completely or not at all. If another broker start has written the file meanwhile, that file
    stays, and the answer is False."""
    return private_files.make(path, secrets.token_urlsafe(TOKEN_BYTES) + "\n", TokenError)


def _write(path: Path, text: str) -> None:
    private_files.replace(path, text, TokenError)


def _line(path: Path, number: int, text: str) -> Line | None:
    where = f"{path}, line {number}"
    words = text.partition("#")[0].split()
    if not words:
        return None
    if words[0].startswith(CERTIFICATE):
        digest = digest_of_name(_name(where, words[0].removeprefix(CERTIFICATE)))
        grant = _grant(where, words[1:], words[0])._replace(digest=digest, is_named=True, via=Via.CERTIFICATE)
        return Line(digest, grant)
    digest = _digest(where, words[0])
    return Line(digest, _grant(where, words[1:], f"line {number}")._replace(digest=digest))


def digest_of_name(name: str) -> bytes:
    return hashlib.sha256(f"{CERTIFICATE}{name.lower()}".encode()).digest()


def _name(where: str, name: str) -> str:
    """The name of a client certificate: a DNS name, a URI or a mail address."""
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or "*" in name:
        raise TokenError(
            f"{where}: `cert:` must be followed by a subject alternative name: a DNS name, a URI or a mail address"
        )
    try:
        ip_address(name)
    except ValueError:
        return name
    raise TokenError(f"{where}: cert:{name}: an address names a machine, not a principal; use a DNS name or a URI")


def _digest(where: str, token: str) -> bytes:
    if not token.startswith(_HASHED):
        if len(token) < TOKEN_CHARACTERS_MIN:
            raise TokenError(
                f"{where}: a token has at least {TOKEN_CHARACTERS_MIN} characters;"
                " create one with: openssl rand -base64 32"
            )
        return hashlib.sha256(token.encode()).digest()
    try:
        digest = bytes.fromhex(token.removeprefix(_HASHED))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise TokenError(f"{where}: `sha256:` must be followed by 64 hex digits")
    return digest


def _grant(where: str, words: list[str], name: str) -> Grant:
    """The permissions in a line. A token without scopes has full access."""
    members = dict(word.partition("=")[::2] for word in words)
    if name.startswith(CERTIFICATE) and "scopes" not in members:
        raise TokenError(f"{where}: a line `cert:` needs scopes=…")
    if len(members) != len(words) or (unknown := members.keys() - MEMBERS):
        wrong = "a member occurs twice" if len(members) != len(words) else f"{min(unknown)!r} is unknown"
        known = " and ".join((", ".join(f"{member}=…" for member in MEMBERS_SHOWN[:-1]), f"{MEMBERS_SHOWN[-1]}=…"))
        raise TokenError(f"{where}: {wrong}; the token may be followed by {known}")
    try:
        scopes = frozenset(Scope(scope) for scope in members.get("scopes", "admin").split(","))
    except ValueError as error:
        raise TokenError(f"{where}: {error}; scopes are {', '.join(Scope)}") from None
    expires_ms = _expires_ms(where, members.get("expires"))
    grant = Grant(members.get("name", name), scopes, expires_ms, is_named="name" in members)
    if "namespaces" in members:
        grant = grant._replace(namespaces=_namespaces(where, members["namespaces"]))
    if "roles" in members:
        grant = grant._replace(roles=_parts(members["roles"]))
    if "workers" in members:
        grant = grant._replace(workers=_parts(members["workers"]))
    if "handlers" in members:
        grant = grant._replace(handlers=_parts(members["handlers"]))
    if "labels" in members:
        grant = grant._replace(labels=tuple(label.partition("=")[::2] for label in _parts(members["labels"])))
    if "sessions" in members:
        if not (members["sessions"].isascii() and members["sessions"].isdigit()):
            raise TokenError(f"{where}: sessions={members['sessions']}: it must be a number")
        grant = grant._replace(sessions=int(members["sessions"]))
    if "rate" in members:
        try:
            grant = grant._replace(rate=read_rate(members["rate"]))
        except RateError as error:
            raise TokenError(f"{where}: rate: {error}") from None
    return grant


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _namespaces(where: str, text: str) -> tuple[str, ...]:
    """An empty list would read as no limit, so it is refused."""
    namespaces = _parts(text)
    if not namespaces:
        raise TokenError(f"{where}: namespaces={text}: it must have the form namespaces=shop,shop::*")
    return namespaces


def _expires_ms(where: str, text: str | None) -> int | None:
    if text is None or text == NEVER:
        return None
    expires_ms = parse_rfc3339(text)
    if expires_ms is None:
        raise TokenError(f"{where}: expires={text}: it must have the form expires=2027-01-01T00:00:00Z")
    return expires_ms
