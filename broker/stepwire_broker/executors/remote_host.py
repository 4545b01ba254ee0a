"""Runs an executor outside of the broker, as a worker on the bus: the same session and rules, over sockets.

The program of `stepwire exec-worker` is such a worker. It may run under another user than the broker, with its own key.
A program that it started outlives a kill of this process, so the worker sends `proof: false`: after its death the
broker waits for the end of the lease.
"""

import asyncio
import random
from typing import Any, Final

import zmq
from msgspec import structs
from stepwire import curve, environment, identity
from stepwire.actions import Action, Connect, Disconnect, Link, Log, Rebuild
from stepwire.identity import now_ms
from stepwire.session import Config, Session
from stepwire.worker.events import WorkerEvents
from stepwire.worker.search import BrokerSearch
from stepwire.worker.sockets import WorkerSockets
from stepwire_protocol import codec
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import StepRequest

from stepwire_broker.core.definitions.settings import BusSettings

from .contract import Executor
from .host import Host

RECEIVE_MAX: Final = 500  # frames received before other work of the loop continues


class RemoteHost(Host):
    """Hosts one executor: `prepare`, `connect`, `drain`, `close`, in this order, on one loop."""

    def __init__(
        self,
        key: str,
        executor: Executor,
        bus: BusSettings,
        links: tuple[Link, ...],
        *,
        name: str,
        labels: dict[str, str],
        keys: curve.CurveKeys | None,
    ) -> None:
        super().__init__(key, executor)
        self._bus = bus
        self._links = links
        self._labels = labels
        self._keys = keys
        self.worker = identity.new_worker_id(environment.check_name(name))

    def connect(self) -> None:
        """Connect to the brokers, which can then dispatch steps."""
        self._loop = asyncio.get_running_loop()
        self._session = session = Session(self._config(), random.Random().random)  # noqa: S311 - spreads retries; no id
        public_key = None if self._keys is None else self._keys.public
        link_of = session.endpoints.link_of
        self._events = WorkerEvents(self.worker, link_of, is_inside_broker=False, public_key=public_key)
        self._search = BrokerSearch(self._events)
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets = WorkerSockets(self._context, self.worker, self._links, self._events, self._keys)
        self._loop.add_reader(self._sockets.sub.fileno(), self._receive_frames)
        self._detach = self._disconnect
        session.start(now_ms())
        self._search.update(session.endpoints.without_session(), now_ms())
        self._receive_frames()

    async def ended(self) -> None:
        """Return when the session has ended: after `drain`, or because a broker ordered the worker to quit."""
        await self._has_quit.wait()

    def _disconnect(self) -> None:
        self._loop.remove_reader(self._sockets.sub.fileno())
        self._sockets.close()
        self._context.term()  # waits for the last messages, at most for their linger time

    def _config(self) -> Config:
        process = identity.this_process()
        return structs.replace(
            super()._config(),
            links=self._links,
            labels=self._labels,
            curve=self._keys is not None,
            sdk="stepwire-exec-worker",
            host=process.host,
            pid=process.pid,
            pid_started=process.pid_started,
            proof=False,
        )

    def _receive_frames(self) -> None:
        """Read until nothing is left: the socket's descriptor reports only changes."""
        if self._is_closed:
            return
        now = now_ms()
        for _ in range(RECEIVE_MAX):
            try:
                topic, body = codec.split(self._sockets.sub.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except InvalidMessage:
                continue
            self._session.receive(topic, body, now)
        else:
            self._loop.call_soon(self._receive_frames)
        self._turn_soon()

    def _turn(self) -> None:
        super()._turn()
        if not self._is_closed and now_ms() >= self._search.report_at_ms:
            self._search.update(self._session.endpoints.without_session(), now_ms())

    def _send(self, topic: bytes, body: bytes) -> None:
        self._sockets.pub.send(topic + body, zmq.NOBLOCK)

    def _perform(self, action: Action) -> None:
        match action:
            case Log(level, event, facts):
                self._events.log(level, event, **facts)
                self._search.update(self._session.endpoints.without_session(), now_ms())
                return
            case Connect(link, server_key):
                self._sockets.connect(link, server_key)
            case Disconnect(link):
                self._sockets.disconnect(link)
            case Rebuild(link):
                self._sockets.rebuild(link)
            case _:
                return  # a result that is too large: the task has the failure
        self._loop.call_soon(self._receive_frames)  # such a call may have consumed the report of a frame

    def _wake_at(self) -> float:
        return min(self._session.wake_at(), self._search.report_at_ms)

    def _path(self, request: StepRequest) -> str:
        return request.step_name  # the path is not part of a request
