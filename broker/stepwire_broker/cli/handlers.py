"""`stepwire serve --with-handlers pkg.mod`: runs the module's worker in a separate process next to the broker.

The handlers run in a process, not in a thread, so that a handler that computes, leaks memory or crashes its interpreter
does not harm the broker. The operating system proves the death of a process, so its steps run again at once. The worker
behaves like every other worker. (`stepwire_broker.Broker` runs broker and handlers in one process.)
"""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from stepwire_broker.end_with_parent import end_with_parent
from stepwire_broker.errors import BrokerError

from . import children
from .failure import Exit

RESTART_MS: Final = 500
RESTART_MAX_MS: Final = 30_000
SETTLED_S: Final = 60.0  # a process that ran this long is restarted without the longer waits
NAME_CHARACTERS_MAX: Final = 48
_THIS: Final = "stepwire_broker.cli.handlers"


class Handlers:
    """One module's process, restarted whenever it ends by itself."""

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        self.module = module
        self._environ = {"STEPWIRE_NAME": _worker_name(module), **environ}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """Start the process. The returned task ends after `stop`, or with HandlersRefused if the module is unusable."""
        self._keeping = asyncio.create_task(self._keep_running(), name=f"handlers {self.module}")
        return self._keeping

    async def stop(self, timeout_s: float) -> None:
        """Send TERM, which drains the worker: it returns unstarted steps, finishes running ones and waits for acks."""
        self._stopping.set()
        if self._process is not None:
            children.send_signal(self._process, signal.SIGTERM)
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
            children.send_signal(self._process, signal.SIGKILL)

    async def _keep_running(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _THIS,
                self.module,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,  # stdout of `serve` holds one line, for programs
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
            if self._stopping.is_set():
                children.send_signal(self._process, signal.SIGTERM)
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            if code == Exit.USAGE:
                raise HandlersRefused(f"--with-handlers {self.module} cannot be used; its own message is above")
            deaths = 0 if time.monotonic() - started_s > SETTLED_S else deaths
            wait_ms = min(RESTART_MS * 2**deaths, RESTART_MAX_MS)
            deaths = min(deaths + 1, 16)
            _log().warning("handlers_ended", module=self.module, how=children.end_text(code), again_in_ms=wait_ms)
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
            except TimeoutError:
                pass


class HandlersRefused(BrokerError):
    """The module of --with-handlers cannot be imported or has no worker to run."""


def _log() -> Any:
    import structlog  # imported late, so that `stepwire serve --help` is fast

    return structlog.get_logger("stepwire.serve")


def _worker_name(module: str) -> str:
    """The worker's name in `stepwire worker list`."""
    return module.partition(":")[0].rpartition(".")[2][:NAME_CHARACTERS_MAX]


# -- in the process of the handlers -----------------------------------------------------------------------------------


def run(named: str) -> int:
    """Import `pkg.mod` or `pkg.mod:name`, and run its Worker."""
    from stepwire import ConfigurationError
    from stepwire.logs import is_configured

    from stepwire_broker.executors.modules import NoWorker, worker_in

    try:
        worker = worker_in(named)
    except NoWorker as error:
        return _refuse(str(error))
    if not is_configured():
        from . import logs

        logs.set_up("info")  # the same lines as those of the broker, on the same stderr
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
