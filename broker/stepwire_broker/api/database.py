"""`/v1/database`: maintenance of the database while the broker runs."""

import time

from msgspec import Struct

from . import audit
from .http import HttpCall
from .replies import Reply, encode


class Pruning(Struct, frozen=True):
    """Pruning has begun. It removes tasks that ended at least this number of milliseconds before `now_ms`."""

    now_ms: int
    completed_ms: int
    failed_ms: int


async def prune(call: HttpCall) -> Reply:
    call.query()
    await audit.record(call, "prune_database")
    kept = call.broker.settings.retention
    now_ms = time.time_ns() // 1_000_000
    call.broker.prune()
    return Reply(202, encode(Pruning(now_ms, kept.completed_ms, kept.failed_ms)))
