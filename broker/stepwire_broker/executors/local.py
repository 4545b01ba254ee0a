"""Python handlers in the broker's own process: the SDK's worker, as it is, connected by inproc.

Its sockets have a thread of their own, plain handlers have theirs, and what is declared `process=True` runs in
processes that die with this one. All share the broker's interpreter: what computes for long belongs in a process.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from stepwire import ConfigurationError, Worker
from stepwire.handler import Handler

from stepwire_broker.core.model.targets import LOCAL
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.engine import CannotStart, Engine

from .modules import NoWorker, worker_in

MODULES_HINT: Final = "executors.local.modules names Python modules with a Worker: pkg.mod or pkg.mod:worker"


class Local:
    """`prepare`, `start`, `drain`, `close`, as an executor's host has them."""

    key: Final = LOCAL

    def __init__(self, handlers: Iterable[Handler], slots: int, number: int, *, joins_bus: bool) -> None:
        self.handlers = tuple(handlers)
        self.slots = slots
        self._number = number
        self._joins_bus = joins_bus
        self._worker: Worker | None = None
        self._gone: Callable[[], None] | None = None

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
            context=context,
        )
        worker._given_id = own_worker(LOCAL, broker.broker_id, broker.epoch, self._number)
        for handler in self.handlers:
            worker.add(handler)
        self._gone = broker.expect(worker._given_id, LOCAL, joins_bus=self._joins_bus)
        worker.start()

    def metrics(self) -> None:
        """Its results pass the core like everybody's, and are counted there."""

    async def drain(self, drain_ms: float) -> None:
        """The broker has been told before that it is to hand out nothing: what is given back does not come again."""
        if self._worker is not None:
            await asyncio.to_thread(self._worker.stop, int(drain_ms))

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and self._gone is not None:
            await asyncio.to_thread(worker.stop, 0)
            self._gone()


def handlers_of(modules: Iterable[str], before: Iterable[Handler] = ()) -> list[Handler]:
    """Of all these modules; beside those that are there before, a name may be there once. Raises CannotStart."""
    together, found = Worker(), []
    for handler in before:
        together.add(handler)
    for module in modules:
        try:
            for handler in worker_in(module).handlers:
                together.add(handler)
                found.append(handler)
        except Exception as error:  # whatever somebody's module raises when it is imported
            said = str(error) if isinstance(error, NoWorker | ConfigurationError) else repr(error)
            raise CannotStart(f"executors.local.modules: {module}: {said}", MODULES_HINT) from error
    return found
