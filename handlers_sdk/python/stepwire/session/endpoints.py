"""The endpoints of brokers: decides which to connect, and when to connect again."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Welcome

from stepwire.actions import NEVER, Connect, Link, Rebuild

from .brokers import BrokerPeer, Brokers
from .outgoing import Outgoing

CHECK_EVERY_MS: Final = 1_000


class BrokerLinks:
    """The connected links, and the broker at each link if it is known."""

    def __init__(self, links: tuple[Link, ...], brokers: Brokers, out: Outgoing) -> None:
        self.check_at_ms = NEVER
        self._broker_of: dict[Link, str | None] = dict.fromkeys(links)
        self._connected_ms: dict[Link, float] = {}
        self._brokers = brokers
        self._out = out

    def start(self, now_ms: float) -> None:
        self._connected_ms = dict.fromkeys(self._broker_of, now_ms)
        self.check_at_ms = now_ms + limits.SOCKET_REBUILD_MS

    def learn(self, peer: BrokerPeer, message: Welcome, now_ms: float) -> None:
        """Connect to the brokers that a welcome lists. A configured endpoint may be the same broker with another
        address."""
        known = {broker: link for link, broker in self._broker_of.items() if broker is not None}
        for entry in message.brokers:
            link = Link(entry.steps, entry.results)
            if link in self._broker_of and self._broker_of[link] is None:
                self._broker_of[link] = entry.broker
                known[entry.broker] = link
        unnamed = [link for link, broker in self._broker_of.items() if broker is None]
        if peer.id not in known and len(unnamed) == 1:
            self._broker_of[unnamed.pop()] = peer.id
        for entry in message.brokers:
            link = Link(entry.steps, entry.results)
            if entry.broker not in self._brokers and entry.broker not in known and not unnamed:
                self._broker_of[link] = entry.broker
                self._connected_ms[link] = now_ms
                self._out.add(Connect(link))

    def link_of(self, broker: str) -> Link | None:
        """The link to this broker, if it is known."""
        return next((link for link, named in self._broker_of.items() if named == broker), None)

    def without_session(self) -> list[Link]:
        """The links to brokers that no session is open with."""
        named = set(self._broker_of.values())
        strangers = sum(peer.session is not None and peer.id not in named for peer in self._brokers)
        unnamed = [link for link, broker in self._broker_of.items() if broker is None]
        closed = [
            link
            for link, broker in self._broker_of.items()
            if broker is not None and ((peer := self._brokers.get(broker)) is None or peer.session is None)
        ]
        return closed + (unnamed if strangers < len(unnamed) else [])

    def rebuild_silent(self, now_ms: float) -> None:
        """Connect silent links again. A refused or dead connection reports no error, and never recovers by itself."""
        named = set(self._broker_of.values())
        unnamed = sum(broker is None for broker in self._broker_of.values())
        since_ms = now_ms - limits.SOCKET_REBUILD_MS
        strangers = sum(p.id not in named and p.answered_ms > since_ms for p in self._brokers if p.session)
        for link, broker in self._broker_of.items():
            peer = None if broker is None else self._brokers.get(broker)
            if broker is None and strangers >= unnamed:
                continue
            answered_ms = -NEVER if peer is None else peer.answered_ms
            if max(answered_ms, self._connected_ms[link]) <= since_ms:
                self._connected_ms[link] = now_ms
                self._out.add(Rebuild(link))
                self._out.log("debug", "link_rebuilt", link=link, broker=broker)
        self.check_at_ms = now_ms + CHECK_EVERY_MS
