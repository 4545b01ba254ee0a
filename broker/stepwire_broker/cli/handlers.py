"""`stepwire serve --with-handlers pkg.mod`: the module's worker, in a process of its own beside the broker.

A process and not a thread: a handler that computes, leaks, or takes its interpreter down must not take the broker
along; its death is proven by the operating system, so its steps run again at once; and what holds for it is what holds
for every worker. (`stepwire_broker.Broker` is the broker for who wants one process.)
"""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from stepwire_broker.end_with_parent import end_with_parent

from . import children
from .failure import Exit

RESTART_MS: Final = 500
RESTART_MAX_MS: Final = 30_000
SETTLED_S: Final = 60.0  # who has lived so long is started again at once
NAME_CHARACTERS_MAX: Final = 48
_THIS: Final = "stepwire_broker.cli.handlers"


class Handlers:
    """One module's process, started again whenever it ends by itself."""

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        self.module = module
        self._environ = {"STEPWIRE_NAME": _worker_name(module), **environ}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """The result ends with `stop`, or when the module cannot be what it has to be: that no new start will cure."""
        self._keeping = asyncio.create_task(self._keep(), name=f"handlers {self.module}")
        return self._keeping

    async def stop(self, timeout_s: float) -> None:
        """TERM drains a worker: it gives back what it has not started, finishes what runs, and hears its acks."""
        self._stopping.set()
        if self._process is not None:
            children.tell(self._process, signal.SIGTERM)
        if self._keeping is None:
            return
        done, _ = await asyncio.wait((self._keeping,), timeout=timeout_s)
        if not done:
            _log().warning("handlers_killed", module=self.module, after_s=timeout_s)
            self.kill()
            await asyncio.wait((self._keeping,))

    def kill(self) -> None:
        self._stopping.set()
        if self._process is not None:
            children.tell(self._process, signal.SIGKILL)

    async def _keep(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _THIS,
                self.module,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,  # the broker's own has one line, for programs
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
            if self._stopping.is_set():
                children.tell(self._process, signal.SIGTERM)
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if code == Exit.USAGE:
                raise HandlersRefused(f"--with-handlers {self.module}: it cannot be used; what it said stands above")
            deaths = 0 if time.monotonic() - begun_s > SETTLED_S else deaths
            wait_ms = min(RESTART_MS * 2**deaths, RESTART_MAX_MS)
            deaths = min(deaths + 1, 16)
            _log().warning("handlers_ended", module=self.module, how=children.ended(code), again_in_ms=wait_ms)
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
            except TimeoutError:
                pass


class HandlersRefused(Exception):
    """The module has no worker to run."""


def _log() -> Any:
    import structlog  # the help of a command does not wait for it

    return structlog.get_logger("stepwire.serve")


def _worker_name(module: str) -> str:
    """As `stepwire worker list` shows it."""
    return module.partition(":")[0].rpartition(".")[2][:NAME_CHARACTERS_MAX]


# -- in the process of the handlers -----------------------------------------------------------------------------------


def run(named: str) -> int:
    """Import `pkg.mod` or `pkg.mod:name`, and run the Worker that it holds."""
    from stepwire import ConfigurationError

    from stepwire_broker.executors.modules import NoWorker, worker_in

    try:
        worker = worker_in(named)
    except NoWorker as error:
        return _refuse(str(error))
    try:
        worker.run()
    except ConfigurationError as error:
        return _refuse(f"{named.partition(':')[0]}: {error}")
    return Exit.OK


def _refuse(text: str) -> int:
    print(f"stepwire: {text}", file=sys.stderr)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
