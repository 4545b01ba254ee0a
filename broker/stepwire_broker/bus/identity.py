"""The principal of a frame: who sent it, as the connection proves.

Over ipc the kernel names the account of the peer, over tcp without keys nothing is proven, and inside this process
frames have no metadata. With an authenticator, each admitted connection has a User-Id, and only that counts: libzmq
also accepts metadata that a peer writes itself, but never in place of what the authenticator or the socket has set.
"""

import os
from typing import Final, Literal

import zmq

from stepwire_broker.core.model.principal import ANONYMOUS, NOBODY, OWNER, PROCESS

USER_ID: Final = "User-Id"
PEER_ADDRESS: Final = "Peer-Address"  # over ipc localhost:<uid>:<gid>:<pid>
REMEMBERED_MAX: Final = 4_096

Transport = Literal["tcp", "ipc", "inproc"]


class Identities:
    """The principals of one socket's frames. `has_inner`: the socket is also bound for workers in this process."""

    def __init__(self, transport: Transport, *, has_authenticator: bool = False) -> None:
        self.has_inner = transport == "inproc"
        self._transport = transport
        self._has_authenticator = has_authenticator
        self._known: dict[str, str] = {}  # by address, each of which names one process

    def of(self, frame: zmq.Frame) -> str:
        if self._transport == "inproc":
            return PROCESS
        try:
            if self._has_authenticator:
                return str(frame.get(USER_ID))
            address = str(frame.get(PEER_ADDRESS))
        except zmq.ZMQError:
            return PROCESS if self.has_inner and descriptor_of(frame) is None else NOBODY
        if self._transport == "tcp":
            return ANONYMOUS
        principal = self._known.get(address)
        if principal is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            principal = self._known[address] = _of_account(address)
        return principal


def descriptor_of(frame: zmq.Frame) -> int | None:
    """Return the descriptor of a frame's connection. None: the event reports a lost connection, or is of inproc."""
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
    return descriptor if descriptor >= 0 else None


def _of_account(address: str) -> str:
    """Return the principal of an ipc peer. Another account has rights only if a grant names it."""
    parts = address.split(":")
    if len(parts) != 4 or not parts[1].isdigit():
        return NOBODY
    uid = int(parts[1])
    return OWNER if uid == os.geteuid() else f"unix:{uid}"
