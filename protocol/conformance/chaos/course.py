"""One random course: the network, the brokers and the handlers around one session.

`Course` draws an op, and the caller applies the op to a session and passes the reply back. The next op depends on the
seed and on the replies, so a reference session makes a fixed list of ops, and a session under test its own list.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import msgspec

from . import outputs, surprises
from .broker import Item, Message, PlayedBroker
from .traits import CHAOS, Traits

Op = dict[str, Any]
Reply = dict[str, Any]

_decode: Final = msgspec.json.Decoder().decode
SETTLE_MS: Final = 25_000
SETTLE_OPS_MAX: Final = 3_000


class Course:
    """`network`, `brokers` and `handlers` are drawn from `traits`. Iterate, and answer each op with `reply`."""

    def __init__(self, seed: int, *, always_settles: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.traits = traits = Traits(rng)
        self.start: Op = {"op": "start", "now_ms": 0.0, **traits.start(rng)}
        self.worker: str = self.start["worker"]
        self.bytes_max: int = self.start["max_message_bytes"]
        self.brokers = [PlayedBroker(i + 1, self.worker, traits, rng) for i in range(traits.brokers)]
        self.now_ms = 0.0
        self.running: dict[Item, bool] = {}  # by item: was asked to stop
        self.ended: list[Item] = []
        self.holding: list[list[Any]] = []
        self.frames: list[str] = []  # of brokers, for repetitions
        self.is_settling = False
        self.has_quit = False
        self.is_drained = False
        self._settles = always_settles or traits.settles
        self._wake_at_ms: float | None = 0.0
        self._due: list[tuple[float, int, Callable[[], Op | None]]] = []
        self._sequence = 0
        self._ticks_at_once = 0

    def ops(self) -> Iterator[Op]:
        """The ops of the course. After each, the caller must call `reply`."""
        yield self.start
        for broker in self.brokers:
            self.later(broker.here("brokers "))
        for _ in range(self.traits.ops):
            op = None
            while op is None:
                op = self._next()
            yield op | {"now_ms": self.now_ms}
        if self._settles:
            yield from self._settle()

    def reply(self, op: Op, reply: Reply) -> None:
        """Let the brokers and handlers react to what the session did."""
        self._wake_at_ms = reply.get("wake_at_ms")
        self.holding = reply.get("holding", [])
        for action in reply.get("actions", ()):
            match action["action"]:
                case "send":
                    self._on_sent(action["frame"])
                case "run":
                    self._on_run((action["step_id"], action["delivery"]))
                case "request_stop":
                    self._on_stop((action["step_id"], action["delivery"]), action["reason"])
                case "quit":
                    self.has_quit = True
        if op["op"] in ("complete", "fail"):
            item = op["step_id"], op["delivery"]
            if self.running.pop(item, None) is not None:
                self.ended.append(item)
        elif op["op"] == "drain":
            self.is_drained = True

    # -- the network --------------------------------------------------------------------------------------------------

    def later(self, text: str) -> None:
        """A broker sends this frame. The network may delay, double or lose it."""
        rng, traits = self.rng, self.traits
        if not self.is_settling and rng.random() < traits.loss:
            return
        self.frames.append(text)
        if len(self.frames) > 200:
            del self.frames[:100]
        self.at(self.now_ms + self._latency_ms(), lambda: received(text))
        if not self.is_settling and rng.random() < traits.double:
            self.at(self.now_ms + self._latency_ms(), lambda: received(text))

    def at(self, at_ms: float, event: Callable[[], Op | None]) -> None:
        """Do this at that time. The event returns an op, or None."""
        self._sequence += 1
        heapq.heappush(self._due, (at_ms, self._sequence, event))

    def _latency_ms(self) -> float:
        if self.is_settling:
            return 1.0
        if self.rng.random() < self.traits.late:
            return self.rng.uniform(1_000, 15_000)
        low, high = self.traits.latency_ms
        return float(self.rng.randint(low, high)) if self.rng.random() < 0.9 else self.rng.uniform(low, high)

    def _on_sent(self, text: str) -> None:
        topic, _, body = text.partition(" ")
        try:
            message: Message = _decode(body)
        except msgspec.DecodeError:
            return  # the caller judges the frames
        for broker in self.brokers:
            if topic in ("workers", "results", f"results@{broker.id}"):
                broker.note(message)
                if not self.is_settling and self.rng.random() < self.traits.loss:
                    continue
                for answer in broker.on_message(message):
                    self.later(answer)

    # -- the handlers -------------------------------------------------------------------------------------------------

    def _on_run(self, item: Item) -> None:
        self.running[item] = False
        if self.rng.random() >= self.traits.endless or self.is_settling:
            low, high = self.traits.run_ms
            run_ms = float(self.rng.randint(low, high)) if self.rng.random() < 0.9 else self.rng.uniform(low, high)
            self.at(self.now_ms + (min(run_ms, 500) if self.is_settling else run_ms), lambda: self.end(item))

    def _on_stop(self, item: Item, reason: str) -> None:
        if item in self.running and reason != "lease_lost" and not self.running[item]:
            self.running[item] = True
            if self.rng.random() < self.traits.obeys_stop:
                self.at(self.now_ms + self.rng.randint(0, 20), lambda: self.end(item))

    def end(self, item: Item) -> Op | None:
        """End this run, if it still runs."""
        if item not in self.running:
            return None
        rng, traits = self.rng, self.traits
        members = {"step_id": item[0], "delivery": item[1]}
        if self.running[item] or rng.random() < traits.fails:
            return {"op": "fail", **members, **outputs.failure(rng)}
        op = {"op": "complete", **members, "output": outputs.output(rng, traits)}
        if (metadata := outputs.metadata(rng)) is not None:
            op["metadata"] = metadata
        return op

    # -- the choice of the next op ------------------------------------------------------------------------------------

    def _next(self) -> Op | None:
        """The next op, at `now_ms`. None: nothing came of it."""
        rng, traits = self.rng, self.traits
        if rng.random() < traits.chaos:
            self.now_ms += self._pause_ms()
            (kind,) = rng.choices(CHAOS, traits.weights)
            return surprises.MAKERS[kind](self)
        return self._next_due()

    def _next_due(self) -> Op | None:
        """The earliest event, or a tick if the session must act before."""
        wake_at_ms = math.inf if self._wake_at_ms is None else max(self.now_ms, self._wake_at_ms)
        due_at_ms = max(self.now_ms, self._due[0][0]) if self._due else math.inf
        if due_at_ms <= wake_at_ms and self._due:
            self.now_ms = due_at_ms
            self._ticks_at_once = 0
            return heapq.heappop(self._due)[2]()
        if wake_at_ms == math.inf:
            wake_at_ms = self.now_ms + 1_000
        self._ticks_at_once = self._ticks_at_once + 1 if wake_at_ms == self.now_ms else 0
        if self._ticks_at_once > 2:
            wake_at_ms += 1.0
        self.now_ms = wake_at_ms
        return {"op": "tick"}

    def _pause_ms(self) -> float:
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return 0.0
        if kind < 0.8:
            return float(rng.randint(0, 5))
        if kind < 0.9:
            return rng.uniform(0, 30)
        return float(rng.randint(0, 400)) if kind < 0.98 else float(rng.randint(400, 4_000))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _settle(self) -> Iterator[Op]:
        """From now on every broker answers, no message is lost, and every run ends."""
        self.is_settling = True
        self._due = [entry for entry in self._due if entry[0] <= self.now_ms + 20_000]
        heapq.heapify(self._due)
        traits = self.traits
        traits.grants, traits.acks_results, traits.is_reset_by_broker = 1.0, 1.0, True
        for broker in self.brokers:
            broker.is_quiet = False
            broker.restart(10, keeps_items=True)  # above every epoch that a surprise has named
            broker.lease_ms = max(broker.lease_ms, 1_000)
            self.later(broker.here("brokers "))
        yield {"op": "full", "is_full": False, "now_ms": self.now_ms}
        for item in list(self.running):
            self.at(self.now_ms + self.rng.randint(0, 300), lambda item=item: self.end(item))  # type: ignore[misc]
        end_ms = self.now_ms + SETTLE_MS
        for _ in range(SETTLE_OPS_MAX):
            if self.now_ms > end_ms or self.has_quit:
                return
            is_half_over = self.now_ms > end_ms - SETTLE_MS / 2
            if is_half_over and not self.holding and not self._due and all(b.is_claimed for b in self.brokers):
                return
            if (op := self._next_due()) is not None:
                yield op | {"now_ms": self.now_ms}


def received(text: str) -> Op:
    return {"op": "receive", "frame": text}
