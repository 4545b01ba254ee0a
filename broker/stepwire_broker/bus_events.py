"""Turn the reports of the bus into events of the core."""

from collections.abc import Callable

import structlog

from .core.brokers.listeners import ListenerKind
from .core.model.events import (
    Event,
    GrantsChanged,
    PeerSubscribed,
    PeersUncertain,
    PeerVanished,
    Subscribed,
    SubscriptionVanished,
)
from .core.model.principal import PROCESS, Grant

log = structlog.get_logger("stepwire.broker")


class BusEvents:
    """The engine's `BusListener`. Messages and refused frames go directly to the engine, whose taps show them."""

    def __init__(
        self,
        *,
        on_message: Callable[[bytes, bytes, str], str | None],
        on_refused_frame: Callable[[str, bytes, str], None],
        refusal_of: Callable[[bytes, str], str | None],
        after_drain: Callable[[], None],
        handle: Callable[[Event, str], None],
        grant_of: Callable[[str], Grant | None],
    ) -> None:
        self.on_message = on_message
        self.on_refused_frame = on_refused_frame
        self.refusal_of = refusal_of
        self.after_drain = after_drain
        self.grant_of = grant_of
        self._handle = handle

    def on_subscribed(self, worker: str, principal: str, kind: ListenerKind) -> None:
        self._handle(Subscribed(worker, kind), principal)

    def on_vanished(self, worker: str, principal: str) -> None:
        self._handle(SubscriptionVanished(worker), principal)

    def on_peer(self, principal: str) -> None:
        self._handle(PeerSubscribed(), principal)

    def on_peer_gone(self, to: str, principal: str) -> None:
        self._handle(PeerVanished(to), principal)

    def on_peers_uncertain(self) -> None:
        self._handle(PeersUncertain(), PROCESS)

    def on_grants_changed(self, grants: tuple[Grant, ...], declared_dead: frozenset[str]) -> None:
        self._handle(GrantsChanged(grants, declared_dead), PROCESS)
        self.after_drain()

    def on_alarm(self, text: str) -> None:
        log.warning("bus_alarm", text=text)

    def on_disconnected(self, reason: str, principal: str, connections: int) -> None:
        log.warning("peer_disconnected", reason=reason, principal=principal or None, connections=connections)
