"""The live wire for whoever debugs: every bus message, as server-sent events. It never slows the bus down.

The broker calls back for each message; the callback only appends to a bounded queue. What a client is too slow for is
dropped and counted, and the client is told how much it missed.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from stepwire_broker.timestamps import rfc3339

from .engine_port import EnginePort
from .http import HttpCall
from .http_problems import HttpProblem, not_found
from .replies import Stream, encode

QUEUE_MAX: Final = 2000  # messages that one client may be behind
QUEUE_BYTES_MAX: Final = 8 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 4096  # of one message
CLIENTS_MAX: Final = 16
TOPIC_BYTES_MAX: Final = 256  # are compared: a hostile one may be of any length
STARS_MAX: Final = 4
KEEP_ALIVE_S: Final = 15.0  # a silent wire still finds out that its client has gone

EVENT_STREAM: Final = b"text/event-stream"


class TapMessage(Struct, frozen=True, omit_defaults=True):
    """One message of the bus. `message` is its JSON; `text` its beginning, when it is long or is no JSON."""

    at: str
    direction: str
    topic: str
    bytes: int
    message: Raw | None = None
    text: str | None = None
    refused: str | None = None


class Dropped(Struct, frozen=True):
    dropped: int


class Taps:
    """All clients of the live wire, so that they can be counted, and sent home when the broker stops."""

    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._queues: set[Queue] = set()

    async def stream(self, call: HttpCall) -> Stream:
        asked = call.query("topic", "task")
        if len(self._queues) >= CLIENTS_MAX:
            raise HttpProblem(429, "too_many_taps", f"{CLIENTS_MAX} clients read the wire already", retry_after_ms=5000)
        shows = _of_topic(asked.get("topic"))
        if "task" in asked:
            concerns = await self._of_task(asked["task"])
            of_topic = shows
            shows = lambda seen: of_topic(seen) and concerns(seen)  # noqa: E731
        return Stream(self._events(shows), EVENT_STREAM)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    async def _events(self, shows: "Callable[[TapEntry], bool]") -> AsyncIterator[bytes]:
        queue = Queue()
        self._queues.add(queue)
        remove = self._broker.add_tap(queue.put)
        try:
            yield b": the live wire\n\n"
            while not queue.closed:
                seen, dropped = await queue.take(KEEP_ALIVE_S)
                lines = [_event(b"message", encode(_message(one))) for one in seen if shows(one)]
                if dropped:
                    lines.append(_event(b"dropped", encode(Dropped(dropped))))
                yield b"".join(lines) or b": still here\n\n"
        finally:
            remove()
            self._queues.discard(queue)

    async def _of_task(self, text: str) -> "Callable[[TapEntry], bool]":
        """A message concerns a task if it names it or one of its steps: ids are one sequence, and steps keep theirs."""
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise HttpProblem(400, "bad_query", f"`task` is {text[:64]!r}: a task id is a number")
        found = await self._broker.read(lambda queries: queries.load_tasks([int(text)], 0))
        if not found.tasks:
            raise not_found(f"task {text}")
        ids = "|".join(str(step.id) for step in found.steps)
        named = re.compile(rf'"task_id"\s*:\s*{text}\b|"step_id"\s*:\s*(?:{ids})\b|\[\s*(?:{ids})\s*,'.encode())
        return lambda seen: named.search(seen.body) is not None


class TapEntry(NamedTuple):
    at: float
    direction: str
    topic: bytes
    body: bytes
    refused: str | None


class Queue:
    """What one client has still to be shown."""

    def __init__(self) -> None:
        self.closed = False
        self._seen: deque[TapEntry] = deque()
        self._bytes = 0
        self._dropped = 0
        self._something = asyncio.Event()

    def put(self, direction: str, topic: bytes, body: bytes, refused: str | None) -> None:
        """The broker's callback: as short as it can be."""
        if len(self._seen) >= QUEUE_MAX or self._bytes > QUEUE_BYTES_MAX:
            self._dropped += 1
            return
        self._seen.append(TapEntry(time.time(), direction, topic, body, refused))
        self._bytes += len(body)
        self._something.set()

    async def take(self, timeout_s: float) -> tuple[list[TapEntry], int]:
        """What there is, waiting at most so long for the first, and how many were dropped since the last time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._something.wait()
        except TimeoutError:
            pass
        self._something.clear()
        taken, dropped = list(self._seen), self._dropped
        self._seen.clear()
        self._bytes = self._dropped = 0
        return taken, dropped

    def close(self) -> None:
        self.closed = True
        self._something.set()


def _of_topic(glob: str | None) -> Callable[[TapEntry], bool]:
    """`*` stands for any run of characters; a topic is compared without the space that ends it on the wire."""
    if glob is None:
        return lambda seen: True
    if glob.count("*") > STARS_MAX:
        raise HttpProblem(400, "bad_query", f"`topic` has more than {STARS_MAX} wild cards")
    pattern = re.compile(".*".join(map(re.escape, glob.split("*"))).encode(), re.DOTALL)
    return lambda seen: pattern.fullmatch(seen.topic.rstrip(b" ")[:TOPIC_BYTES_MAX]) is not None


def _message(seen: TapEntry) -> TapMessage:
    message = text = None
    if len(seen.body) <= SHOWN_BYTES_MAX:
        try:
            if seen.refused is not None:
                msgspec.json.decode(seen.body)  # it may have JSON's form and yet be none that a client can read: 1e999
            message = Raw(msgspec.json.format(seen.body, indent=-1))  # no line breaks: they would end the event
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    if message is None:
        text = str(seen.body[:SHOWN_BYTES_MAX], "utf-8", "replace")
    topic = str(seen.topic, "utf-8", "replace").rstrip(" ")
    return TapMessage(rfc3339(int(seen.at * 1000)), seen.direction, topic, len(seen.body), message, text, seen.refused)


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
