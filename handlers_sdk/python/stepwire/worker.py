"""The worker: one thread owns both sockets and never blocks; handlers run elsewhere; the session decides everything.

The socket thread only carries: frames to the session, the session's orders to sockets and handlers, outcomes back.
So heartbeats go on whatever a handler does.
"""

import gc
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import zmq
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import Item, Result

from . import environment, identity
from .actions import CancelRun, Connect, Link, Log, Quit, Rebuild, Run, Send
from .context import Context
from .errors import ConfigurationError
from .handler import Handler, make_handler
from .identity import now_ms
from .processes import Lane, children_die_with_us
from .runners import Call, Loop, Threads, run_plain
from .session import Config, Session

log: Final = logging.getLogger("stepwire.worker")

F = TypeVar("F", bound=Callable[..., Any])

DRAIN_MS: Final = 25_000
EXPEL_MS: Final = 2_000  # how long runs that were asked to stop may take to say so
RECEIVE_MAX: Final = 500  # frames in one round
RECEIVE_BYTES_MAX: Final = 64 * 1024  # and so many bytes: the first steps run while the next are read
ACCEPT_DELAY_MS: Final = 5
SWITCH_INTERVAL_S: Final = 0.0005  # how long a computing handler may keep the socket thread from its heartbeats
COLLECT_AFTER: Final = 10_000  # objects; at Python's 700 a fifth of a busy worker's time is the collector's
LINGER_MS: Final = 2_000
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Worker:
    """Offers handlers to the brokers at the given endpoints.

    With several brokers `steps` and `results` are lists, one pair a broker. `context` is a broker's own ZeroMQ context,
    for `inproc://`. Nothing is connected, and the process has no worker id, before `run` or `start`.
    """

    def __init__(
        self,
        *,
        steps: str | list[str] = environment.STEPS_DEFAULT,
        results: str | list[str] = environment.RESULTS_DEFAULT,
        name: str | None = None,
        slots: int = environment.SLOTS_DEFAULT,
        prefetch: int | None = None,
        labels: dict[str, str] | None = None,
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
        self._heartbeat_ms = heartbeat_ms
        self._zmq_context = context
        self._handlers: list[Handler] = []
        self._given_id: str | None = None  # by the broker in whose process this is, which has to know it before
        self._shell: _Shell | None = None
        self._shell_pid = 0

    @classmethod
    def from_env(cls, **changes: Any) -> "Worker":
        """Reads STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_NAME, STEPWIRE_SLOTS and STEPWIRE_LABELS."""
        found = environment.read()
        settings: dict[str, Any] = {
            "steps": found.steps,
            "results": found.results,
            "name": found.name,
            "slots": found.slots,
            "labels": found.labels,
        }
        return cls(**settings | changes)

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
        """Register a function for a handler_class, or for a pattern of them (`Billing::**`).

        Async functions run on one event loop, plain ones in threads, with `process=True` in processes of their own.
        `concurrency` bounds this handler's runs at a time, `timeout_ms` shortens the step's own time-out.
        """

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

    def add(self, handler: Handler) -> None:
        if self._shell is not None:
            raise ConfigurationError(f"handler {handler.name!r} comes too late: the worker has started")
        if any(known.name == handler.name for known in self._handlers):
            raise ConfigurationError(f"handler {handler.name!r} is registered twice in this worker")
        if len(self._handlers) >= limits.HANDLERS_MAX:
            raise ConfigurationError(f"more than {limits.HANDLERS_MAX} handlers: offer a pattern instead")
        self._handlers.append(handler)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @property
    def id(self) -> str | None:
        """This process's worker id; None before the start and in a forked child."""
        shell = self._shell
        return shell.worker_id if shell is not None and self._shell_pid == os.getpid() else None

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to stop. TERM and INT drain; a second INT leaves at once; TSTP takes nothing new.

        Signals are only handled when this is the main thread.
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

    def start(self) -> None:
        """Connect and work in the background."""
        if not self._handlers:
            raise ConfigurationError("the worker has no handlers: register some with @worker.handler(...)")
        if self._shell is not None and self._shell_pid == os.getpid() and not self._shell.has_ended.is_set():
            raise ConfigurationError("the worker has started already")
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        process = identity.this_process()
        config = Config(
            worker=self._given_id or identity.new_worker_id(self._name),
            offers=tuple(handler.offer for handler in self._handlers),
            slots=self._slots,
            prefetch=self._prefetch,
            labels=self._labels,
            links=self._links,
            heartbeat_ms=self._heartbeat_ms,
            accept_delay_ms=ACCEPT_DELAY_MS,
            sdk=f"stepwire-python/{_version()}",
            host=process.host,
            pid=process.pid,
            pid_started=process.pid_started,
            proof=process.is_provable and children_die_with_us(),
        )
        self._shell = _Shell(config, tuple(self._handlers), self._zmq_context)
        self._shell_pid = os.getpid()
        self._shell.start()

    def quiet(self) -> None:
        """Take nothing new, finish what is here, stay."""
        self._tell(lambda shell: shell.session.quiet(now_ms()))

    def drain(self, drain_ms: int = DRAIN_MS) -> None:
        """Begin to stop: give back what has not started, finish what runs for at most `drain_ms`, then leave."""
        self._tell(lambda shell: shell.drain(drain_ms))

    def stop(self, drain_ms: int = DRAIN_MS) -> None:
        """Drain and wait for the end."""
        if self._shell is not None:
            self.drain(drain_ms)
            self.wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; raises what ended it, if that was a fault of the SDK."""
        if self._shell is None:
            return True
        return self._shell.wait(timeout_s)

    def _tell(self, order: "Callable[[_Shell], None]") -> None:
        if self._shell is not None:
            self._shell.post(order)


def _collect_seldom() -> None:
    """This process is the worker's: what it is made of stays, and short runs leave nothing for the cyclic collector."""
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # 0: the program has turned it off
        gc.set_threshold(max(young, COLLECT_AFTER), *older)


class _Shell:
    """The thread with the sockets."""

    def __init__(self, config: Config, handlers: tuple[Handler, ...], zmq_context: "zmq.Context[Any] | None") -> None:
        self.worker_id = config.worker
        self.session = Session(config, random.Random().random)  # the program's own `random` is not ours to draw from
        self.has_ended = threading.Event()
        self._config = config
        self._handlers = handlers
        self._shared_context = zmq_context
        self._fault: BaseException | None = None
        self._calls: dict[Item, Call] = {}
        self._outcomes: deque[tuple[Item, Result | None]] = deque()
        self._orders: deque[Callable[[_Shell], None]] = deque()
        self._is_woken = False
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._expel_at = self._leave_at = float("inf")
        self._has_quit = False
        self._thread = threading.Thread(target=self._main, name="stepwire-sockets", daemon=True)
        self._loop: Loop | None = None
        self._threads: Threads | None = None
        self._lanes: Threads | None = None
        self._processes: _Lanes | None = None
        self._async_calls: list[Call] = []
        self._act: dict[type, Callable[[Any], None]] = {
            Send: self._send,
            Run: self._run,
            CancelRun: self._cancel,
            Connect: self._connect,
            Rebuild: self._rebuild,
            Quit: self._quit,
            Log: self._log,
        }

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        ended = self.has_ended.wait(timeout_s)
        if ended:
            self._thread.join()
            if self._fault is not None:
                raise RuntimeError("the worker's socket thread has failed") from self._fault
        return ended

    # -- called by any thread -----------------------------------------------------------------------------------------

    def post(self, order: "Callable[[_Shell], None]") -> None:
        self._orders.append(order)
        self._wake()

    def report(self, item: Item, result: Result | None) -> None:
        self._outcomes.append((item, result))
        self._wake()

    def report_many(self, outcomes: list[tuple[Item, Result | None]]) -> None:
        self._outcomes.extend(outcomes)
        self._wake()

    def progress(self, item: Item, done: float, total: float | None, note: str | None) -> None:
        self.post(lambda shell: shell.session.progressed(item, done, total, note, now_ms()))

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            try:
                self._theirs.send(b"\0")
            except OSError:
                pass  # the thread has ended, or its pipe is full of wake-ups already

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        context: zmq.Context[Any] = self._shared_context or zmq.Context()
        try:
            self._open(context)
            try:
                self._work()
            finally:
                self._close()
        except BaseException as fault:
            log.exception("worker_failed", extra={"worker": self.worker_id})
            self._fault = fault
        finally:
            if context is not self._shared_context:
                context.term()
            self._ours.close()
            self._theirs.close()
            self.has_ended.set()

    def _work(self) -> None:
        session = self.session
        poller = zmq.Poller()
        poller.register(self._sub, zmq.POLLIN)
        poller.register(self._ours.fileno(), zmq.POLLIN)
        session.start(now_ms())
        while not self._has_quit:
            for action in session.actions(now_ms()):
                self._act[type(action)](action)
            if self._async_calls:
                calls, self._async_calls = self._async_calls, []
                assert self._loop is not None
                self._loop.submit(calls)
            if not self._is_woken:
                left_ms = min(session.wake_at(), self._expel_at, self._leave_at) - now_ms()
                if left_ms > 0:
                    poller.poll(int(min(left_ms, 60_000)) + 1)
            self._hear()

    def _hear(self) -> None:
        session, receive = self.session, self._sub.recv
        now = now_ms()
        left_bytes = RECEIVE_BYTES_MAX
        for _ in range(RECEIVE_MAX):
            if left_bytes <= 0:
                break
            try:
                frame = receive(zmq.NOBLOCK)
            except zmq.Again:
                break
            left_bytes -= len(frame)
            try:
                topic, body = codec.split(frame)
            except InvalidMessage:
                continue
            session.receive(topic, body, now)
        if self._is_woken:
            self._take_outcomes()
        if now >= self._expel_at:
            self._expel_at = float("inf")
            self._leave_at = now + (EXPEL_MS if session.expel() else 0)
        if now >= self._leave_at:
            self._has_quit = True

    def _take_outcomes(self) -> None:
        try:
            self._ours.recv(4096)
        except BlockingIOError:
            pass
        self._is_woken = False  # before looking: what is appended from here on wakes us again
        now = now_ms()
        while self._orders:
            self._orders.popleft()(self)
        outcomes, calls, session = self._outcomes, self._calls, self.session
        while outcomes:
            item, result = outcomes.popleft()
            calls.pop(item, None)
            if result is None:
                session.give_back(item, now)
            else:
                session.finished(item, result, now)

    def drain(self, drain_ms: int) -> None:
        self.session.drain(now_ms())
        self._expel_at = min(self._expel_at, now_ms() + drain_ms)

    # -- orders of the session ----------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        self._pub.send(action.topic + action.body, zmq.NOBLOCK)

    def _run(self, action: Run) -> None:
        handler = self._handlers[action.offer]
        context = Context(
            action.step,
            started_ms=action.started_ms,
            timeout_at_ms=action.timeout_at_ms,
            clock=now_ms,
            report=self.progress,
        )
        call = self._calls[action.item] = Call(action, handler, context)
        if handler.kind == "async":
            self._async_calls.append(call)
        elif handler.kind == "thread":
            assert self._threads is not None
            self._threads.submit(call)
        else:
            assert self._lanes is not None
            self._lanes.submit(call)

    def _cancel(self, action: CancelRun) -> None:
        call = self._calls.get(action.item)
        if call is not None:
            call.context._stop(action.reason)
            if action.reason != "lease_lost" and self._loop is not None and call.handler.kind == "async":
                self._loop.cancel(call)

    def _connect(self, action: Connect) -> None:
        self._join(action.link)

    def _rebuild(self, action: Rebuild) -> None:
        for sock, endpoint in ((self._sub, action.link.steps), (self._pub, action.link.results)):
            try:
                sock.disconnect(endpoint)
            except zmq.ZMQError:
                pass  # libzmq had given it up already
        self._join(action.link)

    def _quit(self, _action: Quit) -> None:
        self._has_quit = True

    def _log(self, action: Log) -> None:
        log.log(_LEVELS[action.level], "%s %s", action.event, action.facts, extra={"worker": self.worker_id})

    # -- sockets ------------------------------------------------------------------------------------------------------

    def _open(self, context: "zmq.Context[Any]") -> None:
        kinds = {handler.kind for handler in self._handlers}
        if "async" in kinds:
            self._loop = Loop("stepwire-async", self.report_many)
        if "thread" in kinds:
            self._threads = Threads(self._config.slots, "stepwire-handler", self.report, run_plain)
        if "process" in kinds:
            self._processes = _Lanes()
            self._lanes = Threads(self._config.slots, "stepwire-process", self.report, self._processes.perform)
        self._sub: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self._pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        for sock in (self._sub, self._pub):
            sock.linger = 0
            sock.immediate = 0
            sock.tcp_keepalive = 1
            sock.tcp_keepalive_idle = 15
            sock.tcp_keepalive_intvl = 5
            sock.tcp_keepalive_cnt = 3
            sock.reconnect_ivl = 100
            sock.reconnect_ivl_max = 1000
            sock.handshake_ivl = 5000
            sock.ipv6 = True
        self._sub.rcvhwm = 0  # the credit bounds it, and a finite one can abort the process
        self._sub.maxmsgsize = limits.FRAME_BYTES_MAX
        self._pub.sndhwm = 10_000
        self._pub.maxmsgsize = 64 * 1024
        self._pub.tcp_maxrt = 20_000
        self._sub.subscribe(topics.to_worker(self.worker_id))
        self._sub.subscribe(topics.BROKERS)
        for link in self._config.links:
            self._join(link)

    def _join(self, link: Link) -> None:
        for sock, endpoint in ((self._sub, link.steps), (self._pub, link.results)):
            try:
                sock.connect(endpoint)
            except zmq.ZMQError as error:
                facts = {"endpoint": endpoint, "error": str(error)}
                log.error("connect_failed %s", facts, extra={"worker": self.worker_id})

    def _close(self) -> None:
        self._sub.close()
        self._pub.linger = LINGER_MS
        self._pub.close()
        if self._loop is not None:
            self._loop.stop(0.5)
        for threads in (self._threads, self._lanes):
            if threads is not None:
                threads.stop(0.5)
        if self._processes is not None:
            self._processes.kill()


class _Lanes:
    """A lane for each thread that asks."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[Lane] = []

    def kill(self) -> None:
        """None of them is to be left, in a program that goes on without the worker."""
        for lane in self._all:
            lane.kill()

    def perform(self, call: Call) -> Result | None:
        lane: Lane | None = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = Lane()
            self._all.append(lane)
        return lane.perform(call)


def _as_list(endpoints: str | list[str]) -> list[str]:
    return [endpoints] if isinstance(endpoints, str) else list(endpoints)


def _default_name() -> str:
    """The program's name, so that a log or a list of workers says which program it was."""
    stem = Path(sys.argv[0] or "worker").stem
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)[:48]
    return name.strip("-") or "worker"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stepwire")
    except PackageNotFoundError:
        return "0"
