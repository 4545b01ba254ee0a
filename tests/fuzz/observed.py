"""The faults of a broker that is fuzzed in this process."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import structlog
from stepwire_broker.store.checking import check
from stepwire_broker.store.sqlite import backup
from stepwire_broker.store.sqlite.stored_state import SqliteState

LOOP_MS_MAX: Final = 250.0


class Observed:
    """The faults of the broker, and the longest time that the loop computed without a pause."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []
        self.steps: dict[str, int] = {}
        self.requests = 0
        self.loop_ms = 0.0  # of the thread's own time, so that other processes do not count
        self.loop_at = ""
        self.current = ""

    def fault(self, text: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(text)

    async def watch_loop(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            took_ms = (time.thread_time() - before_s) * 1000
            if took_ms > self.loop_ms:
                self.loop_ms, self.loop_at = took_ms, self.current


def check_database(path: Path, observed: Observed) -> None:
    with closing(backup.open_stored(path)) as connection:
        for finding in check(SqliteState(connection), 2_000, lambda done, total: None).findings:
            observed.fault(f"db check: {finding}")


@contextlib.contextmanager
def logged() -> Any:
    """The events of the log that report a failure of the broker. All others are dropped."""
    errors: list[str] = []

    def keep(logger: Any, method: str, event: dict[str, Any]) -> Any:
        if "exc_info" in event or "exception" in event:
            errors.append(f"log: {event}"[:600])
        raise structlog.DropEvent

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(f"log: {self.format(record)}"[:2_000])

    before, handler = structlog.get_config(), Handler(logging.ERROR)
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    logging.getLogger().addHandler(handler)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(handler)
        structlog.configure(**before)
