"""A worker for dialogues: the Python SDK's session, in pretended time, with its brokers played."""

import json
from collections import deque
from typing import Any

import msgspec
from msgspec import Raw
from stepwire.actions import CancelRun, Link, Quit, Run, Send
from stepwire.session import Config, Offer, Session
from stepwire_protocol import codec
from stepwire_protocol.messages import ErrorDetail, Result

from .dialogue import Dialogue, Frame, members

WORKER = "shop-1:0123456789abcdef"


class PretendedWorker:
    def __init__(self, dialogue: Dialogue) -> None:
        given = dialogue.given
        config = Config(
            worker=WORKER,
            offers=tuple(Offer(name) for name in given["handlers"]),
            slots=given["slots"],
            prefetch=given["prefetch"],
            links=(Link("ipc://steps", "ipc://results"),),
            heartbeat_ms=min(2_000, given["lease_ms"] // 5),
        )
        self._session = Session(config, lambda: 0.5)
        self._now_ms = 0
        self._said: deque[Frame] = deque()
        self._runs: list[tuple[int, int]] = []
        self._stops: set[tuple[int, str]] = set()
        self._is_gone = False
        self._echoes = True
        self._welcome: dict[str, Any] = {}
        self._session.start(0)
        self._act()

    # -- the stage ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        said = json.loads(body)
        if said["type"] == "welcome":
            self._welcome = said
        self._session.receive(topic.encode(), body, self._now_ms)
        self._act()

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        raise NotImplementedError("a played broker subscribes nothing that a dialogue names")

    def receive(self, until_ms: int) -> Frame | None:
        while not self._said and self._now_ms < until_ms:
            self.wait_until(min(until_ms, max(self._now_ms + 1, self._wake_at(until_ms))))
        return self._said.popleft() if self._said else None

    def now_ms(self) -> int:
        return self._now_ms

    def wait_until(self, at_ms: int) -> None:
        while self._now_ms < at_ms:
            self._now_ms = min(at_ms, max(self._now_ms + 1, self._wake_at(at_ms)))
            self._act()

    def be_silent(self, for_ms: int) -> None:
        self._echoes = False
        self.wait_until(self._now_ms + for_ms)
        self._echoes = True

    def act(self, what: str, facts: dict[str, Any]) -> None:
        if what == "drain":
            self._session.drain(self._now_ms)
        else:
            item = (facts["step_id"], facts["delivery"])
            assert item in self._runs, f"{what} {item}, which was not started"
            if what == "complete":
                output = Raw(msgspec.json.encode(facts["output"]))
                result = Result(step_id=item[0], delivery=item[1], status="completed", output=output)
            else:
                error = ErrorDetail(message=facts["message"])
                result = Result(step_id=item[0], delivery=item[1], status="failed", error=error)
            self._session.finished(item, result, self._now_ms)
        self._act()

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "ran":
                times = self._runs.count((facts["step_id"], facts["delivery"]))
                return None if times == facts["times"] else f"it ran {times} times"
            case "told_to_stop":
                stop = (facts["step_id"], facts["reason"])
                return None if stop in self._stops else f"told to stop: {self._stops}"
            case "gone":
                return None if self._is_gone else "it is still there"
        raise ValueError(what)

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _wake_at(self, until_ms: int) -> int:
        wake_at = self._session.wake_at()
        return until_ms if wake_at > until_ms else int(max(wake_at, self._now_ms)) + 1

    def _act(self) -> None:
        for action in self._session.actions(self._now_ms):
            match action:
                case Send():
                    self._hear(Frame(action.topic.decode(), members(codec.decode_worker(action.body))))
                case Run():
                    self._runs.append(action.item)
                case CancelRun():
                    self._stops.add((action.item[0], action.reason))
                case Quit():
                    self._is_gone = True

    def _hear(self, frame: Frame) -> None:
        self._said.append(frame)
        if frame.message["type"] == "heartbeat" and self._echoes and self._welcome:
            echo = {name: self._welcome[name] for name in ("v", "broker", "epoch", "session")}
            echo |= {"type": "heartbeat_ack", "n": frame.message["n"]}
            self._session.receive(f"@{WORKER} ".encode(), msgspec.json.encode(echo), self._now_ms)
