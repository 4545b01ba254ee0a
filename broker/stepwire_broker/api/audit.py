"""`/v1/audit`: the rows of the audit, and the ends of their chains."""

from typing import Final

from msgspec import Raw, Struct

from stepwire_broker.core.intake.auditing import ActionRecorded, RecordAction
from stepwire_broker.stages import requests
from stepwire_broker.store.audit_chain import AuditRow
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import AuditFilter
from stepwire_broker.timestamps import rfc3339

from . import reading
from .http import HttpCall
from .http_problems import HttpProblem
from .replies import Reply, encode

QUERY: Final = ("principal", "action", "target", "outcome", "since", "until", "limit", "cursor")
ROWS_READ_MAX: Final = 10_000  # for one page, so that a filter that matches little ends in time
BODY_BYTES_MAX: Final = 64 * 1024


class AuditRowDocument(Struct, frozen=True):
    """A row of the audit. `detail` holds ids, counts and digests. `hash` is the SHA-256 of the hash before it and this
    row: see docs/operating/security.md."""

    lane: int
    n: int
    at: str
    principal: str
    via: str
    action: str
    target: str
    reason: str
    detail: Raw
    outcome: str
    request_id: str | None
    hash: str


class AuditPage(Struct, frozen=True):
    """The newest rows first. A page may hold fewer rows than match, or none: `next_cursor` continues."""

    rows: list[AuditRowDocument]
    next_cursor: str | None


class AuditHeadDocument(Struct, frozen=True):
    """The last row of a lane's chain. `cut_n`: the last row that retention has removed, or 0."""

    lane: int
    n: int
    hash: str
    cut_n: int


class AuditHeads(Struct, frozen=True):
    """The last rows of all chains. A stored copy proves later that no earlier row was changed."""

    at: str
    heads: list[AuditHeadDocument]


class BackupBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`file` is the name of the backup that will be made."""

    file: str


async def page(call: HttpCall) -> Reply:
    query = call.query(*QUERY)
    return Reply(200, encode(await call.broker.read(_page, query)))


async def head(call: HttpCall) -> Reply:
    call.query()
    return Reply(200, encode(await _heads(call)))


async def record_backup(call: HttpCall) -> Reply:
    """Record a backup before it is made, so that the backup contains its own row."""
    call.query()
    body = requests.read_body(await call.body(BODY_BYTES_MAX), BackupBody, BODY_BYTES_MAX)
    await record(call, "backup_database", f"file {body.file[:200]}")
    heads = await _heads(call)
    call.broker.audit.log_heads()
    return Reply(200, encode(heads))


async def record(call: HttpCall, action: str, target: str = "") -> None:
    """Record an action before it is carried out outside of the core. Raises HttpProblem if nothing can be stored."""
    by, via = call.operator, call.via
    await call.ask(lambda request: RecordAction(request, action, target, by=by, via=via), ActionRecorded)


async def _heads(call: HttpCall) -> AuditHeads:
    chains = await call.broker.read(lambda queries: queries.audit_chains())
    heads = [AuditHeadDocument(chain.lane, chain.n, chain.hash, chain.cut_n) for chain in chains]
    return AuditHeads(rfc3339(call.broker.now().wall), heads)


def _page(queries: Queries, query: dict[str, str]) -> AuditPage:
    """Read in a reader's thread: the lanes from the highest to the lowest, each from its newest row."""
    limit = reading.limit(query.get("limit"))
    lane, before = _cursor(query.get("cursor"))
    rows: list[AuditRow] = []
    left = ROWS_READ_MAX
    for chain in sorted(queries.audit_chains(), reverse=True):
        if lane is not None and chain.lane > lane:
            continue
        end = chain.n + 1 if lane is None or chain.lane < lane else min(before, chain.n + 1)
        while end > chain.cut_n + 1:
            if left <= 0 or len(rows) == limit:
                return _document(rows, f"{chain.lane}.{end}")
            first = max(chain.cut_n + 1, end - left)
            rows += (found := queries.audit_rows(_filter(query, chain.lane, first, end, limit - len(rows))))
            left -= end - first
            end = found[-1].n if len(rows) == limit else first
    return _document(rows, None)


def _filter(query: dict[str, str], lane: int, first: int, before: int, limit: int) -> AuditFilter:
    return AuditFilter(
        lane,
        first,
        before,
        limit,
        principal=query.get("principal"),
        action=query.get("action"),
        target=query.get("target"),
        outcome=query.get("outcome"),
        since_ms=reading.time_of("since", query.get("since")),
        until_ms=reading.time_of("until", query.get("until")),
    )


def _cursor(text: str | None) -> tuple[int | None, int]:
    if text is None:
        return None, 0
    lane, _, n = text.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in (lane, n)):
        raise HttpProblem(400, "bad_query", f"`cursor` is {text[:64]!r}: use `next_cursor` of the previous page")
    return int(lane), int(n)


def _document(rows: list[AuditRow], next_cursor: str | None) -> AuditPage:
    return AuditPage([_row(row) for row in rows], next_cursor)


def _row(row: AuditRow) -> AuditRowDocument:
    return AuditRowDocument(
        row.lane,
        row.n,
        rfc3339(row.at_ms),
        row.principal,
        row.via,
        row.action,
        row.target,
        row.reason,
        Raw(row.detail.encode()),
        row.outcome,
        row.request_id,
        row.hash,
    )
