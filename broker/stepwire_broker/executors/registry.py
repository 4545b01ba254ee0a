"""The executors of a broker: built-in executors of the settings, executors of installed packages, and executors that
an application registers. All of them start and stop with their broker.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeAlias

import structlog
from stepwire.handler import Handler

from stepwire_broker import posture
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.model.targets import BUS, LOCAL, POLL
from stepwire_broker.engine import CannotStart, Engine
from stepwire_broker.exec_runs.leftovers import end_earlier_runs
from stepwire_broker.exec_runs.records import RunsRefused

from .contract import Executor, ExecutorMetrics
from .exec import BadCommand, Exec
from .host import BadExecutor, Host
from .local import Local, handlers_of

log = structlog.get_logger("stepwire.executor")

GROUP: Final = "stepwire.executors"  # of entry points: name = key, object = a function from options to an executor
KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
EXEC: Final = "exec"
BUILT_IN: Final = (BUS, LOCAL, EXEC, POLL)

Hosted: TypeAlias = Host | Local


class Executors:
    """All executors of one engine. Call `register` and `configure` before the engine starts."""

    def __init__(self, settings: Settings, *, is_embedded: bool = False, has_http: bool = True) -> None:
        """`is_embedded`: the broker runs inside an application, whose handlers also run steps of the executor `bus`.
        `has_http`: workers can poll for steps."""
        self._settings = settings
        self._is_embedded = is_embedded
        self._has_http = has_http
        self._hosts: dict[str, Hosted] = {}
        self._is_started = False

    @property
    def hosts(self) -> dict[str, Hosted]:
        """The executors that run in this process, by key."""
        return self._hosts

    def keys(self) -> tuple[str, ...]:
        """The keys of all executors that steps can be routed to."""
        polled = (POLL,) if self._settings.executors.poll.enabled and self._has_http else ()
        return (BUS, *self._hosts, *polled)

    def register(self, key: str, executor: Executor) -> None:
        """Add an executor of the application, before the broker starts. Raises BadExecutor."""
        if self._is_started:
            raise BadExecutor(f"executor {key}: the broker has started; register executors before that")
        if not KEY.fullmatch(key):
            raise BadExecutor(f"executor {key!r}: a key is a letter and at most 31 more of a-z, 0-9, _ and -")
        if key in BUILT_IN:
            raise BadExecutor(f"executor {key}: {', '.join(BUILT_IN)} are built in; choose another key")
        self._add(key, executor)

    def configure(self, handlers: Iterable[Handler] = (), slots: int | None = None) -> None:
        """Add the executors of the settings, and these handlers of the application. Raises CannotStart."""
        local = self._settings.executors.local
        handlers = (*handlers, *handlers_of(local.modules, handlers))
        if handlers:
            self._hosts[LOCAL] = Local(handlers, slots or local.threads, joins_bus=self._is_embedded)
        refusal = posture.programs_in_broker(self._settings)
        if refusal is not None:
            if self._settings.security.strict:
                raise CannotStart(refusal)
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
                    f"executors.options.{key}: no installed package provides an executor {key}",
                    f"executors of installed packages: {', '.join(others) if others else 'none'}",
                )

    def _add(self, key: str, executor: Executor) -> None:
        if key in self._hosts:
            raise BadExecutor(f"executor {key} is registered twice")
        self._hosts[key] = Host(key, executor)

    # -- called by the engine -----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        self._is_started = True
        await self._end_earlier_runs()
        for host in self._hosts.values():
            try:
                await host.prepare()
            except RunsRefused as error:
                raise CannotStart(str(error)) from None
            except Exception as error:
                raise CannotStart(f"executor {host.key} cannot start: {error!r}") from error

    async def _end_earlier_runs(self) -> None:
        """Kill programs that an earlier broker process left, even if no program is configured now."""
        settings = self._settings.executors.exec
        try:
            await asyncio.to_thread(end_earlier_runs, settings.runs_dir, is_used=bool(settings.commands))
        except RunsRefused as error:
            raise CannotStart(str(error)) from None

    def start(self, broker: Engine) -> None:
        for host in self._hosts.values():
            host.start(broker)

    def metrics(self) -> dict[str, ExecutorMetrics | None]:
        metrics: dict[str, ExecutorMetrics | None] = dict.fromkeys(self.keys())
        for key, host in self._hosts.items():
            try:
                metrics[key] = host.metrics()
            except Exception as error:
                log.error("executor_broke", executor=key, what="metrics", error=repr(error))
        return metrics

    async def drain(self, drain_ms: float) -> None:
        await asyncio.gather(*(host.drain(drain_ms) for host in self._hosts.values()))

    async def close(self) -> None:
        """Close every executor, even if one of them raises."""
        hosts = list(self._hosts.values())
        ends = await asyncio.gather(*(host.close() for host in hosts), return_exceptions=True)
        for host, ended in zip(hosts, ends, strict=True):
            if isinstance(ended, Exception):
                log.error("executor_broke", executor=host.key, what="stop", error=repr(ended))


def known(settings: Settings) -> frozenset[str]:
    """Every executor key that the settings may use. No executor is loaded."""
    executors = settings.executors
    configured = {EXEC: bool(executors.exec.commands), POLL: executors.poll.enabled}
    installed = (point.name for point in entry_points(group=GROUP))
    return frozenset((BUS, LOCAL, *installed, *(key for key, is_on in configured.items() if is_on)))


def _named(settings: Settings) -> Iterator[str]:
    """Keys in the settings that are not built in. An installed package that no setting names is not loaded."""
    execution = settings.execution
    targets: list[Any] = [each for rule in execution.rules for each in (rule, rule.canary, rule.shadow)]
    keys = [*settings.executors.options, execution.default_executor, *(t.executor for t in targets if t is not None)]
    yield from (key for key in dict.fromkeys(keys) if key is not None and key not in BUILT_IN)


def _installed(key: str) -> EntryPoint | None:
    points = list(entry_points(group=GROUP, name=key))
    if len(points) > 1:
        packages = " and ".join(sorted(_package(point) for point in points))
        raise CannotStart(f"executor {key} is provided by {packages}", "uninstall all but one of them")
    return points[0] if points else None


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
            f"executor {key} of {_package(point)} does not accept its options: {error}",
            f"change executors.options.{key}",
        ) from error
    return executor


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
