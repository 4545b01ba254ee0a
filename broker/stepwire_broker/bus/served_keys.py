"""The brokers' CURVE keys as the sockets serve them: announced to the workers, then bound.

libzmq ends the connections of an endpoint that is bound again. Workers that have the new key then connect again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from .alarms import Alarms
from .endpoints import EndpointRefused
from .keys.key_text import KeyPair
from .keys.server_key import BrokerKeys
from .sockets import Bound

ANNOUNCED_BEFORE_S: Final = 0.3  # between the messages with a new key and its use


class KeySockets(Protocol):
    """The bound sockets, of which ServedKeys needs only the changes of keys. Both methods raise EndpointRefused."""

    async def replace_key(self, server: KeyPair, bound: tuple[Bound, ...]) -> None: ...

    async def serve_next(self, server: KeyPair) -> tuple[str, str] | None: ...


class ServedKeys:
    """Call `start` after the first bind, and `serve` whenever the keys may have changed."""

    def __init__(
        self,
        sockets: KeySockets,
        keys: BrokerKeys,
        alarms: Alarms,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits for seconds: the simulation has a clock of its own."""
        self.announced = keys
        self.next_bound: tuple[str, str] | None = None  # the addresses of steps and results of `bus.next`
        self.on_changed: Callable[[BrokerKeys, BrokerKeys], None] = lambda before, after: None
        self.on_served: Callable[[], None] = lambda: None
        self._sockets = sockets
        self._served = keys
        self._alarms = alarms
        self._pause = pause
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
            await self._pause(ANNOUNCED_BEFORE_S)
        try:
            if keys.current != self._served.current:
                await self._sockets.replace_key(keys.current, self._bound)
            await self._serve_next(keys)
        except EndpointRefused as error:
            self._alarms.report(f"the brokers' new key is not served yet: {error}")
            return
        self._served = keys
        self.on_served()

    @property
    def replaced(self) -> KeyPair | None:
        """The key that is still served, although the broker has announced another one."""
        return None if self._served.current == self.announced.current else self._served.current

    async def _serve_next(self, keys: BrokerKeys) -> None:
        self.next_bound = await self._sockets.serve_next(keys.next or keys.current)
