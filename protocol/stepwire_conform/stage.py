"""The stage of a case: one process of the program, its played brokers, and everything that was seen.

A case calls `run`, `send`, `expect`, `nothing` and `wait`. All of them let the played brokers work meanwhile: they ack
heartbeats and results as long as their switches are on.
"""

import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from stepwire_protocol import topics

from . import hints
from .always import Item, Watch
from .broker import PlayedBroker
from .case import Missing, RuleBroken
from .endpoints import Transport
from .frames import Message, Seen, encoded
from .heard_side import HeardSide
from .keys import ServerKeys
from .program import GradedProgram
from .setting import ENOUGH_S, NAME, SLOTS, START_S, Setting, ended, last_lines

SUBSCRIBED_S: Final = 4.0  # from the start of the program to its subscriptions, at least


class Stage(HeardSide):
    """One program with its brokers. One thread uses it."""

    def __init__(
        self,
        setting: Setting,
        transport: Transport = "ipc",
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        keys: ServerKeys | None = None,
    ) -> None:
        super().__init__(setting, transport, brokers, keys)
        self.program: GradedProgram | None = None
        self.started_s = time.monotonic()
        self.may_end = False  # the program may end without being asked to
        self._settings = dict(settings or {})
        self._outputs: list[str] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> GradedProgram:
        assert self.program is not None, "the program is not started"
        return self.program

    def start(self, **settings: str) -> None:
        """Start the program."""
        environ = {
            **self.setting.environ,
            "STEPWIRE_STEPS": ",".join(broker.steps_endpoint for broker in self.brokers),
            "STEPWIRE_RESULTS": ",".join(broker.results_endpoint for broker in self.brokers),
            "STEPWIRE_NAME": NAME,
            "STEPWIRE_SLOTS": str(SLOTS),
            "STEPWIRE_LABELS": "kit=conform,region=eu",
            **self._settings,
            **settings,
        }
        if self.watch.worker is not None:
            self._ended.add(self.watch.worker)
        self.watch = Watch()
        self.forget_sessions()
        self.started_s = time.monotonic()
        self.program = GradedProgram(self.setting.command, environ, self.setting.next_token())

    def open_session(self) -> Message:
        """Start the program, and wait until it has a session with every broker. Returns the last hello."""
        self.open_brokers()
        with self.setting.starts:
            self.start()
            for broker in self.brokers:
                self.until_session(broker, within_s=START_S)
        hello = self.watch.hello
        assert hello is not None
        return hello

    def until_session(
        self, broker: PlayedBroker | None = None, *, number: int | None = None, within_s: float = ENOUGH_S
    ) -> None:
        """Wait until the worker names a session of the broker's current epoch in its heartbeats."""
        broker = broker or self.broker

        def is_open() -> bool:
            self._check_subscription(broker)
            session = self.sessions.get(broker.id)
            if session is None or session != self.reported.get(broker.id):
                return False
            epoch, _, k = session.partition(".")
            return epoch == str(broker.epoch) and number in (None, int(k))

        text = f"heartbeat that names a session of {broker.id}" + (f" with number {number}" if number else "")
        self.until(is_open, text, within_s=within_s)

    def _check_subscription(self, broker: PlayedBroker) -> None:
        """Raise RuleBroken if the worker waits for messages on a topic that no broker grants."""
        worker = self.watch.worker
        if (
            worker is None
            or time.monotonic() < self.started_s + SUBSCRIBED_S
            or broker.is_subscribed(topics.to_worker(worker))
        ):
            return
        causes = hints.of_subscriptions(self.brokers, is_level0=False)
        if causes:
            raise RuleBroken(f"the worker has not subscribed '@{worker} ', and receives nothing")

    def forget_sessions(self) -> None:
        """The played brokers have lost their memory."""
        self.sessions.clear()
        self.reported.clear()

    def end_program(self) -> None:
        if self.program is not None:
            self.program.end()
            self._outputs.append(self.program.output())
            self.program = None

    def close(self) -> None:
        self.end_program()
        self.close_brokers()

    def output(self) -> str:
        """The output of the program, of all its processes."""
        return "\n".join([*self._outputs, self.program.output() if self.program else ""])

    def causes(self) -> list[str]:
        """The near misses that the kit heard, which explain a failure."""
        return [
            *hints.of_connections(self.brokers, self.output()),
            *hints.of_subscriptions(self.brokers, is_level0=self.setting.is_level0),
        ]

    def _check_program(self) -> None:
        program = self.program
        if program is None:
            return
        if program.is_flooding():
            raise RuleBroken(f"the program floods its output: {program.output_bytes >> 20} MiB so far")
        code = program.exit_code()
        if code is not None and not self.may_end:
            raise RuleBroken(f"the program has {ended(code)}{last_lines(program.output())}")

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(
        self,
        *steps: dict[str, Any],
        broker: PlayedBroker | None = None,
        batch: str | None = None,
        session: str | None = None,
        **members: Any,
    ) -> "Batch":
        """Send these steps in one batch."""
        broker = broker or self.broker
        batch_id = batch or broker.next_batch()
        message = broker.message(
            "steps",
            session=session or self.session(broker),
            batch_id=batch_id,
            protocol_version="2.0",
            steps=list(steps),
        )
        message |= members
        for step in steps:
            self.watch.sent((step["step_id"], step["delivery"]), step["delivery_mode"], batch_id)
        sent = Batch(self, broker, batch_id, [(s["step_id"], s["delivery"]) for s in steps], encoded(message))
        sent.again()
        return sent

    def run(self, handler: str, context: Any = None, *, within_s: float = ENOUGH_S, **members: Any) -> dict[str, Any]:
        """Send one step, and return its result."""
        return self.steps(self.step(handler, context, **members)).result(within_s=within_s)

    def result_of(self, item: Item, *, within_s: float = ENOUGH_S) -> dict[str, Any]:
        """Wait for the result of this item."""
        found: list[dict[str, Any]] = []

        def search() -> bool:
            for message in self.inbox:
                for result in message.get("results", []) if message.kind == "results" else []:
                    if (result["step_id"], result["delivery"]) == item:
                        found.append(result)
                        return True
            return False

        try:
            self.until(search, f"result of {list(item)}", within_s=within_s)
        except RuleBroken as failed:
            refusals = [m for m in self.seen("refuse") if list(item) in m["items"]]
            if refusals:
                raise RuleBroken(f"{failed.what}; it was refused: {refusals[-1]!r}") from None
            raise
        return found[0]

    def holding_of(self, message: Message) -> dict[Item, str]:
        return {(step_id, delivery): state for step_id, delivery, state, _ in message.get("holding", [])}

    def until_holding(self, item: Item, *states: str, within_s: float = ENOUGH_S) -> Message:
        """Wait for a hello or heartbeat that reports this item in one of these states."""
        count = len(self.inbox)

        def latest() -> list[Message]:
            return [
                m
                for m in self.inbox[count:]
                if m.kind in ("heartbeat", "hello") and self.holding_of(m).get(item) in states
            ]

        self.until(lambda: bool(latest()), f"heartbeat with {list(item)} as {' or '.join(states)}", within_s=within_s)
        return latest()[-1]

    def until_gone(self, item: Item, *, within_s: float = ENOUGH_S) -> None:
        """Wait for a heartbeat that no longer reports this item."""
        count = len(self.inbox)
        self.until(
            lambda: any(m.kind == "heartbeat" and item not in self.holding_of(m) for m in self.inbox[count:]),
            f"heartbeat without {list(item)}",
            within_s=within_s,
        )

    # -- the process --------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        self._note(Seen(time.monotonic(), "--", "  ", f"signal {number.name} to the program"))
        self.running.send_signal(number)

    def until_ended(self, *, within_s: float) -> int:
        """Wait for the end of the program. Returns its exit code."""
        self.may_end = True
        self.until(lambda: self.running.exit_code() is not None, "end of the program", within_s=within_s)
        code = self.running.exit_code()
        assert code is not None
        self.pump(0.05)
        return code

    def some_handler(self) -> str:
        """A handler that the program offers. A handler of its user is only ever sent in an at_most_once step that is
        never granted, so it never runs."""
        if self.setting.has("conform.echo"):
            return "conform.echo"
        if not self.setting.handlers:
            raise Missing("the worker offers no handler")
        return self.setting.handlers[0].replace("**", "conform").replace("*", "conform")

    def asking(self, handler: str | None = None, context: Any = None, **members: Any) -> "Batch":
        """Send an at_most_once step, and wait until the worker asks for its grant."""
        step = self.step(handler or self.some_handler(), context, delivery_mode="at_most_once", **members)
        batch = self.steps(step)
        self.expect_start(batch.item)
        return batch

    def credit(self) -> int:
        """The number of steps that the worker accepts now."""
        self.drop_seen("heartbeat")
        free: int = self.expect("heartbeat", where=lambda m: self.broker.id in m["free"])["free"][self.broker.id]
        return free

    def queued(self, *, ms: int = 20_000, ignore: bool = False, **members: Any) -> "tuple[Batch, Batch]":
        """Two runs of a handler with concurrency 2, and a third step of it that waits. Such a step is not returned:
        it waits for its handler, and not for a slot."""
        self.need("conform.limited")
        first = self.steps(*[self.step("conform.limited", {"ms": ms, "ignore": ignore}) for _ in range(2)])
        for item in first.items:
            self.until_holding(item, "running")
        second = self.steps(self.step("conform.limited", {"ms": 1}, **members))
        self.until_holding(second.item, "queued")
        return first, second

    def expect_start(self, item: Item, **options: Any) -> Message:
        return self.expect(
            "start", where=lambda m: list(item) in m["items"], what=f"`start` of {list(item)}", **options
        )

    def need(self, *handlers: str) -> None:
        for handler in handlers:
            if not self.setting.has(handler):
                raise Missing(f"the worker does not offer {handler}")


class Batch:
    """One `steps` message that was sent."""

    def __init__(self, stage: Stage, broker: PlayedBroker, batch_id: str, items: list[Item], body: bytes) -> None:
        self.session = stage.session(broker)
        self._stage = stage
        self._broker = broker
        self.id = batch_id
        self.items = items
        self._body = body

    @property
    def item(self) -> Item:
        return self.items[0]

    def again(self) -> None:
        """Send the same bytes."""
        self._stage.send_body(self._body, broker=self._broker)

    def accepted(self, *, within_s: float = ENOUGH_S) -> Message:
        return self._stage.expect("accept", batch_id=self.id, within_s=within_s)

    def refused(self, code: str, *, within_s: float = ENOUGH_S) -> Message:
        return self._stage.expect("refuse", batch_id=self.id, code=code, within_s=within_s)

    def result(self, *, within_s: float = ENOUGH_S) -> dict[str, Any]:
        return self._stage.result_of(self.item, within_s=within_s)

    def message(self, *, within_s: float = ENOUGH_S) -> Message:
        """The results message of this batch."""
        return self._stage.expect("results", batch_id=self.id, within_s=within_s)
