"""The public keys of `http.jwt`: a JWKS document from a file or a URL, kept, and read again when it may have changed.

A changed file is read within seconds, a URL every 5 minutes, and both when a token names an unknown key. A key that is
no longer in the document ends its tokens.

Only asymmetric signatures are accepted. A key states its algorithm, or its type implies it, so the header of a token
cannot choose another one.
"""

import asyncio
import time
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
from stepwire.client import destinations

from stepwire_broker.core.definitions.settings import JwtSettings
from stepwire_broker.errors import BrokerError

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA")
DOCUMENT_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 64
RSA_BITS_MIN: Final = 2048
FETCH_S_MAX: Final = 5.0
AGAIN_S_MIN: Final = 30.0  # between two readings that unknown keys cause
CHECK_S: Final = 2.0  # how often a file is examined for changes
REFRESH_S: Final = 300.0  # between two readings of a URL
STALE_S: Final = 24 * 3600.0  # keys that could not be confirmed for the longest life of a token are not used

log: Final = structlog.get_logger("stepwire.api")


class JwtError(BrokerError):
    """`http.jwt` cannot be used. The message names the setting, the fault and the remedy."""


class JwtKeys:
    """The keys by their `kid`. `lookup` is called for each token; all reading happens in threads."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._keys: dict[str, Any] = {}
        self._members: dict[str, Any] = {}  # by `kid`: from which the key was made
        self._read_s = -AGAIN_S_MIN
        self._confirmed_s = time.monotonic()  # the last reading without an error
        self._mark: tuple[int, int, int] | None = None  # of the file that was read
        self._reading: asyncio.Task[None] | None = None

    def lookup(self, kid: str) -> Any | None:
        return self._keys.get(kid)

    def load(self) -> None:
        """Read the keys at the start. Raises JwtError, also if there is none."""
        self._use()
        if not self._keys:
            raise self._none()

    def _use(self) -> None:
        """Read the document and use its keys. Raises JwtError, and then keeps the former ones.

        An unchanged key stays the same object, by which its tokens are recognised as verified."""
        self._read_s = time.monotonic()
        self._mark = self._mark_now()
        found = parse(self._document(), self._place)
        self._keys = {
            kid: self._keys[kid] if self._members.get(kid) == member else key for kid, (member, key) in found.items()
        }
        self._members = {kid: member for kid, (member, _) in found.items()}
        self._confirmed_s = time.monotonic()

    def _none(self) -> JwtError:
        return JwtError(f"http.jwt: {self._place} has no public key with a `kid` for {', '.join(ALGORITHMS)}")

    async def read_again(self) -> None:
        """Read the keys again because one is missing, unless that was just done. Callers share one reading."""
        if self._reading is None:
            if time.monotonic() - self._read_s < AGAIN_S_MIN:
                return
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="jwks")
        await asyncio.shield(self._reading)

    async def watch(self) -> None:
        """Until cancelled: read a changed file, or the URL at intervals, so that a withdrawn key ends its tokens."""
        while True:
            await asyncio.sleep(CHECK_S)
            if self._is_due():
                await self._read()

    def _is_due(self) -> bool:
        if self._settings.jwks_file is not None:
            return self._mark_now() != self._mark
        return time.monotonic() - self._read_s >= REFRESH_S

    def _mark_now(self) -> tuple[int, int, int] | None:
        """A value that differs after the file was replaced or changed. None: there is no file to examine."""
        if self._settings.jwks_file is None:
            return None
        try:
            status = Path(self._settings.jwks_file).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    async def _read(self) -> None:
        try:
            await asyncio.to_thread(self._use)
            if not self._keys:
                log.warning("jwks_empty", error=str(self._none()))
        except JwtError as error:
            log.warning("jwks_refused", error=str(error))
            if time.monotonic() - self._confirmed_s > STALE_S:
                self._keys, self._members = {}, {}
        finally:
            self._reading = None

    @property
    def _place(self) -> str:
        return str(self._settings.jwks_url or self._settings.jwks_file)

    def _document(self) -> bytes:
        settings = self._settings
        try:
            if settings.jwks_file is not None:
                with Path(settings.jwks_file).open("rb") as file:
                    return file.read(DOCUMENT_BYTES_MAX + 1)
            with _OPENER.open(self._place, timeout=FETCH_S_MAX) as answer:
                data: bytes = answer.read(DOCUMENT_BYTES_MAX + 1)
                return data
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise JwtError(f"http.jwt: {self._place} cannot be read: {reason}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirect())


def check(settings: JwtSettings) -> None:
    """Raise JwtError if the settings are incomplete, or PyJWT is not installed."""
    for name in ("issuer", "audience"):
        if not getattr(settings, name):
            raise JwtError(f"http.jwt.{name} is not set: a token must be made by one issuer, for this broker")
    if (settings.jwks_file is None) == (settings.jwks_url is None):
        raise JwtError("http.jwt needs one of jwks_url and jwks_file, which name the issuer's public keys")
    url = settings.jwks_url
    if url is not None and not (
        urlsplit(url).scheme == "https" or (urlsplit(url).scheme == "http" and destinations.is_this_machine(url))
    ):
        raise JwtError(f"http.jwt.jwks_url is {url!r}: it must begin with https://, or others could replace the keys")
    try:
        import jwt
        import jwt.algorithms
    except ImportError:
        jwt = None  # type: ignore[assignment]
    if jwt is None or not jwt.algorithms.has_crypto:
        raise JwtError("http.jwt needs the extra `jwt`: pip install 'stepwire[broker,jwt]'")


def parse(document: bytes, place: str) -> dict[str, tuple[dict[str, Any], Any]]:
    """The usable keys of a JWKS document by their `kid`, each with the member that it was made from. Raises
    JwtError."""
    import jwt

    if len(document) > DOCUMENT_BYTES_MAX:
        raise JwtError(f"http.jwt: {place} has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(document, type=dict[str, Any]).get("keys")
    except msgspec.MsgspecError as error:
        raise JwtError(f"http.jwt: {place} is no JWKS document: {error}") from None
    if not isinstance(found, list) or len(found) > KEYS_MAX:
        raise JwtError(f"http.jwt: {place} is no JWKS document: it needs `keys`, a list of at most {KEYS_MAX} keys")
    keys: dict[str, tuple[dict[str, Any], Any]] = {}
    for member in found:
        if not isinstance(member, dict) or not isinstance(member.get("kid"), str):
            continue
        if member.get("use", "sig") != "sig" or member.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        try:
            key = jwt.PyJWK(member)
        except (jwt.PyJWTError, TypeError, ValueError):
            continue
        if key.algorithm_name in ALGORITHMS and getattr(key.key, "key_size", RSA_BITS_MIN) >= _bits_min(member):
            keys[member["kid"]] = (member, key)
    return keys


def _bits_min(member: dict[str, Any]) -> int:
    return RSA_BITS_MIN if member["kty"] == "RSA" else 0
