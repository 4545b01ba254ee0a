"""A worker for dialogues: the Python SDK as it ships, with its threads, over real sockets; its broker is played."""

import json
import queue
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import zmq
from stepwire import Context, Worker
from stepwire_protocol import codec

from .dialogue import WITHIN_MS, Dialogue, Frame, members

LOOK_MS = 10
Delivery = tuple[int, int]


class WorkerOnSockets:
    def __init__(self, dialogue: Dialogue, directory: Path) -> None:
        self._given = dialogue.given
        self._endpoints = f"ipc://{directory}/steps.sock", f"ipc://{directory}/results.sock"
        self._started = time.monotonic()
        self._runs: list[Delivery] = []
        self._contexts: dict[Delivery, Context] = {}
        self._ends: defaultdict[Delivery, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self._subscribed: set[bytes] = set()
        self._welcome: dict[str, Any] = {}
        self._echoes = True

    def __enter__(self) -> "WorkerOnSockets":
        self._context = zmq.Context()
        self._context.linger = 0
        self._mouth, self._ear = self._context.socket(zmq.XPUB), self._context.socket(zmq.SUB)
        self._ear.subscribe(b"")
        self._mouth.bind(self._endpoints[0])
        self._ear.bind(self._endpoints[1])
        steps, results = self._endpoints
        self._worker = Worker(
            steps=steps,
            results=results,
            name="shop-1",
            slots=self._given["slots"],
            prefetch=self._given["prefetch"],
            heartbeat_ms=min(2_000, self._given["lease_ms"] // 5),
        )
        for name in self._given["handlers"]:
            self._worker.handler(name)(self._handle)
        self._worker.start()
        return self

    def __exit__(self, *args: object) -> None:
        for item in self._runs:
            self._ends[item].put(None)
        self._worker.drain(0)
        assert self._worker.wait(20)
        self._context.destroy()

    def _handle(self, context: Context) -> Any:
        """Runs until the dialogue ends it."""
        item = (context.step_id, context.delivery)
        self._contexts[item] = context
        self._runs.append(item)
        end = self._ends[item].get(timeout=30)
        if isinstance(end, Exception):
            raise end
        return end

    # -- the stage ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        until_ms = self.now_ms() + WITHIN_MS
        while topic.encode() not in self._subscribed:  # nothing arrives before
            assert self._mouth.poll(max(0, until_ms - self.now_ms())), f"nobody subscribes {topic}"
            self._subscribed.add(self._mouth.recv()[1:])
        said = json.loads(body)
        if said["type"] == "welcome":
            self._welcome = said
        self._mouth.send(topic.encode() + body)

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        raise NotImplementedError("a played broker subscribes nothing that a dialogue names")

    def receive(self, until_ms: int) -> Frame | None:
        if not self._ear.poll(max(0, until_ms - self.now_ms())):
            return None
        topic, body = codec.split(self._ear.recv())
        frame = Frame(topic.decode(), members(codec.decode_worker(body)))
        if frame.message["type"] == "heartbeat" and self._echoes and self._welcome:
            echo = {name: self._welcome[name] for name in ("v", "broker", "epoch", "session")}
            echo |= {"type": "heartbeat_ack", "n": frame.message["n"]}
            self.send(f"@{frame.message['worker']} ", msgspec.json.encode(echo))
        return frame

    def now_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)

    def wait_until(self, at_ms: int) -> None:
        """Only the order counts here."""

    def be_silent(self, for_ms: int) -> None:
        self._echoes = False
        time.sleep(for_ms / 1000)
        while self._ear.poll(0):
            self._ear.recv()  # what was said to nobody
        self._echoes = True

    def act(self, what: str, facts: dict[str, Any]) -> None:
        if what == "drain":
            self._worker.drain()
            return
        item = (facts["step_id"], facts["delivery"])
        if why := self._soon(lambda: item in self._runs, f"{item} did not start"):
            raise AssertionError(why)
        # A handler's word does not come by the socket: it must not overtake the welcome that was said before it.
        if why := self._soon(self._is_welcomed, "the welcome was not taken"):
            raise AssertionError(why)
        self._ends[item].put(facts["output"] if what == "complete" else RuntimeError(facts["message"]))

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "ran":
                item = (facts["step_id"], facts["delivery"])
                count = facts["times"]
                return self._soon(lambda: self._runs.count(item) == count, f"{self._runs}, not {item} {count} times")
            case "told_to_stop":
                return self._soon(lambda: self._is_told(facts["step_id"], facts["reason"]), "it was not told to stop")
            case "gone":
                return None if self._worker.wait(WITHIN_MS / 1000) else "it is still there"
        raise ValueError(what)

    def _is_welcomed(self) -> bool:
        thread = self._worker._thread
        return thread is None or self._welcome.get("session") in (None, *thread.session.brokers.sessions().values())

    def _is_told(self, step_id: int, reason: str) -> bool:
        (context,) = [c for item, c in self._contexts.items() if item[0] == step_id]
        return bool(context.lease_lost) if reason == "lease_lost" else context.cancel_reason == reason

    def _soon(self, is_so: Any, otherwise: str) -> str | None:
        until_ms = self.now_ms() + WITHIN_MS
        while not is_so():
            if self.now_ms() > until_ms:
                return otherwise
            time.sleep(LOOK_MS / 1000)
        return None
