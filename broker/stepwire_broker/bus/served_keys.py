"""The brokers' CURVE keys as the sockets serve them: announced to the workers, then bound.

libzmq ends the connections of an endpoint that is bound again. Workers that have the new key then connect again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from .alarms import Alarms
from .endpoints import EndpointRefused
from .keys.server_key import BrokerKeys
from .sockets import Bound, Sockets

ANNOUNCED_BEFORE_S: Final = 0.3  # between the messages with a new key and its use


class ServedKeys:
    """Call `start` after the first bind, and `serve` whenever the keys may have changed."""

    def __init__(self, sockets: Sockets, keys: BrokerKeys, alarms: Alarms) -> None:
        self.announced = keys
        self.next_bound: tuple[str, str] | None = None  # the addresses of steps and results of `bus.next`
        self.on_changed: Callable[[BrokerKeys, BrokerKeys], None] = lambda before, after: None
        self._sockets = sockets
        self._served = keys
        self._alarms = alarms
        self._bound: tuple[Bound, ...] = ()

    async def start(self, bound: tuple[Bound, ...]) -> None:
        """Bind `bus.next`. Raises EndpointRefused."""
        self._bound = bound
        await self._serve_next(self.announced)

    async def serve(self, keys: BrokerKeys) -> None:
        """Announce these keys, then serve them. If an address is taken meanwhile, the next call tries it again."""
        if keys == self._served:
            return
        if keys != self.announced:
            before, self.announced = self.announced, keys
            self.on_changed(before, keys)
            await asyncio.sleep(ANNOUNCED_BEFORE_S)
        try:
            if keys.current != self._served.current:
                await self._sockets.replace_key(keys.current, self._bound)
            await self._serve_next(keys)
        except EndpointRefused as error:
            self._alarms.report(f"the brokers' new key is not served yet: {error}")
            return
        self._served = keys

    async def _serve_next(self, keys: BrokerKeys) -> None:
        self.next_bound = await self._sockets.serve_next(keys.next or keys.current)
