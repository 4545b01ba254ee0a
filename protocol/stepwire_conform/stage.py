"""The stage of a case: one process of the program, its played brokers, and everything that was seen.

A case calls `run`, `send`, `expect`, `nothing` and `wait`. All of them let the played brokers work meanwhile: they ack
heartbeats and results as long as their switches are on.
"""

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from . import hints
from .always import Item, Watch, decoded
from .broker import PlayedBroker
from .case import Failed, Missing
from .endpoints import Transport
from .frames import Message, Seen, encoded, shortened
from .keys import ServerKeys
from .played_side import Filter, PlayedSide
from .program import Program
from .setting import ENOUGH_S, NAME, SLOTS, START_S, Setting, ended, last_lines


class Stage(PlayedSide):
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
        self.program: Program | None = None
        self.inbox: list[Message] = []
        self.started_s = time.monotonic()
        self.incoming_filter: Filter | None = None
        self.may_end = False  # the program may end without being asked to
        self.is_strict = True  # a broken rule of `always` fails the case at once
        self.reported: dict[str, str] = {}  # broker -> the session that the worker's last heartbeat named
        self._settings = dict(settings or {})
        self._outputs: list[str] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> Program:
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
        self.watch = Watch()
        self.forget_sessions()
        self.started_s = time.monotonic()
        self.program = Program(self.setting.command, environ, self.setting.next_token())

    def open_session(self) -> Message:
        """Start the program, and wait until it has a session with every broker. Returns the last hello."""
        self.open_brokers()
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
            session = self.sessions.get(broker.id)
            if session is None or session != self.reported.get(broker.id):
                return False
            epoch, _, k = session.partition(".")
            return epoch == str(broker.epoch) and number in (None, int(k))

        text = f"heartbeat that names a session of {broker.id}" + (f" with number {number}" if number else "")
        self.until(is_open, text, within_s=within_s)

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
        """What the program wrote, of all its processes."""
        return "\n".join([*self._outputs, self.program.output() if self.program else ""])

    def causes(self) -> list[str]:
        """What the kit heard that explains a failure."""
        return [
            *hints.of_connections(self.brokers, self.output()),
            *hints.of_subscriptions(self.brokers, is_level0=self.setting.is_level0),
        ]

    # -- receiving ----------------------------------------------------------------------------------------------------

    def expect(
        self,
        kind: str,
        *,
        within_s: float = ENOUGH_S,
        where: Callable[[Message], bool] | None = None,
        what: str = "",
        broker: str | None = None,
        **members: Any,
    ) -> Message:
        """Wait for a message of this kind with these members, and take it. Earlier ones that nobody took count."""

        def fits(message: Message) -> bool:
            return (
                message.kind == kind
                and (broker is None or message.broker == broker)
                and all(message.get(name) == value for name, value in members.items())
                and (where is None or where(message))
            )

        found: list[Message] = []

        def search() -> bool:
            for message in self.inbox:
                if not message.is_taken and fits(message):
                    found.append(message)
                    return True
            return False

        wanted = what or f"`{kind}`" + (f" with {_words(members)}" if members else "")
        self.until(search, wanted, within_s=within_s, kind=kind)
        found[0].is_taken = True
        return found[0]

    def nothing(self, *kinds: str, for_s: float, where: Callable[[Message], bool] | None = None, why: str = "") -> None:
        """Let time pass, in which no message of these kinds may arrive. Untaken earlier ones count as well."""
        until_s = time.monotonic() + for_s
        while True:
            for message in self.inbox:
                if not message.is_taken and message.kind in kinds and (where is None or where(message)):
                    raise Failed(f"a message came where none may{': ' + why if why else ''}: {message!r}")
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self.pump(left_s)

    def drop_seen(self, *kinds: str) -> None:
        """Take every message of these kinds that has arrived; without kinds, every message."""
        self.pump(0)
        for message in self.inbox:
            if not kinds or message.kind in kinds:
                message.is_taken = True

    def seen(self, kind: str) -> list[Message]:
        """Every message of this kind, also those that were taken."""
        return [message for message in self.inbox if message.kind == kind]

    def wait(self, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.pump(left_s)

    def until(
        self, is_true: Callable[[], bool], what: str, *, within_s: float = ENOUGH_S, kind: str | None = None
    ) -> None:
        """Wait until this is true. Raises Failed after `within_s`, multiplied by the patience of the run."""
        self.pump(0)
        until_s = time.monotonic() + within_s * self.setting.patience
        while not is_true():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise Failed(f"no {what} within {within_s:g} s{self._instead(kind)}")
            self.pump(min(left_s, 0.25))

    def _instead(self, kind: str | None) -> str:
        others = [m for m in self.inbox if not m.is_taken and m.kind == kind]
        return f"; instead: {others[-1]!r}" if others else ""

    def pump(self, wait_s: float) -> None:
        """Wait for at most `wait_s` for something to arrive, and let the brokers answer it."""
        poller = zmq.Poller()
        for broker in self.brokers:
            for socket in broker.poll_sockets():
                poller.register(socket, zmq.POLLIN)
        if len(poller.sockets):
            poller.poll(int(min(wait_s, 0.2) * 1000) + (wait_s > 0))
        elif wait_s > 0:
            time.sleep(min(wait_s, 0.05))
        for broker in self.brokers:
            for frames in broker.pump():
                self._receive(broker, frames)
        self._check_program()

    def _receive(self, broker: PlayedBroker, frames: list[bytes]) -> None:
        if self._is_for_another(broker, frames[0]):
            return
        if self.note_frames:
            text = " | ".join(shortened(frame.decode(errors="backslashreplace")) for frame in frames)
            self._note(Seen(time.monotonic(), "<-", broker.id, text))
        kept = [frames]
        if self.incoming_filter is not None and len(frames) == 1:
            kept = [[frame] for frame in self.incoming_filter(broker.id, frames[0])]
        for one in kept:
            try:
                message = decoded(one, is_level0=self.setting.is_level0)
                message.broker, message.at_s = broker.id, time.monotonic()
                if not self.setting.is_level0 and broker is self._first_of(message):
                    self.watch.see(message)
            except Failed:
                if self.is_strict:
                    raise
                continue
            self.inbox.append(message)
            if self.setting.is_level0:
                continue
            if message.kind == "heartbeat":
                self.reported[broker.id] = message["sessions"].get(broker.id, "")
            self._answer(broker, message)

    def _first_of(self, message: Message) -> PlayedBroker:
        """The broker whose copy of a message to several brokers is checked."""
        if message.topic.startswith("results@"):
            return next(b for b in self.brokers if b.id == message.broker)
        return next(b for b in self.brokers if b.is_open)

    def _is_for_another(self, broker: PlayedBroker, frame: bytes) -> bool:
        """True for a message to another played broker: this one hears it only because it hears everything."""
        topic = frame.partition(b" ")[0]
        if not topic.startswith(b"results@") or b"{" in topic:
            return False
        named = topic[8:].decode(errors="replace")
        if named == broker.id:
            return False
        if named in [other.id for other in self.brokers]:
            return True
        raise Failed(
            f"a message to the broker {named!r}, which does not exist: {frame[:120]!r}",
            rule="`results@<broker> ` names the broker by the id of its `here` and `welcome`",
            section="2",
        )

    def _answer(self, broker: PlayedBroker, message: Message) -> None:
        """Do what a broker does by itself."""
        worker = message["worker"]
        match message.kind:
            case "hello" if broker.id not in message.get("next", {}):
                self.send(broker.here(), to=worker, broker=broker)
            case "hello" if broker.welcomes:
                self.welcome(message, broker)
            case "heartbeat" if broker.acks_heartbeats:
                session = message.get("sessions", {}).get(broker.id)
                if session == self.sessions.get(broker.id) and session is not None:
                    self.ack_heartbeat(message, broker)
                elif session is not None and session.partition(".")[0] != str(broker.epoch):
                    self.send(broker.here(), to=worker, broker=broker)
            case "results" if broker.acks_results:
                self.ack([message["rid"]], broker=broker, worker=worker)
            case "start" if broker.grants:
                self.go([tuple(item) for item in message["items"]], broker=broker)
            case _:
                pass

    def _check_program(self) -> None:
        program = self.program
        if program is None:
            return
        if program.is_flooding():
            raise Failed(f"the program floods its output: {program.output_bytes >> 20} MiB so far")
        code = program.exit_code()
        if code is not None and not self.may_end:
            raise Failed(f"the program has {ended(code)}{last_lines(program.output())}")

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
        except Failed as failed:
            refusals = [m for m in self.seen("refuse") if list(item) in m["items"]]
            if refusals:
                raise Failed(f"{failed.what}; it was refused: {refusals[-1]!r}") from None
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


def _words(members: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in members.items())
