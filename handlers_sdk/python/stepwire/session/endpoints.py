"""The endpoints of brokers: decides which to connect, when to connect again, and which to disconnect."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Endpoints

from stepwire.actions import NEVER, Connect, Disconnect, Link, Rebuild

from .brokers import BrokerPeer, Brokers
from .config import Config
from .holdings import HeldDeliveries
from .outgoing import Outgoing

CHECK_EVERY_MS: Final = 1_000


class BrokerLinks:
    """The connected links, and the broker at each link if it is known."""

    def __init__(self, config: Config, brokers: Brokers, holdings: HeldDeliveries, out: Outgoing) -> None:
        self.check_at_ms = NEVER
        self._has_curve = config.curve
        self._broker_of: dict[Link, str | None] = dict.fromkeys(config.links)
        self._connected_ms: dict[Link, float] = {}
        self._listed_ms: dict[Link, float] = {}  # of links learned from a list: when a list last named the broker
        self._lists: dict[BrokerPeer, set[str]] = {}  # the brokers that each broker listed in its open session
        self._keys: dict[str, list[str]] = {}  # the CURVE keys that each broker lists for itself, the current one first
        self._key: dict[Link, str] = {}  # of links whose latest key is not the configured one
        self._moved: dict[str, tuple[Link, str | None]] = {}  # the listed address, and key, if another one is connected
        self._ignored: set[str] = set()  # brokers that need CURVE keys, which the worker does not have
        self._brokers = brokers
        self._holdings = holdings
        self._out = out

    def start(self, now_ms: float) -> None:
        self._connected_ms = dict.fromkeys(self._broker_of, now_ms)
        self.check_at_ms = now_ms + limits.SERVER_KEY_RETRY_MS

    def learn(self, peer: BrokerPeer, listed: list[Endpoints], now_ms: float) -> None:
        """Connect to the brokers that this broker lists. A configured endpoint may be the same broker with another
        address."""
        self._lists[peer] = {entry.broker for entry in listed}
        listed = [entry for entry in listed if entry.steps and entry.results]
        known = {broker: link for link, broker in self._broker_of.items() if broker is not None}
        for entry in listed:
            link = Link(entry.steps, entry.results)
            if link in self._broker_of and self._broker_of[link] is None:
                self._broker_of[link] = entry.broker
                known[entry.broker] = link
        unnamed = [link for link, broker in self._broker_of.items() if broker is None]
        if peer.id not in known and len(unnamed) == 1:
            self._broker_of[unnamed.pop()] = peer.id
        for entry in listed:
            link = Link(entry.steps, entry.results)
            if entry.broker not in self._brokers and entry.broker not in known and not unnamed:
                if entry.server_key is not None and not self._has_curve:
                    self._ignore(entry.broker)
                    continue
                known[entry.broker] = link
                self._broker_of[link] = entry.broker
                self._connected_ms[link] = self._listed_ms[link] = now_ms
                self._out.add(Connect(link, entry.server_key))
        for broker, entry in {entry.broker: entry for entry in reversed(listed)}.items():
            if known.get(broker) in self._listed_ms:
                self._note_address(entry, known[broker])
        if self._has_curve:
            keys = [entry.server_key for entry in listed if entry.broker == peer.id and entry.server_key is not None]
            self._follow_key(peer.id, keys, now_ms)

    def _note_address(self, entry: Endpoints, connected: Link) -> None:
        """Note the address of a broker that was learned from a list, if another one is connected."""
        link = Link(entry.steps, entry.results)
        if link == connected or (entry.server_key is not None and not self._has_curve):
            self._moved.pop(entry.broker, None)
        else:
            self._moved[entry.broker] = link, entry.server_key

    def _follow_key(self, broker: str, keys: list[str], now_ms: float) -> None:
        """Connect again with the broker's current key if it has changed."""
        if not keys:
            return
        before = self._keys.get(broker, keys)
        self._keys[broker] = keys
        link = self.link_of(broker)
        if link is not None and before[0] != keys[0] and self._key.get(link) != keys[0]:
            self._connect_with(link, keys[0], now_ms)
            self._out.log("info", "server_key_changed", link=link, broker=broker)

    def _connect_with(self, link: Link, key: str, now_ms: float) -> None:
        self._key[link] = key
        self._connected_ms[link] = now_ms
        self._out.add(Disconnect(link))
        self._out.add(Connect(link, key))

    def _next_key(self, link: Link, keys: list[str]) -> str:
        """The key for the next attempt. A broker that has listed several keys may have changed its key meanwhile."""
        used = self._key.get(link, keys[0] if len(keys) > 1 else "")
        return keys[(keys.index(used) + 1) % len(keys)] if used in keys else keys[0]

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

    def check(self, now_ms: float) -> None:
        """Disconnect brokers that are no longer listed, and connect silent ones again."""
        self._disconnect_unlisted(now_ms)
        self._rebuild_silent(now_ms)
        self.check_at_ms = now_ms + CHECK_EVERY_MS

    def _disconnect_unlisted(self, now_ms: float) -> None:
        """Disconnect brokers that were learned from a list, are absent from every list for long, and own nothing."""
        listed = {broker for peer, brokers in self._lists.items() if peer.session is not None for broker in brokers}
        for link, listed_ms in list(self._listed_ms.items()):
            broker = self._broker_of[link]
            assert broker is not None
            peer = self._brokers.get(broker)
            if broker in listed:
                self._listed_ms[link] = now_ms
            elif now_ms - listed_ms >= limits.UNLISTED_MS and (peer is None or self._is_unused(peer)):
                del self._listed_ms[link], self._broker_of[link], self._connected_ms[link]
                self._keys.pop(broker, None)
                self._moved.pop(broker, None)
                self._key.pop(link, None)
                if peer is not None:
                    self._lists.pop(peer, None)
                    self._brokers.forget(peer)
                self._out.add(Disconnect(link))
                self._out.log("info", "link_removed", link=link, broker=broker)

    def _is_unused(self, peer: BrokerPeer) -> bool:
        return peer.session is None and not self._holdings.of_broker(peer)

    def _rebuild_silent(self, now_ms: float) -> None:
        """Connect silent links again. A refused or dead connection reports no error, and never recovers by itself."""
        named = set(self._broker_of.values())
        unnamed = sum(broker is None for broker in self._broker_of.values())
        since_ms = now_ms - limits.SOCKET_REBUILD_MS
        strangers = sum(p.id not in named and p.answered_ms > since_ms for p in self._brokers if p.session)
        for link, broker in list(self._broker_of.items()):
            peer = None if broker is None else self._brokers.get(broker)
            if broker is None and strangers >= unnamed:
                continue
            answered_ms = -NEVER if peer is None else peer.answered_ms
            keys = self._keys.get(broker or "", [])
            silent_ms = limits.SERVER_KEY_RETRY_MS if len(keys) > 1 else limits.SOCKET_REBUILD_MS
            if max(answered_ms, self._connected_ms[link]) <= now_ms - silent_ms:
                moved = self._moved.pop(broker or "", None)
                if moved is not None and moved[0] not in self._broker_of:
                    self._move(link, *moved, now_ms)
                    continue
                if keys:
                    self._connect_with(link, self._next_key(link, keys), now_ms)
                else:
                    self._connected_ms[link] = now_ms
                    self._out.add(Rebuild(link))
                self._out.log("debug", "link_rebuilt", link=link, broker=broker)

    def _move(self, link: Link, to: Link, key: str | None, now_ms: float) -> None:
        """Connect a broker at the address that a list named last, instead of this one."""
        broker = self._broker_of.pop(link)
        self._broker_of[to] = broker
        self._listed_ms[to] = self._listed_ms.pop(link)
        del self._connected_ms[link]
        self._connected_ms[to] = now_ms
        self._key.pop(link, None)
        if key is not None:
            self._key[to] = key
        self._out.add(Disconnect(link))
        self._out.add(Connect(to, key))
        self._out.log("info", "link_moved", link=to, broker=broker)

    def _ignore(self, broker: str) -> None:
        """Do not connect to a broker that requires CURVE keys. Logged once for each broker."""
        if broker not in self._ignored:
            self._ignored.add(broker)
            self._out.log("warning", "broker_ignored", broker=broker)
