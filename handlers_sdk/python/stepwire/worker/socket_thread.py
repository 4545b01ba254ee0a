"""The thread that owns both sockets. No handler runs on this thread, so heartbeats continue while handlers run.

The thread passes frames and outcomes of calls to the session, and the session's actions to sockets and runners.
"""

import random
import threading
from typing import Any, Final, assert_never

import zmq
from stepwire_protocol import codec
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import Item

from stepwire.actions import NEVER, CancelRun, Connect, Disconnect, Log, Quit, Rebuild, ResultTooLarge, Run, Send
from stepwire.context import Context
from stepwire.curve import CurveKeys
from stepwire.edge import Edge
from stepwire.handler import Handler
from stepwire.identity import now_ms
from stepwire.runners import run_log
from stepwire.runners.by_kind import Runners
from stepwire.runners.calls import HandlerCall
from stepwire.session import Config, Session

from .events import WorkerEvents
from .mailbox import Mailbox
from .search import BrokerSearch
from .sockets import WorkerSockets

DRAIN_MS: Final = 25_000  # time for runs to end after the worker began to stop
EXPEL_MS: Final = 2_000  # time for runs to end after a request to stop
RECEIVE_MAX: Final = 500  # frames received before actions are performed
RECEIVE_BYTES_MAX: Final = 64 * 1024  # the same in bytes: the first steps run while the next are received
POLL_MAX_MS: Final = 60_000


class SocketThread:
    """Runs a worker from its first hello until it has quit."""

    def __init__(
        self,
        config: Config,
        handlers: tuple[Handler, ...],
        zmq_context: "zmq.Context[Any] | None",
        curve_keys: CurveKeys | None = None,
        edge: Edge | None = None,
    ) -> None:
        self.worker_id = config.worker
        self._edge = edge
        # A generator of its own, so that the program's `random` is not affected. It spreads retries and makes no id.
        self.session = Session(config, random.Random().random)  # noqa: S311
        self.has_ended = threading.Event()
        self._config = config
        self._handlers = handlers
        self._shared_context = zmq_context
        self._curve_keys = curve_keys
        link_of = self.session.endpoints.link_of
        self._events = WorkerEvents(
            config.worker,
            link_of,
            is_inside_broker=zmq_context is not None,
            public_key=None if curve_keys is None else curve_keys.public,
        )
        self._search = BrokerSearch(self._events)
        self._mailbox = Mailbox()
        self._calls: dict[Item, HandlerCall] = {}
        self._expel_at_ms = self._leave_at_ms = NEVER
        self._has_quit = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="stepwire-sockets", daemon=True)

    # -- called by other threads --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end of the thread. True if it has ended. Raises RuntimeError if a fault ended the thread."""
        ended = self.has_ended.wait(timeout_s)
        if ended:
            self._thread.join()
            if self._fault is not None:
                raise RuntimeError("the worker's socket thread has failed") from self._fault
        return ended

    def quiet(self) -> None:
        self._mailbox.put_request(lambda: self.session.quiet(now_ms()))

    def drain(self, drain_ms: int) -> None:
        def drain() -> None:
            self.session.drain(now_ms())
            self._expel_at_ms = min(self._expel_at_ms, now_ms() + drain_ms)

        self._mailbox.put_request(drain)

    def report_progress(self, item: Item, done: float, total: float | None, note: str | None) -> None:
        self._mailbox.put_request(lambda: self.session.progressed(item, done, total, note, now_ms()))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        context: zmq.Context[Any] = self._shared_context or zmq.Context()
        try:
            self._runners = Runners(self._handlers, self._config.slots, self._mailbox.put_outcome)
            self._sockets = WorkerSockets(context, self.worker_id, self._config.links, self._events, self._curve_keys)
            try:
                self._work()
            finally:
                self._sockets.close()
                self._runners.stop()
            self._events.log("info", "worker_ended", unacknowledged=len(self.session.holdings))
        except BaseException as fault:
            self._events.log_failure()
            self._fault = fault
        finally:
            if context is not self._shared_context:
                context.term()
            self._mailbox.close()
            self.has_ended.set()

    def _work(self) -> None:
        session, search = self.session, self._search
        poller = zmq.Poller()
        poller.register(self._sockets.sub, zmq.POLLIN)
        poller.register(self._mailbox.fileno(), zmq.POLLIN)
        session.start(now_ms())
        config = self._config
        name, handlers = config.worker.partition(":")[0], [offer.pattern for offer in config.offers]
        self._events.log("info", "worker_started", name=name, handlers=handlers, slots=config.slots, pid=config.pid)
        self._look_for_brokers()
        while not self._has_quit:
            for action in session.actions(now_ms()):
                if isinstance(action, Run):  # nearly every action
                    self._run(action)
                else:
                    self._perform(action)
            self._runners.flush()
            self._wait(poller)
            now = now_ms()
            self._receive(now)
            self._read_mailbox()
            self._check_drain(now)
            if self._calls:
                self._runners.watch(self._calls.values(), now)
            if now >= search.report_at_ms:
                self._look_for_brokers()

    def _wait(self, poller: zmq.Poller) -> None:
        """Wait for a frame, an addition to the mailbox, or the time at which the session has to act."""
        at_ms = min(self.session.wake_at(), self._expel_at_ms, self._leave_at_ms, self._search.report_at_ms)
        if self._calls:
            at_ms = min(at_ms, self._runners.watch_at_ms())
        wait_ms = at_ms - now_ms()
        if wait_ms <= 0 or self._has_quit:
            return
        if self.session.awaits_results:
            # Results wait for others that end within this millisecond. No outcome needs to wake this thread meanwhile.
            self._sockets.sub.poll(1)
        elif self._mailbox.may_sleep():
            ready = poller.poll(int(min(wait_ms, POLL_MAX_MS)) + 1)
            self._mailbox.wake_up(any(socket == self._mailbox.fileno() for socket, _ in ready))

    def _receive(self, now: float) -> None:
        session, receive = self.session, self._sockets.sub.recv
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

    def _read_mailbox(self) -> None:
        now = now_ms()
        requests, outcomes = self._mailbox.requests, self._mailbox.outcomes
        calls, session = self._calls, self.session
        while requests:
            requests.popleft()()
        while outcomes:
            item, result = outcomes.popleft()
            calls.pop(item, None)
            if result is None:
                session.give_back(item, now)
            else:
                session.finished(item, result, now)

    def _check_drain(self, now: float) -> None:
        """After the time to drain, ask runs to stop. After EXPEL_MS, quit without waiting for them."""
        if self.session.is_draining and self._expel_at_ms == self._leave_at_ms == NEVER:
            self._expel_at_ms = now + DRAIN_MS  # a broker has ordered the worker to quit
        if now >= self._expel_at_ms:
            self._expel_at_ms = NEVER
            self._leave_at_ms = now + (EXPEL_MS if self.session.expel() else 0)
        if now >= self._leave_at_ms:
            self._has_quit = True

    # -- actions of the session ---------------------------------------------------------------------------------------

    def _perform(self, action: Send | CancelRun | Connect | Disconnect | Rebuild | ResultTooLarge | Log | Quit) -> None:
        match action:
            case Send():
                self._sockets.pub.send(action.topic + action.body, zmq.NOBLOCK)
            case CancelRun():
                self._cancel(action)
            case Connect():
                self._sockets.connect(action.link, action.server_key)
            case Disconnect():
                self._sockets.disconnect(action.link)
            case Rebuild():
                self._sockets.rebuild(action.link)
            case ResultTooLarge():
                run_log.not_reported(action.step, action.result)
            case Log():
                self._events.log(action.level, action.event, **action.facts)
                self._look_for_brokers()
            case Quit():
                self._has_quit = True
            case _:
                assert_never(action)

    def _run(self, action: Run) -> None:
        context = Context(action.step, started_ms=0.0, timeout_at_ms=NEVER, clock=now_ms, report=self.report_progress)
        edge = self._edge if action.may_need_opening else None
        call = self._calls[action.item] = HandlerCall(action, self._handlers[action.offer], context, edge)
        self._runners.submit(call)

    def _look_for_brokers(self) -> None:
        if self._shared_context is None:  # otherwise the broker is in this process
            self._search.update(self.session.endpoints.without_session(), now_ms())

    def _cancel(self, action: CancelRun) -> None:
        call = self._calls.get(action.item)
        if call is not None:
            run_log.interrupted(call.run.step, action.reason)
            call.context._stop(action.reason)
            if action.reason != "lease_lost":
                self._runners.cancel(call)
