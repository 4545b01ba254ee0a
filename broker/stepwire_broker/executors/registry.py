"""Which executors there are: those of this package that the settings ask for, those that other packages bring, and
those an application has registered. They begin and end with their broker.
"""

import asyncio
import itertools
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeAlias

import structlog
from stepwire.handler import Handler

from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.model.targets import BUS, LOCAL, POLL
from stepwire_broker.engine import CannotStart, Engine
from stepwire_broker.exec_runs.records import RunsRefused

from .contract import Executor, ExecutorMetrics
from .exec import BadCommand, Exec
from .host import BadExecutor, Host
from .local import Local, handlers_of

log = structlog.get_logger("stepwire.executor")

GROUP: Final = "stepwire.executors"  # of entry points: the name is the key, the object makes an executor of its options
KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
EXEC: Final = "exec"
BUILT_IN: Final = (BUS, LOCAL, EXEC, POLL)

Hosted: TypeAlias = Host | Local


class Executors:
    """`register` them, give this to the Broker as its companion, and they do what it does."""

    def __init__(self, settings: Settings, *, is_embedded: bool = False) -> None:
        """`is_embedded`: inside an application. There is no HTTP, and its own handlers join those on the bus."""
        self._settings = settings
        self._is_embedded = is_embedded
        self._hosts: dict[str, Hosted] = {}
        self._numbers = itertools.count()
        self._is_started = False

    @property
    def hosts(self) -> dict[str, Hosted]:
        """By key: those that run in this process."""
        return self._hosts

    def keys(self) -> tuple[str, ...]:
        """All that steps can be routed to."""
        polled = (POLL,) if self._settings.executors.poll.enabled and not self._is_embedded else ()
        return (BUS, *self._hosts, *polled)

    def register(self, key: str, executor: Executor) -> None:
        """Before the broker starts. Raises BadExecutor."""
        if self._is_started:
            raise BadExecutor(f"executor {key} comes too late: the broker has started")
        if not KEY.fullmatch(key):
            raise BadExecutor(f"executor {key!r}: a key is 1 to 32 of a-z, 0-9, _ and -, from a letter on")
        if key in BUILT_IN:
            raise BadExecutor(f"executor {key}: {', '.join(BUILT_IN)} come with Stepwire; take another key")
        self._add(key, executor)

    def configure(self, handlers: Iterable[Handler] = (), slots: int | None = None) -> None:
        """Add what the settings ask for, and these handlers of the application's own. Raises CannotStart."""
        local = self._settings.executors.local
        handlers = (*handlers, *handlers_of(local.modules, handlers))
        if handlers:
            self._hosts[LOCAL] = Local(
                handlers, slots or local.threads, next(self._numbers), joins_bus=self._is_embedded
            )
        if self._settings.executors.exec.commands:
            try:
                self._add(EXEC, Exec(self._settings))
            except BadCommand as error:
                raise CannotStart(str(error)) from None
        options = self._settings.executors.options
        for key in _named(self._settings):
            if key in self._hosts:
                continue
            point = _installed(key)
            if point is not None:
                executor = _made(key, point, options.get(key, {}))
                try:
                    self._add(key, executor)
                except BadExecutor as error:
                    raise CannotStart(f"{error} (of {_package(point)})") from error
            elif key in options:
                others = sorted({each.name for each in entry_points(group=GROUP)})
                raise CannotStart(
                    f"executors.options.{key}: there is no executor {key}",
                    f"packages that are installed here bring {', '.join(others) if others else 'none'}",
                )

    def _add(self, key: str, executor: Executor) -> None:
        if key in self._hosts:
            raise BadExecutor(f"executor {key} is registered twice")
        self._hosts[key] = Host(key, executor, next(self._numbers))

    # -- the broker's companion ---------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        self._is_started = True
        for host in self._hosts.values():
            try:
                await host.prepare()
            except RunsRefused as error:
                raise CannotStart(str(error)) from None
            except Exception as error:
                raise CannotStart(f"executor {host.key} cannot start: {error!r}") from error

    def start(self, broker: Engine) -> None:
        for host in self._hosts.values():
            host.start(broker)

    def metrics(self) -> dict[str, ExecutorMetrics | None]:
        found: dict[str, ExecutorMetrics | None] = dict.fromkeys(self.keys())
        for key, host in self._hosts.items():
            try:
                found[key] = host.metrics()
            except Exception as error:
                log.error("executor_broke", executor=key, what="metrics", error=repr(error))
        return found

    async def drain(self, drain_ms: float) -> None:
        await asyncio.gather(*(host.drain(drain_ms) for host in self._hosts.values()))

    async def close(self) -> None:
        """What one of them raises at its end keeps nobody else from ending."""
        hosts = list(self._hosts.values())
        ends = await asyncio.gather(*(host.close() for host in hosts), return_exceptions=True)
        for host, ended in zip(hosts, ends, strict=True):
            if isinstance(ended, Exception):
                log.error("executor_broke", executor=host.key, what="stop", error=repr(ended))


def known(settings: Settings) -> frozenset[str]:
    """All that the settings could speak of, without a look at what is behind it."""
    executors = settings.executors
    there = {EXEC: bool(executors.exec.commands), POLL: executors.poll.enabled}
    installed = (point.name for point in entry_points(group=GROUP))
    return frozenset((BUS, LOCAL, *installed, *(key for key, is_there in there.items() if is_there)))


def _named(settings: Settings) -> Iterator[str]:
    """Keys that the settings speak of, and that are not ours. An installed package alone is no reason to run it."""
    execution = settings.execution
    targets: list[Any] = [each for rule in execution.rules for each in (rule, rule.canary, rule.shadow)]
    keys = [*settings.executors.options, execution.default_executor, *(t.executor for t in targets if t is not None)]
    yield from (key for key in dict.fromkeys(keys) if key is not None and key not in BUILT_IN)


def _installed(key: str) -> EntryPoint | None:
    found = list(entry_points(group=GROUP, name=key))
    if len(found) > 1:
        whose = " and ".join(sorted(_package(point) for point in found))
        raise CannotStart(f"executor {key} is brought by {whose}", "uninstall all but one of them")
    return found[0] if found else None


def _made(key: str, point: EntryPoint, options: dict[str, Any]) -> Executor:
    try:
        factory = point.load()
    except Exception as error:
        raise CannotStart(
            f"executor {key} of {_package(point)} cannot be loaded from {point.value}: {error!r}"
        ) from error
    try:
        executor: Executor = factory(**options)
    except Exception as error:
        raise CannotStart(
            f"executor {key} of {_package(point)} does not take its options: {error}",
            f"they are in executors.options.{key}",
        ) from error
    return executor


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
