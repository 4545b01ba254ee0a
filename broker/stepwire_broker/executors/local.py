"""Python handlers in the broker's own process: the unchanged worker of the SDK, connected over inproc.

The worker's sockets and plain handlers run in threads. Handlers with `process=True` run in child processes, which end
with the broker. All threads share the broker's interpreter, so a long computation belongs in a child process.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from stepwire import ConfigurationError, Worker, sealing, secret_values
from stepwire.handler import Handler

from stepwire_broker.core.model.targets import LOCAL
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.engine import CannotStart, Engine

from .modules import NoWorker, worker_in

MODULES_HINT: Final = "executors.local.modules names Python modules with a Worker: pkg.mod or pkg.mod:worker"


class Local:
    """The executor `local`, with the methods of a Host."""

    key: Final = LOCAL

    def __init__(self, handlers: Iterable[Handler], slots: int, *, joins_bus: bool) -> None:
        self.handlers = tuple(handlers)
        self.slots = slots
        self._joins_bus = joins_bus
        self._worker: Worker | None = None
        self._unregister: Callable[[], None] | None = None

    async def prepare(self) -> None:
        pass

    def start(self, broker: Engine) -> None:
        context, steps, results = broker.inner_endpoints()
        self._worker = worker = Worker(
            steps=steps,
            results=results,
            name=LOCAL,
            slots=self.slots,
            heartbeat_ms=broker.settings.bus.heartbeat_ms,
            secrets=os.environ.get(secret_values.DIRECTORY),
            seal_keys_file=os.environ.get(sealing.FILE),
            context=context,
        )
        worker._given_id = own_worker(LOCAL, broker.broker_id, broker.epoch, secrets.randbits(32))
        for handler in self.handlers:
            worker.add(handler)
        self._unregister = broker.expect(worker._given_id, LOCAL, joins_bus=self._joins_bus)
        worker.start()

    def metrics(self) -> None:
        """None: the core counts the results of this worker, as of every worker."""

    async def drain(self, drain_ms: float) -> None:
        """Stop the worker. The broker no longer dispatches steps, so returned steps are not delivered again."""
        if self._worker is not None:
            await asyncio.to_thread(self._worker.stop, int(drain_ms))

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and self._unregister is not None:
            await asyncio.to_thread(worker.stop, 0)
            self._unregister()


def handlers_of(modules: Iterable[str], before: Iterable[Handler] = ()) -> list[Handler]:
    """The handlers of all these modules. Raises CannotStart when a name occurs twice, here or in `before`."""
    every, handlers = Worker(), []
    for handler in before:
        every.add(handler)
    for module in modules:
        try:
            for handler in worker_in(module).handlers:
                every.add(handler)
                handlers.append(handler)
        except Exception as error:  # importing a module can raise any exception
            reason = str(error) if isinstance(error, NoWorker | ConfigurationError) else repr(error)
            raise CannotStart(f"executors.local.modules: {module}: {reason}", MODULES_HINT) from error
    return handlers
