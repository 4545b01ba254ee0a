"""Rows of the audit that the API adds by itself: reads of payloads, the tap, refused attempts, changed tokens.

Reads and refusals are recorded once a minute for each principal, so that a client cannot fill the table.
"""

from collections.abc import Hashable
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepwire_broker.core.model.events import ActionNoticed

from .engine_port import EnginePort
from .http_problems import HttpProblem
from .token import Grant, TokenChange

MINUTE_MS: Final = 60_000
ROWS_A_MINUTE_MAX: Final = 1_000
CHANGES_MAX: Final = 256  # rows about one change of a file; further tokens are only counted


class _Named(Struct):
    """The namespace of a document. The document of a step has none, and names its task."""

    task_id: int = 0
    namespace: str | None = None


class AuditNotes:
    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._minute = 0
        self._noted: set[Hashable] = set()

    def refused(self, grant: Grant, operation: str, problem: HttpProblem) -> None:
        """Record a refused attempt of an operator, the first one of each principal in a minute."""
        if 400 <= problem.status < 500 and self._is_first(("refused", grant.author)):
            self._note(grant, operation, "", {"status": problem.status, "code": problem.code}, "refused")

    async def read_payload(self, grant: Grant, body: bytes) -> None:
        """Record that a payload was read, the first read of each principal and namespace in a minute."""
        named = _names(body)
        namespace = named.namespace or await self._namespace_of(named.task_id)
        if self._is_first(("read", grant.author, namespace)):
            self._note(grant, "read_payloads", f"namespace {namespace}", {"task": named.task_id}, "done")

    def tapped(self, grant: Grant, topic: str | None) -> None:
        """Record that the messages of the bus were read. The tap shows all namespaces."""
        if self._is_first(("tap", grant.author)):
            self._note(grant, "tap", "every namespace", {"topic": (topic or "*")[:200]}, "done")

    def tokens_changed(self, changes: list[TokenChange]) -> None:
        """Record changes of the token files. A file has no author, so the row names the process that has noticed."""
        for change in changes[:CHANGES_MAX]:
            detail = {"scopes": sorted(change.scopes), "digest": change.digest}
            self._broker.audit.notice(ActionNoticed("process", "file", change.action, f"token {change.name}", detail))
        if len(changes) > CHANGES_MAX:
            more = {"tokens": len(changes) - CHANGES_MAX}
            self._broker.audit.notice(ActionNoticed("process", "file", "tokens_changed", "further tokens", more))

    def _note(self, grant: Grant, action: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        self._broker.audit.notice(ActionNoticed(grant.author, grant.via_text, action, target, detail, outcome))

    def _is_first(self, key: Hashable) -> bool:
        """True for the first of these in a minute, and for at most ROWS_A_MINUTE_MAX rows."""
        minute = self._broker.now().wall // MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._noted.clear()
        if key in self._noted or len(self._noted) >= ROWS_A_MINUTE_MAX:
            return False
        self._noted.add(key)
        return True

    async def _namespace_of(self, task_id: int) -> str:
        return await self._broker.read(lambda queries: queries.namespace_of(task_id)) or "unknown"


def _names(body: bytes) -> _Named:
    try:
        return msgspec.json.decode(body, type=_Named)
    except msgspec.MsgspecError:
        return _Named()
