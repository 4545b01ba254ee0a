"""The messages of a worker as the played brokers hear them, and the waits of a case for them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from .always import decoded
from .broker import PlayedBroker
from .case import RuleBroken
from .endpoints import Transport
from .frames import Message, Seen, shortened
from .keys import ServerKeys
from .played_side import Filter, PlayedSide
from .setting import ENOUGH_S, Setting


class HeardSide(PlayedSide):
    """Everything that was received. While a case waits, the played brokers do what their switches say."""

    def __init__(self, setting: Setting, transport: Transport, brokers: int, keys: ServerKeys | None) -> None:
        super().__init__(setting, transport, brokers, keys)
        self.inbox: list[Message] = []
        self.incoming_filter: Filter | None = None
        self.is_strict = True  # a broken rule of `always` fails the case at once
        self._ended: set[str] = set()  # the ids of earlier processes of the program
        self.reported: dict[str, str] = {}  # broker -> the session that the worker's last heartbeat named

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
        """Wait for a message of this kind with these members, and take it. Earlier ones that were not taken count."""

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
                    raise RuleBroken(f"a message came where none may{': ' + why if why else ''}: {message!r}")
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
        """Wait until this is true. Raises RuleBroken after `within_s`, multiplied by the patience of the run."""
        self.pump(0)
        until_s = time.monotonic() + within_s * self.setting.patience
        while not is_true():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise RuleBroken(f"no {what} within {within_s:g} s{self._instead(kind)}")
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
                if message.get("worker") in self._ended:
                    continue  # still under way when its process was ended
                if not self.setting.is_level0 and broker is self._first_of(message):
                    self.watch.see(message)
            except RuleBroken:
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
        raise RuleBroken(
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
        """Raise RuleBroken if the program has ended without being asked to. Called after each wait."""
        raise NotImplementedError


def _words(members: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in members.items())
