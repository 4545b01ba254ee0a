"""The owner of a wire, as the wire sees it."""

from typing import Final, Protocol

UNAUTHENTICATED: Final = ""  # the principal of a message whose connection proved no identity


class BusListener(Protocol):
    """Receives what happens on the bus. Every method runs on the loop, in the order of events, and may send."""

    def on_message(self, topic: bytes, body: bytes, principal: str, /) -> None:
        """Handle one frame of a subscribed topic: the topic with its space, and the unchecked bytes after it.

        `principal` is the identity of the connection that it came from, or UNAUTHENTICATED.
        """
        ...

    def on_refused_frame(self, code: str, first_part: bytes, /) -> None:
        """Handle a frame that is no message at all. `code` is one of errors.REFUSALS."""
        ...

    def on_subscribed(self, worker: str, /) -> None:
        """A peer now receives this worker's inbox: the very next send reaches it."""
        ...

    def on_vanished(self, worker: str, /) -> None:
        """The last pipe that received this worker's inbox is gone."""
        ...

    def on_peer(self) -> None:
        """A level-0 handler subscribed `steps`. It receives what is granted to it during this call."""
        ...

    def on_peer_gone(self, to: str, /) -> None:
        """The level-0 handler with this `to` unsubscribed or lost its connection."""
        ...

    def on_peers_uncertain(self) -> None:
        """One of several level-0 handlers is gone, and the bus cannot know which."""
        ...

    def after_drain(self) -> None:
        """A drain ended or used up its budget: decide and flush once for all of it."""
        ...

    def on_alarm(self, text: str, /) -> None:
        """An operator must know this. One or two sentences."""
        ...
