"""Which executors there are: those of this package that the settings ask for, those that others have made, and those an
application has registered. They begin and end with their broker.
"""

import asyncio
import itertools
import re
from collections.abc import Iterable
from typing import Final

import structlog

from stepwire_broker.broker import Broker, CannotStart

from .contract import Executor
from .host import BadExecutor, Host

log = structlog.get_logger("stepwire.executor")

KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
TAKEN: Final = frozenset({"bus", "local", "exec", "poll"})  # by what comes with Stepwire


class Executors:
    """`register` them, give this to the Broker as its companion, and they do what it does."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._numbers = itertools.count()
        self._broker: Broker | None = None

    @property
    def hosts(self) -> dict[str, Host]:
        """By key."""
        return self._hosts

    def register(self, key: str, executor: Executor) -> None:
        """Before the broker starts. Raises BadExecutor."""
        if self._broker is not None:
            raise BadExecutor(f"executor {key} comes too late: the broker has started")
        if not KEY.fullmatch(key) or key in TAKEN:
            taken = f"; {', '.join(sorted(TAKEN))} are taken" if key in TAKEN else ""
            raise BadExecutor(f"executor {key!r}: a key is 1 to 32 of a-z, 0-9, _ and -, from a letter on{taken}")
        self.add(key, executor)

    def add(self, key: str, executor: Executor) -> None:
        """The same, for what comes with Stepwire."""
        if key in self._hosts:
            raise BadExecutor(f"executor {key} is registered twice")
        self._hosts[key] = Host(key, executor, next(self._numbers))

    # -- the broker's companion ---------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        for host in self._hosts.values():
            try:
                await host.prepare()
            except Exception as error:
                raise CannotStart(f"executor {host.key} cannot start: {error!r}") from error

    def start(self, broker: Broker) -> None:
        self._broker = broker
        for host in self._hosts.values():
            host.start(broker)

    async def drain(self, drain_ms: float) -> None:
        await asyncio.gather(*(host.drain(drain_ms) for host in self._hosts.values()))

    async def close(self) -> None:
        await _all_ended(self._hosts.values())


async def _all_ended(hosts: Iterable[Host]) -> None:
    """What one of them raises at its end keeps nobody else from ending."""
    hosts = list(hosts)
    for host, ended in zip(
        hosts, await asyncio.gather(*(h.close() for h in hosts), return_exceptions=True), strict=True
    ):
        if isinstance(ended, BaseException):
            log.error("executor_broke", executor=host.key, what="stop", error=repr(ended))
