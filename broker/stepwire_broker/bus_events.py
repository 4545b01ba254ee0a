"""Turn the reports of the bus into events of the core."""

from collections.abc import Callable

import structlog

from .core.model.events import Event, PeerSubscribed, PeersUncertain, PeerVanished, Subscribed, SubscriptionVanished
from .core.model.principal import Grant

log = structlog.get_logger("stepwire.broker")


class BusEvents:
    """The engine's `BusListener`. Messages and refused frames go directly to the engine, whose taps show them."""

    def __init__(
        self,
        *,
        on_message: Callable[[bytes, bytes, str], str | None],
        on_refused_frame: Callable[[str, bytes], None],
        after_drain: Callable[[], None],
        handle: Callable[[Event], None],
        grant_of: Callable[[str], Grant | None],
    ) -> None:
        self.on_message = on_message
        self.on_refused_frame = on_refused_frame
        self.after_drain = after_drain
        self.grant_of = grant_of
        self._handle = handle

    def on_subscribed(self, worker: str) -> None:
        self._handle(Subscribed(worker))

    def on_vanished(self, worker: str) -> None:
        self._handle(SubscriptionVanished(worker))

    def on_peer(self) -> None:
        self._handle(PeerSubscribed())

    def on_peer_gone(self, to: str) -> None:
        self._handle(PeerVanished(to))

    def on_peers_uncertain(self) -> None:
        self._handle(PeersUncertain())

    def on_alarm(self, text: str) -> None:
        log.warning("bus_alarm", text=text)

    def on_disconnected(self, reason: str, principal: str, connections: int) -> None:
        log.warning("peer_disconnected", reason=reason, principal=principal or None, connections=connections)
