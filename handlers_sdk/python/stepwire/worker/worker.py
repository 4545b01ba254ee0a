"""The `Worker` class for programs: configuration, handlers, signals, start and stop."""

import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

import zmq
from stepwire_protocol import limits

from stepwire import curve, environment, identity, logs
from stepwire.edge import Edge
from stepwire.errors import ConfigurationError
from stepwire.handler import Handler, make_handler
from stepwire.runners.processes import children_die_with_us
from stepwire.secret_values import SecretResolver
from stepwire.session import Config

from .socket_thread import DRAIN_MS, SocketThread

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

ACCEPT_DELAY_MS: Final = 5
SWITCH_INTERVAL_S: Final = 0.0005  # the longest time for which a computing handler delays heartbeats
COLLECT_AFTER: Final = 10_000  # objects; at Python's 700, the collector takes a fifth of a busy worker's time


def _without_own_frames(function: Callable[P, R]) -> Callable[P, R]:
    """The traceback of a ConfigurationError ends at the program's own line: the sentence says what to do there."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ConfigurationError as error:
            raise error.with_traceback(None) from None

    return checked


class Worker:
    """Offers handlers to the brokers at the given endpoints.

    `slots` is the number of steps that run at a time. Further steps wait in the worker: as many as it is observed to
    finish in 40 ms, at least `prefetch`. With `prefetch=0`, no step waits here.

    `handler_version` is the release of the program's handlers, at most 64 characters; operators see it.

    `curve_server_key` is the CURVE key of the brokers, `curve_public_key` and `curve_secret_key` are those of this
    worker: all three, or none for connections without encryption. With CURVE, `name` is the name of the key.

    `secrets` resolves references like `{"$secret": "stripe/live"}` in a step's configuration and input: a directory of
    files, or a function from the name to the value. `seal_keys_file` has the keys of sealed payloads.

    For several brokers, `steps` and `results` are lists, with one pair for each broker. `context` is the ZeroMQ context
    of a broker in this process, for `inproc://`. The worker gets its id and connects in `run` or `start`, not before.
    """

    @_without_own_frames
    def __init__(
        self,
        *,
        steps: str | list[str] = environment.STEPS_DEFAULT,
        results: str | list[str] = environment.RESULTS_DEFAULT,
        name: str | None = None,
        slots: int = environment.SLOTS_DEFAULT,
        prefetch: int | None = None,
        labels: dict[str, str] | None = None,
        handler_version: str = "",
        curve_server_key: str | None = None,
        curve_public_key: str | None = None,
        curve_secret_key: str | None = None,
        secrets: str | SecretResolver | None = None,
        seal_keys_file: str | None = None,
        heartbeat_ms: int = limits.HEARTBEAT_MS,
        context: "zmq.Context[Any] | None" = None,
    ) -> None:
        if prefetch is not None and prefetch < 0:
            raise ConfigurationError(f"prefetch is {prefetch}: it needs to be 0 or more")
        if not 50 <= heartbeat_ms <= limits.LEASE_MS // 2:
            raise ConfigurationError(f"heartbeat_ms is {heartbeat_ms}: it needs to be 50 to {limits.LEASE_MS // 2}")
        self._links = environment.links(_as_list(steps), _as_list(results), context is not None)
        self._name = environment.check_name(name or _default_name())
        self._slots = environment.check_slots(slots)
        self._prefetch = prefetch
        self._labels = dict(labels or {})
        self._curve = curve.keys(curve_server_key, curve_public_key, curve_secret_key)
        self._edge = Edge(secrets, seal_keys_file)
        self._handler_version = environment.check_handler_version(handler_version)
        self._heartbeat_ms = heartbeat_ms
        self._zmq_context = context
        self._handlers: list[Handler] = []
        self._given_id: str | None = None  # set by a broker in this process, which must know the id beforehand
        self._thread: SocketThread | None = None
        self._thread_pid = 0

    @classmethod
    @_without_own_frames
    def from_env(cls, **changes: Any) -> "Worker":
        """A worker configured by STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_NAME, STEPWIRE_SLOTS, STEPWIRE_LABELS,
        STEPWIRE_HANDLER_VERSION, STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY, STEPWIRE_CURVE_SECRET_KEY (or
        STEPWIRE_CURVE_FILE), STEPWIRE_SECRETS_DIR, STEPWIRE_SEAL_KEYS_FILE.

        `changes` are arguments of `Worker`, and override the environment.
        """
        return cls(**environment.read()._asdict() | changes)

    def handler(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        timeout_ms: int | None = None,
        process: bool = False,
        shadow_safe: bool = False,
        version: str | None = None,
    ) -> Callable[[F], F]:
        """Register a function for a handler_class, or for a pattern (`Billing::**`).

        Async functions run on one event loop, plain functions in threads, or with `process=True` in child processes.
        `concurrency` is the maximum number of runs of this handler at a time; `timeout_ms` shortens the step's timeout.
        """
        if callable(name):
            function_name = getattr(name, "__name__", "name")
            raise ConfigurationError(f'write @worker.handler("{function_name}"): the handler\'s name is missing')

        @_without_own_frames
        def register(function: F) -> F:
            self.add(
                make_handler(
                    function,
                    name,
                    concurrency=concurrency,
                    timeout_ms=timeout_ms,
                    process=process,
                    shadow_safe=shadow_safe,
                    version=version,
                )
            )
            return function

        return register

    @_without_own_frames
    def add(self, handler: Handler) -> None:
        """Register a handler from `make_handler`."""
        if self._thread is not None:
            raise ConfigurationError(
                f"handler {handler.name!r} is registered too late: register handlers before the worker starts"
            )
        if any(known.name == handler.name for known in self._handlers):
            raise ConfigurationError(f"handler {handler.name!r} is registered twice in this worker")
        if len(self._handlers) >= limits.HANDLERS_MAX:
            raise ConfigurationError(f"more than {limits.HANDLERS_MAX} handlers: register a pattern instead")
        self._handlers.append(handler)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @property
    def id(self) -> str | None:
        """The worker id of this process; None before the start, and in a forked child."""
        thread = self._thread
        return thread.worker_id if thread is not None and self._thread_pid == os.getpid() else None

    # -- life ---------------------------------------------------------------------------------------------------------

    @_without_own_frames
    def run(self) -> None:
        """Run until a signal ends the worker. TERM and INT drain; a second INT exits at once. After TSTP the worker
        accepts no new steps. Signals are handled only in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            self.start()
            self.wait()
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)}
        interrupts = 0

        def on_signal(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            if number == signal.SIGTSTP:
                self.quiet()
                return
            if number == signal.SIGINT:
                interrupts += 1
                if interrupts > 1:
                    os._exit(130)
            self.drain()

        try:
            for number in before:
                signal.signal(number, on_signal)
            _collect_seldom()
            self.start()
            self.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @_without_own_frames
    def start(self) -> None:
        """Connect, and run in the background."""
        if not self._handlers:
            raise ConfigurationError("the worker has no handlers: register some with @worker.handler(...)")
        if self._thread is not None and self._thread_pid == os.getpid() and not self._thread.has_ended.is_set():
            raise ConfigurationError("the worker has started already")
        logs.set_up()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        process = identity.this_process()
        config = Config(
            worker=self._given_id or identity.new_worker_id(self._name),
            offers=tuple(handler.offer for handler in self._handlers),
            slots=self._slots,
            prefetch=self._prefetch,
            labels=self._labels,
            links=self._links,
            curve=self._curve is not None,
            heartbeat_ms=self._heartbeat_ms,
            accept_delay_ms=ACCEPT_DELAY_MS,
            sdk=f"stepwire-python/{_version()}",
            handler_version=self._handler_version,
            host=process.host,
            pid=process.pid,
            pid_started=process.pid_started,
            proof=process.is_provable and children_die_with_us(),
        )
        self._thread = SocketThread(config, tuple(self._handlers), self._zmq_context, self._curve, self._edge)
        self._thread_pid = os.getpid()
        self._thread.start()

    def quiet(self) -> None:
        """Accept no new steps, finish the steps that are held, and stay connected."""
        if self._thread is not None:
            self._thread.quiet()

    def drain(self, drain_ms: int = DRAIN_MS) -> None:
        """Begin to stop: return steps that have not started, let runs finish for at most `drain_ms`, then end."""
        if self._thread is not None:
            self._thread.drain(drain_ms)

    def stop(self, drain_ms: int = DRAIN_MS) -> None:
        """Drain, and wait for the end."""
        self.drain(drain_ms)
        self.wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the worker. True if it has ended. Raises RuntimeError if a fault of the SDK ended it."""
        return True if self._thread is None else self._thread.wait(timeout_s)


def _collect_seldom() -> None:
    """Run the cyclic collector rarely: the process belongs to the worker, and short runs leave almost no cycles."""
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # 0: the program has switched the collector off
        gc.set_threshold(max(young, COLLECT_AFTER), *older)


def _as_list(endpoints: str | list[str]) -> list[str]:
    return [endpoints] if isinstance(endpoints, str) else list(endpoints)


def _default_name() -> str:
    """The program's name, so that logs and lists of workers show which program runs."""
    stem = Path(sys.argv[0] or "worker").stem
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)[:48]
    return name.strip("-") or "worker"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stepwire")
    except PackageNotFoundError:
        return "0"
