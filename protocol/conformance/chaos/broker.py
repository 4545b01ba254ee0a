"""A played broker: answers a worker as the protocol says, and remembers enough to send surprising messages as well."""

import json
from collections import deque
from random import Random
from typing import Any

from .traits import Traits

Item = tuple[int, int]
Message = dict[str, Any]

MEMORY: int = 30  # messages of each kind that a broker remembers, for repetitions


def frame(topic: str, message: Message) -> str:
    return topic + json.dumps(message, separators=(",", ":"), ensure_ascii=False)


class PlayedBroker:
    """One broker and the worker's latest words to it."""

    def __init__(self, number: int, worker: str, traits: Traits, rng: Random) -> None:
        self.id = f"b{number}"
        self.epoch = rng.choice((1, 7, 7))
        self.deployment = f"{number}f9d2c81a07be356"
        self.lease_ms = traits.lease_ms
        self.heartbeat_ms = traits.heartbeat_ms
        self.message_bytes_max = traits.message_bytes_max
        self.k = 0
        self.session: str | None = None  # the session as this broker sees it
        self.free = 0
        self.is_quiet = False
        self.items: dict[Item, Message] = {}  # the steps that were sent, by item
        self.batches: deque[Message] = deque(maxlen=MEMORY)
        self.hello_ns: deque[int] = deque([1], maxlen=6)
        self.heartbeat_ns: deque[int] = deque([1], maxlen=6)
        self.rids: deque[int] = deque([1], maxlen=MEMORY)
        self.asked: deque[Item] = deque(maxlen=MEMORY)
        self.worker_next = 1
        self.is_claimed = False  # the worker has a session with this broker, as its last heartbeat says
        self.lists: list[Message] | None = None
        self._batch = 0
        self._nonce = f"{rng.getrandbits(16):04x}"  # of this process of the broker
        self._step = number * 100_000
        self._inbox = f"@{worker} "
        self._traits = traits
        self._rng = rng

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_message(self, message: Message) -> list[str]:
        """The broker has received this message. Returns the frames of its answer."""
        match message["type"]:
            case "hello":
                return self._on_hello(message)
            case "heartbeat":
                return self._on_heartbeat(message)
            case "results":
                return self._on_results(message)
            case "start":
                return self._on_start(message)
            case "accept" | "refuse":
                if "free" in message:
                    self.free = message["free"]
                if message["type"] == "refuse":
                    for item in message["items"]:
                        self.items.pop(tuple(item), None)
        return []

    def note(self, message: Message) -> None:
        """Remember what the worker has sent, even if the network loses it: surprising messages refer to it."""
        match message["type"]:
            case "hello":
                self.hello_ns.append(message["n"])
                self.worker_next = message.get("next", {}).get(self.id, self.worker_next)
            case "heartbeat":
                self.heartbeat_ns.append(message["n"])
                self.is_claimed = self.id in message.get("sessions", {})
                self.worker_next = message.get("next", {}).get(self.id, self.worker_next)
            case "results":
                self.rids.append(message["rid"])
            case "start":
                self.asked.extend((s, d) for s, d in message["items"])

    def _on_hello(self, message: Message) -> list[str]:
        k = message.get("next", {}).get(self.id)
        if k is None:
            return [self.here()]
        self.free = message.get("free", {}).get(self.id, 0)
        if k < self.k:
            return []
        is_new = k != self.k or self.session is None
        self.k, self.session = k, f"{self.epoch}.{k}"
        answers = [self.welcome(message["n"])]
        held = [(item[0], item[1]) for item in message.get("holding", [])]
        known = [item for item in held if item in self.items]
        if is_new and known:
            answers.append(self.adopt(known))
        return answers

    def _on_heartbeat(self, message: Message) -> list[str]:
        session = message.get("sessions", {}).get(self.id)
        self.free = message.get("free", {}).get(self.id, self.free)
        if session is not None and session == self.session:
            return [self.heartbeat_ack(message["n"])]
        if session is not None and self._traits.is_reset_by_broker:
            self.session = None
            return [self.reset(int(session.partition(".")[2]), "unknown_session")]
        return [self.here()] if self.session is None else []

    def _on_results(self, message: Message) -> list[str]:
        if self._rng.random() >= self._traits.acks_results:
            return []
        if message.get("free") is not None:
            self.free = message["free"]
        for result in message["results"]:
            self.items.pop((result["step_id"], result.get("delivery")), None)
        return [self.ack([message["rid"]])]

    def _on_start(self, message: Message) -> list[str]:
        items = [(s, d) for s, d in message["items"]]
        granted = [item for item in items if self._rng.random() < self._traits.grants]
        rest = [item for item in items if item not in granted]
        answers = [self.go(granted)] if granted else []
        if rest and self._rng.random() < 0.5:
            answers.append(self.cancel(rest, "not_granted"))
        return answers

    # -- messages -----------------------------------------------------------------------------------------------------

    def message(self, kind: str, **members: Any) -> Message:
        return {"type": kind, "v": "2.0", "broker": self.id, "epoch": self.epoch, **members}

    def here(self, topic: str | None = None, **changed: Any) -> str:
        message = self.message("here", deployment=self.deployment, versions=["2.0"])
        return frame(topic or self._inbox, message | changed)

    def welcome(self, n: int, **changed: Any) -> str:
        message = self.message(
            "welcome",
            session=self.session or f"{self.epoch}.{self.worker_next}",
            deployment=self.deployment,
            n=n,
            lease_ms=self.lease_ms,
            heartbeat_ms=self.heartbeat_ms,
            max_message_bytes=self.message_bytes_max,
        )
        if self.lists is not None:
            message["brokers"] = self.lists
        return frame(self._inbox, message | changed)

    def heartbeat_ack(self, n: int, **changed: Any) -> str:
        message = self.in_session("heartbeat_ack", n=n)
        if self.is_quiet:
            message["quiet"] = True
        return frame(self._inbox, message | changed)

    def steps(self, steps: list[Message], **changed: Any) -> str:
        self._batch += 1
        message = self.in_session(
            "steps", batch_id=f"batch_{self._nonce}_{self._batch}", protocol_version="2.0", steps=steps
        )
        message |= changed
        self.batches.append(message)
        return frame(self._inbox, message)

    def go(self, items: list[Item], **changed: Any) -> str:
        return frame(self._inbox, self.in_session("go", items=items) | changed)

    def cancel(self, items: list[Item], reason: str, **changed: Any) -> str:
        return frame(self._inbox, self.in_session("cancel", items=items, reason=reason) | changed)

    def adopt(self, items: list[Item], **changed: Any) -> str:
        return frame(self._inbox, self.in_session("adopt", items=items) | changed)

    def ack(self, rids: list[int]) -> str:
        return frame(self._inbox, self.message("ack", rids=rids))

    def reset(self, next: int, code: str, **changed: Any) -> str:
        return frame(self._inbox, self.message("reset", next=next, code=code) | changed)

    def refused(self, code: str, rid: int | None, refused: str | None) -> str:
        message = self.message("refused", code=code, message="cannot be stored", refused=refused, rid=rid)
        return frame(self._inbox, message)

    def in_session(self, kind: str, **members: Any) -> Message:
        """A message of the session that this broker believes in, or of the one that the worker would accept."""
        return self.message(kind, session=self.session or f"{self.epoch}.{self.worker_next}", **members)

    # -- steps --------------------------------------------------------------------------------------------------------

    def new_steps(self, count: int) -> list[Message]:
        steps = []
        for _ in range(count):
            self._step += 1
            steps.append(self.step((self._step, 1)))
        return steps

    def step(self, item: Item) -> Message:
        rng, traits = self._rng, self._traits
        handler = "nobody.knows" if rng.random() < traits.unknown_handler else rng.choice(traits.handlers)
        metadata: Message = {
            "attempt": item[1] - 1,
            "retry_limit": 3,
            "timeout_ms": rng.choice(traits.timeouts_ms),
            "idempotency_key": f"{item[0]}/work",
        }
        if (deadline_ms := rng.choice(traits.deadlines_ms)) is not None:
            metadata["deadline_ms"] = deadline_ms
        if rng.random() < 0.05:
            metadata |= {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
        if rng.random() < 0.02:
            metadata["shadow"] = True
        step: Message = {
            "step_id": item[0],
            "task_id": item[0] // 2 + 1,
            "step_name": "work",
            "handler_class": handler,
            "handler_config": {},
            "task_context": {"text": "ä" * rng.randrange(traits.context_bytes_max)},
            "previous_results": {},
            "delivery": item[1],
            "delivery_mode": "at_most_once" if rng.random() < traits.at_most_once else "at_least_once",
            "metadata": metadata,
        }
        self.items[item] = step
        return step

    def restart(self, epochs: int, keeps_items: bool) -> None:
        """A new process of this broker, with the same database."""
        self.epoch += epochs
        self.session, self.k = None, 0
        self.is_quiet = False
        self.lease_ms = self._rng.choice((self.lease_ms, self.lease_ms, 500, 4_000))
        self.batches.clear()
        self._batch = 0
        self._nonce = f"{self._rng.getrandbits(16):04x}"
        if not keeps_items:
            self.items.clear()
