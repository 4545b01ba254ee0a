"""The principal of a frame: who sent it, as the connection proved at its handshake.

The authenticator names the principal of each connection that it admits, and libzmq attaches this User-Id to every frame
of the connection. A peer may write metadata itself, but never in place of what the authenticator has set. Frames of
this process have no metadata.

The User-Id also names the key or the user that proved the identity, and how often that proof has lost its access. So
frames of a connection from before a revocation never count again, also if the key is allowed meanwhile.
"""

from collections.abc import Mapping
from typing import Final

import zmq

from stepwire_broker.core.model.principal import NO_PRINCIPAL, PROCESS

USER_ID: Final = "User-Id"
PROOF: Final = "Stepwire-Proof"  # the property that names the key or the user of the connection


class Identities:
    """The principals of one socket's frames. `has_inner`: the socket is also bound for workers in this process."""

    def __init__(self, *, has_inner: bool) -> None:
        self.has_inner = has_inner
        self.principals: Mapping[str, str] = {}  # by User-Id, of the connections that may be open

    def of(self, frame: zmq.Frame) -> str:
        """The frame's principal. A connection whose proof has lost its access has a name without rights."""
        try:
            user_id = str(frame.get(USER_ID))
        except zmq.ZMQError:
            return PROCESS if self.has_inner and descriptor_of(frame) is None else NO_PRINCIPAL
        return self.principals.get(user_id, user_id)


def proof_of(frame: zmq.Frame) -> str:
    """The name of the key or the user that proved the identity of the frame's connection. Empty for all others."""
    try:
        return str(frame.get(PROOF))
    except zmq.ZMQError:
        return ""


def descriptor_of(frame: zmq.Frame) -> int | None:
    """Return the descriptor of a frame's connection. None: the event reports a lost connection, or is of inproc."""
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
    return descriptor if descriptor >= 0 else None
