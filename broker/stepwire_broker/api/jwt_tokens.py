"""Signed tokens of an identity provider (JWT) as principals. The broker verifies them, and makes none.

A token counts if a key of the issuer has signed it, it was made for this broker, and it ends within 24 h. Its claims
say what it may do; nothing about it is stored.
"""

import hashlib
import re
import time
from collections import OrderedDict
from typing import Any, Final

from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.answers.via import Via
from stepwire_broker.core.definitions.settings import JwtSettings
from stepwire_broker.errors import BrokerError

from .http_problems import HttpProblem
from .jwt_keys import ALGORITHMS, JwtKeys
from .token import Grant

TOKEN_BYTES_MAX: Final = 8 * 1024
LIFE_S_MAX: Final = 24 * 3600
LEEWAY_S: Final = 30  # between the clocks of the issuer and the broker
SUBJECT_CHARACTERS_MAX: Final = 128
VERIFIED_MAX: Final = 4_096  # tokens whose signature is not verified again

_SCOPES: Final = frozenset(map(str, Scope))
_FORM: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_WORD: Final = re.compile(r"[^\s,]+")
_HEADERS: Final = frozenset({"alg", "kid", "typ", "cty", "x5t", "x5t#S256"})
_TYPES: Final = frozenset({None, "jwt", "at+jwt", "application/at+jwt"})


class UnknownSigningKey(BrokerError):
    """No key has the `kid` of the token. The issuer may have a new one."""


class JwtTokens:
    """Verifies tokens on the loop: one costs about 0.1 ms, and a token that was verified before about 2 µs."""

    def __init__(self, settings: JwtSettings, keys: JwtKeys) -> None:
        self._settings = settings
        self.keys = keys
        self._verified: OrderedDict[bytes, tuple[str, Any, Grant]] = OrderedDict()  # by digest: kid, key, grant

    async def admit(self, token: bytes) -> Grant:
        """The permissions of a token. Raises HttpProblem."""
        if len(token) > TOKEN_BYTES_MAX:
            raise refused("jwt_too_large", f"the token has more than {TOKEN_BYTES_MAX} bytes")
        try:
            return self.verified(token)
        except UnknownSigningKey:
            await self.keys.read_again()
        try:
            return self.verified(token)
        except UnknownSigningKey:
            raise refused("jwt_key_unknown", "no key of the issuer has the `kid` of the token") from None

    def verified(self, token: bytes) -> Grant:
        """The same, with the keys that are known. Raises UnknownSigningKey or HttpProblem."""
        digest = hashlib.sha256(token).digest()
        known = self._verified.get(digest)
        if known is not None and self.keys.lookup(known[0]) is known[1]:
            if known[2].has_expired:
                raise refused("jwt_expired", "the token has expired")
            return known[2]
        kid, key, grant = self._verify(token, digest)
        self._verified[digest] = (kid, key, grant)
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return grant

    def is_valid(self, grant: Grant) -> bool:
        """False if the token has expired, or its issuer has withdrawn its key."""
        known = self._verified.get(grant.digest)
        return not grant.has_expired and (known is None or self.keys.lookup(known[0]) is known[1])

    def _verify(self, token: bytes, digest: bytes) -> tuple[str, Any, Grant]:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise refused("jwt_malformed", "the token is no JWT") from None
        if header.get("alg") not in ALGORITHMS:
            raise refused("jwt_algorithm", f"the token is not signed with one of {', '.join(ALGORITHMS)}")
        if header.keys() - _HEADERS or not _is_type(header.get("typ")):
            raise refused("jwt_header", "the header of the token has members or a type that are not supported")
        kid = header.get("kid")
        if not isinstance(kid, str):
            raise refused("jwt_key_unknown", "the header of the token has no `kid`")
        key = self.keys.lookup(kid)
        if key is None:
            raise UnknownSigningKey
        if header["alg"] != key.algorithm_name:
            raise refused("jwt_algorithm", f"the key of the token is for {key.algorithm_name}")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            raise _of_error(jwt, error) from None
        return kid, key, self._grant(claims, digest)

    def _grant(self, claims: dict[str, Any], digest: bytes) -> Grant:
        ends_s = float(claims["exp"])
        if not ends_s <= time.time() + LIFE_S_MAX + LEEWAY_S:
            raise refused("jwt_too_long", "the token ends more than 24 h from now: let the issuer make shorter ones")
        subject = claims["sub"]
        if not subject or len(subject) > SUBJECT_CHARACTERS_MAX or not subject.isprintable():
            raise refused("jwt_claims", f"`sub` needs 1 to {SUBJECT_CHARACTERS_MAX} printable characters")
        words = _words(claims, self._settings.claims.scopes) or ()
        scopes = frozenset(Scope(word) for word in words if word in _SCOPES)
        grant = Grant(f"jwt:{subject}", scopes, digest=digest, via=Via.JWT, proof_ends_ms=int(ends_s * 1000))
        names = self._settings.claims
        if names.namespaces is not None:
            namespaces = _words(claims, names.namespaces)
            if not namespaces:
                raise refused("jwt_claims", f"the token has no claim {names.namespaces!r} with its namespaces")
            grant = grant._replace(namespaces=namespaces)
        if names.roles is not None:
            grant = grant._replace(roles=_words(claims, names.roles) or ())
        return grant


def has_form(token: bytes) -> bool:
    """Whether the token is a JWT by its form. Tokens of the broker have no dots."""
    return _FORM.fullmatch(token) is not None


def refused(code: str, detail: str) -> HttpProblem:
    return HttpProblem(
        401,
        code,
        detail,
        "get a new token from the issuer, or use a token of the broker",
        headers=((b"www-authenticate", b'Bearer realm="stepwire", error="invalid_token"'),),
    )


def _is_type(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.lower() in _TYPES)


def _words(claims: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """The words of a claim: a list of strings, or a string with spaces. None if the claim is missing or has another
    form."""
    value = claims.get(name)
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list) and all(isinstance(word, str) and _WORD.fullmatch(word) for word in value):
        return tuple(value)
    return None


def _of_error(jwt: Any, error: Exception) -> HttpProblem:
    for kind, code, detail in (
        (jwt.ExpiredSignatureError, "jwt_expired", "the token has expired"),
        (jwt.ImmatureSignatureError, "jwt_not_yet_valid", "the token is not valid yet"),
        (jwt.InvalidIssuerError, "jwt_issuer", "the token was made by another issuer"),
        (jwt.InvalidAudienceError, "jwt_audience", "the token was made for another audience"),
        (jwt.MissingRequiredClaimError, "jwt_claims", f"the token is incomplete: {error}"),
        (jwt.InvalidSignatureError, "jwt_signature", "the signature of the token is wrong"),
    ):
        if isinstance(error, kind):
            return refused(code, detail)
    return refused("jwt_malformed", "the token is no valid JWT")
