"""The interface of the wire's owner."""

from typing import Protocol

from stepwire_broker.core.brokers.listeners import ListenerKind
from stepwire_broker.core.model.principal import Grant


class BusListener(Protocol):
    """Receives the events of the bus. Every method runs on the loop, in the order of events, and may send."""

    def on_message(self, topic: bytes, body: bytes, principal: str, /) -> str | None:
        """Handle one frame of a subscribed topic: the topic with its space, and the unchecked bytes after it. Returns
        the code of its refusal, or None.

        `principal` is the identity that the frame's connection proved.
        """
        ...

    def on_refused_frame(self, code: str, first_part: bytes, principal: str, /) -> None:
        """Handle a frame that is not a message. `code` is one of errors.REFUSALS."""
        ...

    def refusal_of(self, topic: bytes, principal: str, /) -> str | None:
        """Return the code with which this subscription is refused, or None if the principal may receive the topic."""
        ...

    def on_subscribed(self, worker: str, principal: str, kind: ListenerKind, /) -> None:
        """Handle a peer that subscribed this worker's inbox: the next send reaches the peer. `kind`: of the listener
        that it came to."""
        ...

    def on_vanished(self, worker: str, principal: str, /) -> None:
        """Handle the end of the last pipe that received this worker's inbox."""
        ...

    def on_peer(self, principal: str, /) -> None:
        """Handle a level-0 handler that subscribed `steps`. It receives only what is granted during this call."""
        ...

    def on_peer_gone(self, to: str, principal: str, /) -> None:
        """Handle a level-0 handler that unsubscribed or lost its connection. `to` was granted to it."""
        ...

    def on_peers_uncertain(self) -> None:
        """Handle the end of one of several level-0 handlers, which the bus cannot identify."""
        ...

    def on_grants_changed(self, grants: tuple[Grant, ...], declared_dead: frozenset[str], /) -> None:
        """Handle the principals that have access from now on, also before the first connection. The operator states
        that the workers of the revoked principals `declared_dead` have ended."""
        ...

    def on_disconnected(self, reason: str, principal: str, connections: int, /) -> None:
        """Report how many connections of a principal ("": unknown) the bus has ended since the last report."""
        ...

    def grant_of(self, principal: str, /) -> Grant | None:
        """Return the grant of a principal, which may limit its rates."""
        ...

    def after_drain(self) -> None:
        """Decide and flush once for all messages of a drain that ended or used up its budget."""
        ...

    def on_alarm(self, text: str, /) -> None:
        """Report a text of one or two sentences to the operator."""
        ...
