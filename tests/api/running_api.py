"""A real broker with its API on a real socket, in a thread of its own, and a client that can send anything."""

import asyncio
import http.client
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stepwire_broker.api import listening, token
from stepwire_broker.api.limits import HttpLimits
from stepwire_broker.api.server import Server
from stepwire_broker.core.answers import answers
from stepwire_broker.core.definitions.settings import (
    BrokerSettings,
    BusSettings,
    HttpSettings,
    LimitSettings,
    Settings,
)
from stepwire_broker.core.model.events import Command
from stepwire_broker.engine import Engine
from stepwire_broker.executors.registry import Executors

from tests.postgres.databases import database_in

T = TypeVar("T")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        code: str = self.json["code"]
        return code


class ObservedBroker(Engine):
    """The broker. For refusals that are hard to provoke, the test sets the next answer."""

    next_answer: answers.Answer | None = None
    heard: deque[str]
    reasons: list[str] | None = None

    async def ask(self, make: Callable[[int], Command]) -> answers.Answer:
        self.heard.append("ask")
        answer, self.next_answer = self.next_answer, None
        return await super().ask(make) if answer is None else answer

    async def read(self, query: Callable[..., T], *args: Any) -> T:
        self.heard.append("read")
        return await super().read(query, *args)

    async def scan(self, query: Callable[..., T], *args: Any) -> T:
        self.heard.append("scan")
        return await super().scan(query, *args)

    def readiness(self) -> list[str]:
        return super().readiness() if self.reasons is None else self.reasons


class Api(NamedTuple):
    """One running API. `call` sends what a good client sends, unless the test says otherwise."""

    port: int
    token: str
    tokens: token.Tokens
    broker: ObservedBroker
    loop: asyncio.AbstractEventLoop
    server: Server

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str | None] | None = None,
    ) -> Answer:
        """Send a request. A header that is None is left out. Bytes are sent unchanged, other bodies as JSON."""
        said: dict[str, str | None] = {"Authorization": f"Bearer {self.token}"}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            said["Content-Type"] = "application/json"
        said |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host="Host" in said)
            for name, value in said.items():
                if value is not None:
                    connection.putheader(name, value)
            if data is not None and "Content-Length" not in said and "Transfer-Encoding" not in said:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Call a function in the broker's own thread."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(20)


@contextmanager
def running(directory: Path, settings: Settings, limits: HttpLimits | None = None) -> Iterator[Api]:
    started = threading.Event()
    stop: list[Callable[[], None]] = []
    found: list[Api | BaseException] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        executors = Executors(settings)
        executors.configure()
        broker = ObservedBroker(settings, companion=executors)
        broker.heard = deque(maxlen=100)
        await broker.start()
        if Path(settings.http.socket).is_absolute():
            listeners = listening.listen_everywhere(settings.http)
        else:  # the default would be a file of the tests' working directory
            listeners = listening.Listeners(
                listening.listen(settings.http),
                certificates=listening.certificates_of(settings.http),
                jwt=listening.open_jwt(settings.http),
            )
        tokens = token.open_tokens(str(token_file))
        server = Server(broker, tokens, listeners, limits)
        await server.start()
        found.append(Api(listeners.sockets[0].getsockname()[1], TOKEN, tokens, broker, loop, server))
        started.set()
        await ended.wait()
        await server.stop()
        await broker.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found.insert(0, error)
            started.set()

    token_file = directory / "tokens"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    if isinstance(found[0], BaseException):
        thread.join(20)
        raise found[0]
    try:
        yield found[0]
    finally:
        stop[0]()
        thread.join(20)
        assert not thread.is_alive()
        if isinstance(found[0], BaseException):
            raise found[0]


TOKEN = "t" * 43


def settings_in(directory: Path) -> Settings:
    return Settings(
        broker=BrokerSettings(id="b1", drain_timeout_ms=0),
        database=database_in(directory),
        bus=BusSettings(steps=f"ipc://{directory}/steps.sock", results=f"ipc://{directory}/results.sock"),
        http=HttpSettings(listen="127.0.0.1:0", hosts=("stepwire.example",)),
        limits=LimitSettings(payload_bytes=100_000, tasks_per_batch=1000),
    )


WORKFLOW = {
    "name": "order",
    "version": "1",
    "steps": [
        {"name": "reserve", "handler_class": "shop.reserve"},
        {"name": "charge", "handler_class": "shop.charge", "depends_on": ["reserve"], "delivery_mode": "at_most_once"},
    ],
}
