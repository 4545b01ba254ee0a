"""The audit, as the parts around the core use it: rows that no command leaves, and the ends of the chains in the log.

A log that is kept elsewhere proves that no earlier row was changed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import structlog

from .core.model.events import ActionNoticed
from .store import Store
from .store.audit_chain import AuditChain

LOG_EVERY_S: Final = 3_600.0

log = structlog.get_logger("stepwire.audit")


class AuditTrail:
    """Logs the ends of the chains at the start, then every hour, until `stop`. `notice` has a row written with the next
    group; nothing waits for it."""

    def __init__(self, notice: Callable[[ActionNoticed], None], store: Store) -> None:
        self.notice = notice
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.log_heads()
        self._timer = self._loop.call_later(LOG_EVERY_S, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def log_heads(self) -> None:
        self._store.read(lambda queries: queries.audit_chains()).add_done_callback(_log)


def _log(read: "Future[list[AuditChain]]") -> None:
    if read.cancelled():
        return
    error = read.exception()
    if error is not None:
        log.warning("read_failed", error=str(error))
        return
    for chain in read.result():
        log.info("audit_head", lane=chain.lane, n=chain.n, hash=chain.hash)
