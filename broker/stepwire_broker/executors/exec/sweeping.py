"""The final sweep after a run: kills processes that left the program's session, as daemons do.

Such a process is found by the run's mark in its environment, which takes a pass over all processes of the host. Runs
that end at the same time share a pass, and a thread makes it.
"""

import asyncio
import signal
import time
from typing import Final

import structlog

from stepwire_broker.exec_runs.process_groups import NotOurs, ProcessGroup, send_signal, strays

PATIENCE_S: Final = 5.0
CHECK_EVERY_S: Final = 0.005

log = structlog.get_logger("stepwire.exec")


class Sweeper:
    def __init__(self) -> None:
        self._waiting: list[tuple[ProcessGroup, asyncio.Future[None]]] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def sweep(self, group: ProcessGroup) -> None:
        """Return when no process of this run is left."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append((group, done))
        if self._sweeping is None:
            self._sweeping = loop.create_task(self._sweep(), name="exec sweep")
        await done

    async def _sweep(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(_kill_strays, [group for group, _ in batch])
            except OSError as error:
                log.error("sweep_failed", error=str(error))
            for _, done in batch:
                if not done.done():
                    done.set_result(None)
        self._sweeping = None


def _kill_strays(groups: list[ProcessGroup]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    signalled: set[int] = set()
    while alive := strays(groups):
        for member in alive:
            if member.pid not in signalled:
                log.warning("stray_process_killed", pid=member.pid, run=member.group.pid)
            signalled.add(member.pid)
            try:
                send_signal(member, signal.SIGKILL)
            except NotOurs:
                pass
        if time.monotonic() > until_s:
            log.error("stray_process_lives", pid=alive[0].pid, run=alive[0].group.pid)
            return
        time.sleep(CHECK_EVERY_S)
