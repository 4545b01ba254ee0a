"""Every refusal of the API, with one status per code, as `application/problem+json` (RFC 9457)."""

import math
from typing import Final, NoReturn, get_args

from msgspec import Struct
from stepwire_protocol.errors import REFUSALS, InvalidMessage

from stepwire_broker.core.answers.answers import CommandRefused, RefusedCode
from stepwire_broker.core.answers.hints import Hint
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.errors import BrokerError

from .hints import worded
from .token import Grant

STATUS: Final[dict[RefusedCode, int]] = {
    # the request itself
    "invalid": 400,
    "too_large": 413,
    "not_found": 404,
    "wrong_state": 409,
    "version_conflict": 409,
    "key_conflict": 409,
    # the configuration of the broker
    "no_executor": 503,
    # the current state of the broker; the same request may be accepted later
    "too_many_open_steps": 429,
    "quota": 429,
    "overloaded": 429,
    "draining": 503,
    "starting": 503,
    "database_locked": 503,
    "disk_full": 503,
    "database_read_only": 503,
    "database_unavailable": 503,
    "broker_dark": 503,
    "commit_unknown": 503,
    # the data
    "refused_by_database": 422,
}
RETRY_AFTER_MS: Final = 1000  # for a refusal that has no retry time

_HINTS: Final[dict[str, str]] = {
    "too_large": "keep large data elsewhere and pass a reference to it",
    "duplicate_key": "name each member of an object once",
}


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """`code` (for programs) and `detail` (for people) describe the problem; `next` and `hint`, the next action.

    `limit` names the limit that a request exceeded. `owner` is the name of the token or of the namespace that the limit
    applies to, or `the broker` if it applies to all tokens together. `url` is the broker that answers the request."""

    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    next: Hint | None = None
    retry_after_ms: int | None = None
    limit: str = ""
    owner: str = ""
    url: str = ""


class HttpProblem(BrokerError):
    """The request is answered with this problem."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        hint: str | Hint = "",
        *,
        retry_after_ms: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        limit: str = "",
        owner: str = "",
        url: str = "",
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = worded(hint) if isinstance(hint, Hint) else hint or _HINTS.get(code, "")
        self.next = hint if isinstance(hint, Hint) else None
        self.retry_after_ms = retry_after_ms
        self.headers = headers
        self.limit = limit
        self.owner = owner
        self.url = url
        if retry_after_ms is not None:
            self.headers = (*headers, (b"retry-after", b"%d" % max(1, math.ceil(retry_after_ms / 1000))))

    def document(self) -> ProblemDocument:
        title = TITLES.get(self.status, "The request failed")
        return ProblemDocument(
            title,
            self.status,
            self.code,
            self.detail,
            self.hint,
            self.next,
            self.retry_after_ms,
            self.limit,
            self.owner,
            self.url,
        )


def of_refused(refused: CommandRefused) -> HttpProblem:
    """The problem for a refusal of the core."""
    status = STATUS[refused.code]
    retry_after_ms = refused.retry_after_ms
    if retry_after_ms is None and status in (429, 503) and refused.code != "quota":
        retry_after_ms = RETRY_AFTER_MS
    return HttpProblem(
        status,
        refused.code,
        refused.message,
        refused.hint or "",
        retry_after_ms=retry_after_ms,
        limit=refused.limit,
        owner=refused.owner,
    )


def of_invalid(error: InvalidMessage) -> HttpProblem:
    """The problem for a malformed body."""
    detail = "the body is empty" if error.code == "empty" else error.message  # a body has no topic
    return HttpProblem(413 if error.code == "too_large" else 400, error.code, detail)


def raise_refused(refused: CommandRefused) -> NoReturn:
    raise of_refused(refused)


def not_found(what: str, hint: str | Hint = "") -> HttpProblem:
    return HttpProblem(404, "not_found", f"there is no {what}", hint)


def unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(
        401,
        "unauthorized",
        detail,
        "send `Authorization: Bearer <token>`; the token is in .stepwire/token where the broker was started",
        headers=((b"www-authenticate", b'Bearer realm="stepwire"'),),
    )


def revoked(grant: Grant) -> HttpProblem:
    return unauthorized(f"the token {grant.name!r} was revoked or changed, or has expired, during the request")


def scope_missing(grant: Grant, needed: Scope) -> HttpProblem:
    scopes = ", ".join(sorted(grant.scopes)) or "none"
    return HttpProblem(
        403,
        "scope_missing",
        f"the token {grant.name!r} lacks the scope `{needed}`; its scopes: {scopes}",
        f"use a token that has this scope, or create one: stepwire token new --scope {needed}",
    )


def admin_elsewhere(grant: Grant) -> HttpProblem:
    return HttpProblem(
        403,
        "admin_needs_socket",
        f"{grant.name!r} has the scope admin, which security.strict allows only on the broker's Unix socket",
        "run the command on the broker's host as the broker's user, or use a token with other scopes",
    )


TITLES: Final = {
    400: "The request is not valid",
    401: "A valid token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "The current state does not allow this",
    410: "Gone",
    413: "Too large",
    415: "Unsupported content type",
    421: "Another broker answers this",
    422: "The database refused the data",
    429: "Too many requests or too much work",
    500: "Internal error of the broker",
    503: "Not available now",
}

assert set(STATUS) == set(get_args(RefusedCode))
assert set(_HINTS) <= set(REFUSALS)
