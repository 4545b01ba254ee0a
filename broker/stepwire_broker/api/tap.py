"""`/v1/tap`: every message of the bus as a server-sent event, for debugging, without slowing down the bus.

The engine calls a callback for each message, which only appends the message to a bounded queue. If a client is too
slow, messages are dropped and counted, and the client receives the count.
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

from .audit_notes import AuditNotes
from .engine_port import EnginePort
from .enumerations import Direction
from .http import HttpCall
from .http_problems import HttpProblem, not_found
from .replies import Stream, encode

QUEUE_MAX: Final = 2000  # messages in the queue of one client
QUEUE_BYTES_MAX: Final = 8 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 4096  # of one message
CLIENTS_MAX: Final = 16
TOPIC_BYTES_MAX: Final = 256  # the compared part of a topic; a hostile topic may have any length
STARS_MAX: Final = 4
KEEP_ALIVE_S: Final = 15.0  # after this time without messages, a comment tests whether the client is still connected

EVENT_STREAM: Final = b"text/event-stream"


class TapMessage(Struct, frozen=True, omit_defaults=True):
    """One message of the bus. `message` is its JSON. A long message, or one that is not JSON, has its beginning in
    `text` instead. `refused` and `reason`: the code of a refused message, and its fault."""

    at: str
    direction: Direction
    topic: str
    bytes: int
    message: Raw | None = None
    text: str | None = None
    refused: str | None = None
    reason: str | None = None


class Dropped(Struct, frozen=True):
    dropped: int


class TapStreams:
    """All clients of the tap: counted, and ended when the broker stops."""

    def __init__(self, broker: EnginePort, notes: AuditNotes) -> None:
        self._broker = broker
        self._notes = notes
        self._queues: set[Queue] = set()

    async def stream(self, call: HttpCall) -> Stream:
        query = call.query("topic", "task")
        if len(self._queues) >= CLIENTS_MAX:
            raise HttpProblem(429, "too_many_taps", f"{CLIENTS_MAX} clients use the tap already", retry_after_ms=5000)
        shows = _of_topic(query.get("topic"))
        call.open_request.stream()
        if "task" in query:
            names_task = await self._of_task(query["task"])
            of_topic = shows
            shows = lambda entry: of_topic(entry) and names_task(entry)  # noqa: E731
        return Stream(self._events(shows, lambda: self._notes.tapped(call.grant, query.get("topic"))), EVENT_STREAM)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    async def _events(self, shows: "Callable[[TapEntry], bool]", note: Callable[[], None]) -> AsyncIterator[bytes]:
        queue = Queue()
        self._queues.add(queue)
        remove = self._broker.add_tap(queue.put)
        try:
            yield b": the messages of the bus\n\n"
            while not queue.closed:
                note()
                entries, dropped = await queue.take(KEEP_ALIVE_S)
                lines = [_event(b"message", encode(_message(entry))) for entry in entries if shows(entry)]
                if dropped:
                    lines.append(_event(b"dropped", encode(Dropped(dropped))))
                yield b"".join(lines) or b": keep-alive\n\n"
        finally:
            remove()
            self._queues.discard(queue)

    async def _of_task(self, text: str) -> "Callable[[TapEntry], bool]":
        """Match messages that name the task or one of its steps. Tasks and steps share one sequence of ids."""
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise HttpProblem(400, "bad_query", f"`task` is {text[:64]!r}: it must be a number")
        loaded = await self._broker.read(lambda queries: queries.load_tasks([int(text)], 0))
        if not loaded.tasks:
            raise not_found(f"task {text}")
        ids = "|".join(str(step.id) for step in loaded.steps)
        named = re.compile(rf'"task_id"\s*:\s*{text}\b|"step_id"\s*:\s*(?:{ids})\b|\[\s*(?:{ids})\s*,'.encode())
        return lambda entry: named.search(entry.body) is not None


class TapEntry(NamedTuple):
    at: float
    direction: str
    topic: bytes
    body: bytes
    refused: str | None
    reason: str | None = None


class Queue:
    """The messages of one client that were not sent yet."""

    def __init__(self) -> None:
        self.closed = False
        self._entries: deque[TapEntry] = deque()
        self._bytes = 0
        self._dropped = 0
        self._has_entries = asyncio.Event()

    def put(self, direction: str, topic: bytes, body: bytes, refused: str | None, reason: str | None) -> None:
        """The engine's callback, which must return quickly."""
        if len(self._entries) >= QUEUE_MAX or self._bytes > QUEUE_BYTES_MAX:
            self._dropped += 1
            return
        self._entries.append(TapEntry(time.time(), direction, topic, body, refused, reason))
        self._bytes += len(body)
        self._has_entries.set()

    async def take(self, timeout_s: float) -> tuple[list[TapEntry], int]:
        """Wait at most `timeout_s` for messages. Returns the messages, and the number dropped since the last call."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_entries.wait()
        except TimeoutError:
            pass
        self._has_entries.clear()
        taken, dropped = list(self._entries), self._dropped
        self._entries.clear()
        self._bytes = self._dropped = 0
        return taken, dropped

    def close(self) -> None:
        self.closed = True
        self._has_entries.set()


def _of_topic(glob: str | None) -> Callable[[TapEntry], bool]:
    """Match entries by topic; `*` matches any characters. The space at the end of a topic is ignored."""
    if glob is None:
        return lambda entry: True
    if glob.count("*") > STARS_MAX:
        raise HttpProblem(400, "bad_query", f"`topic` has more than {STARS_MAX} wildcards")
    pattern = re.compile(".*".join(map(re.escape, glob.split("*"))).encode(), re.DOTALL)
    return lambda entry: pattern.fullmatch(entry.topic.rstrip(b" ")[:TOPIC_BYTES_MAX]) is not None


def _message(entry: TapEntry) -> TapMessage:
    message = text = None
    if len(entry.body) <= SHOWN_BYTES_MAX:
        try:
            if entry.refused is not None:
                msgspec.json.decode(entry.body)  # text like 1e999 has the form of JSON, but clients cannot parse it
            message = Raw(msgspec.json.format(entry.body, indent=-1))  # without line breaks, which end an event
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    if message is None:
        text = str(entry.body[:SHOWN_BYTES_MAX], "utf-8", "replace")
    topic = str(entry.topic, "utf-8", "replace").rstrip(" ")
    at = rfc3339(int(entry.at * 1000))
    return TapMessage(at, entry.direction, topic, len(entry.body), message, text, entry.refused, entry.reason)


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
