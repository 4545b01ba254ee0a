"""The interface of the wire's owner."""

from typing import Final, Protocol

from stepwire_broker.core.model.principal import Grant

UNAUTHENTICATED: Final = ""  # the principal of a message whose connection proved no identity


class BusListener(Protocol):
    """Receives the events of the bus. Every method runs on the loop, in the order of events, and may send."""

    def on_message(self, topic: bytes, body: bytes, principal: str, /) -> str | None:
        """Handle one frame of a subscribed topic: the topic with its space, and the unchecked bytes after it.

        `principal` is the identity of the frame's connection, or UNAUTHENTICATED. Returns the code of a refusal.
        """
        ...

    def on_refused_frame(self, code: str, first_part: bytes, /) -> None:
        """Handle a frame that is not a message. `code` is one of errors.REFUSALS."""
        ...

    def on_subscribed(self, worker: str, /) -> None:
        """Handle a peer that subscribed this worker's inbox: the next send reaches the peer."""
        ...

    def on_vanished(self, worker: str, /) -> None:
        """Handle the end of the last pipe that received this worker's inbox."""
        ...

    def on_peer(self) -> None:
        """Handle a level-0 handler that subscribed `steps`. It receives only what is granted during this call."""
        ...

    def on_peer_gone(self, to: str, /) -> None:
        """Handle a level-0 handler that unsubscribed or lost its connection. `to` was granted to it."""
        ...

    def on_peers_uncertain(self) -> None:
        """Handle the end of one of several level-0 handlers, which the bus cannot identify."""
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
