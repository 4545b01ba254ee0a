"""Station three, dispatch: turn the messages that the core decided on into frames on the bus."""

from stepwire_protocol import codec

from stepwire_broker.core.commit.decision import Decision
from stepwire_broker.core.commit.ports import WirePort


def send(wire: WirePort, decision: Decision) -> None:
    """Send all messages of a decision. Batches go first: a `go` or a `cancel` refers to a batch sent before it."""
    for to in decision.grants:
        wire.grant(to)
    for batch in decision.batches:
        wire.send_frame(batch.frame)
    for handout in decision.handouts:
        assert handout.peer is not None
        wire.send_to_peer(handout.peer.to, handout.body)
        handout.body = b""
    for message in decision.sends:
        wire.send(message.topic, codec.encode(message.message))
