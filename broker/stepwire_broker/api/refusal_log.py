"""Log lines about refused requests: wrong tokens, missing scopes, foreign hosts and origins.

The first refusal of a source is logged at once. Further ones are counted, and logged once in LOG_EVERY_S.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import structlog
from starlette.types import Message, Send
from starlette.types import Scope as ASGIScope

from .http import GRANT

LOG_EVERY_S: Final = 10.0
SOURCES_MAX: Final = 1000  # further ones are counted together
OTHERS: Final = "others"
REFUSED: Final = (401, 403)

log: Final = structlog.get_logger("stepwire.api")


class RefusalLog:
    def __init__(self, call_later: Callable[[float, Callable[..., None], Any], object] | None = None) -> None:
        self._call_later = call_later
        self._counts: dict[str, Counter[str]] = {}  # by source: not logged yet

    def noting(self, scope: ASGIScope, send: Send) -> Send:
        """`send`, which also notes a refusal."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                grant = scope.get(GRANT)
                self.note(_source_of(scope), f"{message['status']} {'' if grant is None else grant.author}".rstrip())
            await send(message)

        return noted

    def note(self, source: str, refusal: str) -> None:
        """Log or count a refusal. `refusal` is the status and, if the token is known, its author."""
        if source not in self._counts and len(self._counts) >= SOURCES_MAX:
            source = OTHERS
        waiting = self._counts.get(source)
        if waiting is not None:
            waiting[refusal] += 1
            return
        self._counts[source] = Counter()
        log.warning("requests_refused", source=source, refused={refusal: 1})
        self._later(source)

    def _later(self, source: str) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(LOG_EVERY_S, self._report, source)

    def _report(self, source: str) -> None:
        waiting = self._counts.pop(source)
        if waiting:
            self._counts[source] = Counter()
            log.warning("requests_refused", source=source, refused=dict(waiting))
            self._later(source)


def _source_of(scope: ASGIScope) -> str:
    client = scope.get("client")
    return "unknown" if client is None else str(client[0])
