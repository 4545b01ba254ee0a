"""A broker for dialogues: the real one, with its database, behind real sockets; its worker is played, or its level-0
handlers are, each with sockets of its own.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq
from stepwire_broker.core.definitions.settings import Level0Settings, Settings
from stepwire_protocol import codec, topics

from tests.api.running_api import Api, running, settings_in

from .dialogue import WITHIN_MS, Dialogue, Frame, members

WORKER: Final = "shop-1:0123456789abcdef"
HELLO_AGAIN_MS: Final = 1_000
HEARD_BY_BROKER: Final = {topics.RESULTS, topics.WORKERS, topics.results_to("b1")}


class _Sockets:
    """A handler's two."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", settings: Settings) -> None:
        self.inbox = context.socket(zmq.SUB)
        self.mouth = context.socket(zmq.XPUB)  # a PUB that sees who listens
        for socket, endpoint in ((self.inbox, settings.bus.steps), (self.mouth, settings.bus.results)):
            socket.reconnect_ivl = 20
            socket.connect(endpoint)

    def await_listener(self) -> None:
        listening = set()
        while listening != HEARD_BY_BROKER:
            assert self.mouth.poll(WITHIN_MS), "the broker does not listen"
            listening.add(self.mouth.recv()[1:])


class BrokerOnSockets:
    """The worker's heartbeats are not played: a dialogue is over, or silent, before a lease is."""

    def __init__(self, dialogue: Dialogue, directory: Path) -> None:
        lease_ms = dialogue.given["lease_ms"]
        settings = settings_in(directory)
        level0 = Level0Settings(at_most_once=dialogue.given.get("at_most_once", False))
        bus = msgspec.structs.replace(settings.bus, lease_ms=lease_ms, heartbeat_ms=lease_ms // 5, level0=level0)
        self._settings: Settings = msgspec.structs.replace(settings, bus=bus)
        self._directory = directory
        self._exits = contextlib.ExitStack()
        self._api: Api
        self._peers: list[str] = dialogue.given.get("peers", [])
        self._sockets: dict[str | None, _Sockets] = {}  # of the one worker, or by the name of the peer
        self._started = time.monotonic()
        self._task_ids: list[int] = []
        self._hello: bytes | None = None  # that was not answered yet

    def __enter__(self) -> "BrokerOnSockets":
        self._start()
        self._context = zmq.Context()
        self._context.linger = 0
        for peer in self._peers or [None]:
            self._sockets[peer] = sockets = _Sockets(self._context, self._settings)
            if peer is None:
                sockets.inbox.subscribe(topics.to_worker(WORKER))
                sockets.inbox.subscribe(topics.BROKERS)
            sockets.await_listener()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop()
        self._context.destroy()

    def _start(self) -> None:
        self._api = self._exits.enter_context(running(self._directory, self._settings))

    def _stop(self) -> None:
        self._exits.pop_all().close()

    # -- the stage ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        self._sockets[peer].mouth.send(topic.encode() + body)
        self._hello = topic.encode() + body if body.startswith(b'{"type":"hello"') else None

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        before = self._level0_peers()
        inbox = self._sockets[peer].inbox
        inbox.subscribe(topic) if on else inbox.unsubscribe(topic)
        self._soon(lambda: None if self._level0_peers() != before else "the broker does not see it")

    def receive(self, until_ms: int) -> Frame | None:
        poller = zmq.Poller()
        for sockets in self._sockets.values():
            poller.register(sockets.inbox, zmq.POLLIN)
        while not (ready := dict(poller.poll(max(0, min(HELLO_AGAIN_MS, until_ms - self.now_ms()))))):
            if self.now_ms() >= until_ms:
                return None
            if self._hello is not None:
                self._sockets[None].mouth.send(self._hello)  # a new connection may have lost it: workers say it again
        peer = next(name for name, sockets in self._sockets.items() if sockets.inbox in ready)
        topic, body = codec.split(self._sockets[peer].inbox.recv())
        if not body.startswith(b'{"type":"here"'):
            self._hello = None
        message = codec.decode_broker(body) if peer is None else codec.decode_steps_level0(body)
        return Frame(topic.decode(), members(message), peer)

    def now_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)

    def wait_until(self, at_ms: int) -> None:
        """Only the order counts here."""

    def be_silent(self, for_ms: int) -> None:
        time.sleep(for_ms / 1000)

    def act(self, what: str, facts: dict[str, Any]) -> None:
        match what:
            case "submit":
                self._submit(facts)
            case "cancel_task":
                answer = self._api.call("POST", f"/v1/tasks/{self._task_ids[-1]}/cancel", {})
                assert answer.status < 300, answer
            case "stop":
                self._stop()
            case "restart":
                self._stop()
                for sockets in self._sockets.values():
                    while sockets.inbox.poll(100):
                        sockets.inbox.recv()  # what it said in going: a broker that is killed says nothing
                self._start()
                if self._peers:  # they connect and subscribe again by themselves
                    self._soon(lambda: None if self._level0_peers() else "no handler is there again")
            case _:
                raise ValueError(what)

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "task":
                return self._soon(lambda: self._differs(facts))
            case "refused":
                return self._soon(lambda: self._differs_in_refusals(facts))
        raise ValueError(what)

    def _differs(self, facts: dict[str, Any]) -> str | None:
        task_id = self._task_ids[facts.get("number", len(self._task_ids)) - 1]
        task = self._api.call("GET", f"/v1/tasks/{task_id}").json
        seen = {**task, "output": task["steps"][-1]["output"]}
        is_so = all(seen[name] == value for name, value in facts.items() if name != "number")
        return None if is_so else f"the task is {json.dumps(task)}"

    def _differs_in_refusals(self, facts: dict[str, Any]) -> str | None:
        metrics = self._api.call("GET", "/metrics").body.decode()
        found = re.findall(r'^stepwire_bus_refusals_total\{.*"(\w+)"\} (\d+)', metrics, re.M)
        refused = {code: int(times) for code, times in found}
        return None if refused.get(facts["code"], 0) == facts["times"] else f"refused were {refused}"

    def _level0_peers(self) -> list[str]:
        return [w["worker"] for w in self._api.call("GET", "/v1/workers").json["workers"] if w["level"] == 0]

    def _soon(self, why_not: Callable[[], str | None]) -> str | None:
        until_ms = self.now_ms() + WITHIN_MS
        while (why := why_not()) is not None and self.now_ms() <= until_ms:
            time.sleep(0.01)
        return why

    def _submit(self, facts: dict[str, Any]) -> None:
        step = {"name": "work", "handler_class": facts["handler_class"]}
        step |= {name: facts[name] for name in ("delivery_mode", "retry_limit", "timeout_ms") if name in facts}
        if "backoff_ms" in facts:
            step["backoff"] = {"base_ms": facts["backoff_ms"], "jitter": "none"}
        steps = [step]
        if "then_handler_class" in facts:
            steps.append({"name": "then", "handler_class": facts["then_handler_class"], "depends_on": ["work"]})
        workflow = {"name": f"dialogue{len(self._task_ids) + 1}", "version": "1", "steps": steps}
        assert self._api.call("POST", "/v1/workflows", workflow).status == 201
        task = {"workflow": workflow["name"], "context": facts["context"]}
        answer = self._api.call("POST", "/v1/tasks", task)
        assert answer.status == 201, answer
        self._task_ids.append(answer.json["task_id"])
