"""A real broker with its API on a real socket, in a thread of its own, and a client that can send anything."""

import asyncio
import http.client
import json
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs
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

from tests.postgres.databases import OWNER, database_in, give_lane

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


# With a second broker: the calls that are sent to it, because a new task belongs to the broker that it is sent to, and
# a worker over HTTP has its session at one broker, which sends it the steps of its own lanes.
OF_OWNER: Final = re.compile(r"POST /v1/(tasks(/batch)?|worker/.*)([?].*)?$")
BROKER_LEASE_MS: Final = 2_000

# The tests of what is each broker's own by design: the broker that they ask owns its tasks, and no second broker runs.
# docs/explanation/brokers.md describes the same list to users.
OWN: Final = {
    "test_polling.py": "a worker over HTTP has its session, its lease and its deliveries at one broker",
    "test_polling_brokers.py": "the test makes other brokers up, and asks the one that has the session",
    "test_forged_frames.py": "frames go to the sockets of one broker, which counts and refuses them",
    "test_metrics.py": "/metrics has the figures of the broker that answers",
    "test_quotas.py": "/metrics has the figures of the broker that answers, and `steps_per_s` counts at each broker",
    "test_limits.py": "connections, requests and followers are limited at each broker",
    "test_attempts.py::test_progress_is_shown_with_the_running_step_and_its_worker_until_the_run_ends": (
        "lists of steps and of workers show the progress that the broker itself has received"
    ),
    "test_attempts.py::test_a_stream_that_asks_for_progress_gets_it_and_no_other_stream_does": (
        "reports of progress are not stored, so they are streamed by the broker that receives them"
    ),
}


def owner_for_test() -> str | None:
    """The broker that owns the lanes for the test that runs now, if that is another one than the test asks."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("/")[2].partition(" ")[0].partition("[")[0]
    return None if test in OWN or test.partition("::")[0] in OWN else OWNER


class Api(NamedTuple):
    """One running API. `call` sends what a good client sends, unless the test says otherwise.

    If a second broker runs, new tasks are sent to that broker, and all other calls to this one.
    """

    port: int
    token: str
    tokens: token.Tokens
    broker: ObservedBroker
    loop: asyncio.AbstractEventLoop
    server: Server
    owner_port: int

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
        is_of_owner = OF_OWNER.match(f"{method} {path}") and self.broker.next_answer is None
        port = self.owner_port if is_of_owner else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
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
def running(
    directory: Path, settings: Settings, limits: HttpLimits | None = None, *, owner_id: str | None = None
) -> Iterator[Api]:
    """Run a broker with its API. `owner_id`: run a second broker, which owns the lane of every new task."""
    owner_id = owner_id or owner_for_test()
    started = threading.Event()
    stop: list[Callable[[], None]] = []
    found: list[Api | BaseException] = []

    async def serve() -> None:
        nonlocal settings
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        owner = None
        if owner_id is not None:
            owner = await _start_owner(owner_id, settings, str(token_file), limits)
        if owner is not None:
            lease = structs.replace(settings.broker, lease_ms=BROKER_LEASE_MS)
            settings = structs.replace(settings, broker=lease)
        executors = Executors(settings)
        executors.configure()
        broker = ObservedBroker(settings, companion=executors)
        broker.heard = deque(maxlen=100)
        await broker.start()
        if owner is not None:
            give_lane(settings.database, min(owner.broker.state.lanes), broker.broker_id)
            while not (broker.state.lanes and len(owner.broker.state.lanes) < settings.database.lanes):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
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
        port = listeners.sockets[0].getsockname()[1]
        found.append(Api(port, TOKEN, tokens, broker, loop, server, port if owner is None else owner.port))
        started.set()
        await ended.wait()
        await server.stop()
        await broker.stop()
        if owner is not None:
            await owner.server.stop()
            await owner.broker.stop()

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


class Owner(NamedTuple):
    """The broker that owns the lanes, if that is another one than the tests ask."""

    broker: Engine
    server: Server
    port: int


async def _start_owner(owner_id: str, settings: Settings, token_file: str, limits: HttpLimits | None) -> Owner:
    of_owner = structs.replace(
        settings,
        broker=structs.replace(settings.broker, id=owner_id, lease_ms=BROKER_LEASE_MS),
        bus=structs.replace(settings.bus, steps=of_owner_bus(settings).steps, results=of_owner_bus(settings).results),
        http=structs.replace(settings.http, listen="127.0.0.1:0", socket=""),
        executors=settings.executors,
    )
    executors = Executors(of_owner)
    executors.configure()
    broker = Engine(of_owner, companion=executors)
    await broker.start()
    assert broker.state.lanes, "the owner of the lanes starts first"
    listeners = listening.Listeners(
        listening.listen(of_owner.http),
        certificates=listening.certificates_of(of_owner.http),
        jwt=listening.open_jwt(of_owner.http),
    )
    server = Server(broker, token.open_tokens(token_file), listeners, limits)
    await server.start()
    return Owner(broker, server, listeners.sockets[0].getsockname()[1])


class Endpoints(NamedTuple):
    steps: str
    results: str


def of_owner_bus(settings: Settings) -> Endpoints:
    """The bus of the broker that owns the lanes."""
    assert isinstance(settings.bus.steps, str)
    assert isinstance(settings.bus.results, str)
    return Endpoints(settings.bus.steps + ".owner", settings.bus.results + ".owner")


def endpoints(settings: Settings) -> tuple[list[str], list[str]]:
    """Where a worker connects: to every broker."""
    if owner_for_test() is None:
        return [str(settings.bus.steps)], [str(settings.bus.results)]
    owner = of_owner_bus(settings)
    return [str(settings.bus.steps), owner.steps], [str(settings.bus.results), owner.results]


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
