"""Progress reports: only the latest of each run is sent, at most five times a second."""

from typing import Final

from stepwire_protocol.messages import Item, Progress, ProgressItem

from stepwire.actions import NEVER

from .brokers import BrokerPeer
from .deliveries import HeldDelivery
from .holdings import HeldDeliveries
from .outgoing import Outgoing, V, parts

PROGRESS_EVERY_MS: Final = 200


class ProgressReports:
    """The latest progress of each run that was not sent yet."""

    def __init__(self, holdings: HeldDeliveries, out: Outgoing) -> None:
        self.send_at_ms = NEVER
        self._holdings = holdings
        self._out = out
        self._latest: dict[Item, ProgressItem] = {}
        self._sent_ms = -NEVER

    def add(self, held: HeldDelivery, done: float, total: float | None, note: str | None, now_ms: float) -> None:
        self._latest[held.item] = (*held.item, done, total, note)
        self.send_at_ms = max(now_ms, self._sent_ms + PROGRESS_EVERY_MS)

    def forget(self, held: HeldDelivery) -> None:
        self._latest.pop(held.item, None)

    def send(self, now_ms: float) -> None:
        self.send_at_ms = NEVER
        self._sent_ms = now_ms
        latest, self._latest = self._latest, {}
        by_peer: dict[BrokerPeer, list[ProgressItem]] = {}
        for item, entry in latest.items():
            held = self._holdings.get(item)
            if held is not None and held.peer.session is not None:
                by_peer.setdefault(held.peer, []).append(entry)
        for peer, items in by_peer.items():
            for part in parts(items):
                self._out.send_to(peer, Progress(v=V, worker=self._out.worker, session=peer.session or "", items=part))
