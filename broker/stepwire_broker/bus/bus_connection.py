"""One connection of the bus, and its use of the budgets."""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from stepwire_broker.core.brokers.listeners import ListenerKind

from .admission import is_user
from .budgets import Window

Role: TypeAlias = Literal["steps", "results"]


class BusConnection(Struct, eq=False):
    """One connection. `is_ended`: the bus has disconnected it. Frames that arrived before are ignored."""

    role: Role
    descriptor: int
    inode: int | None
    principal: str | None = None  # of its last frame
    proof: str = ""  # the key or the user that it was admitted with, as the file of last uses names it
    topics: set[bytes] = field(default_factory=set)  # that it subscribed, granted or not
    changes: Window = field(default_factory=Window)  # of its subscriptions
    refused: Window = field(default_factory=Window)
    used_s: float = 0.0  # recent use of its principal's budget, in seconds of that budget; fades
    read_bytes: int = 0
    received_bytes: int = 0  # as of the last sweep
    has_spoken: bool = False  # it has sent its part of the handshake
    is_admitted: bool = False  # its handshake has ended, or the kernel does not tell
    is_ended: bool = False
    ended_for: str | None = None  # the watch has ended it for this reason, and the loop has not counted that

    @property
    def kind(self) -> ListenerKind:
        """The kind of listener that it came to. Over tcp without keys, a connection proves nothing."""
        if not self.proof:
            return ListenerKind.TCP
        return ListenerKind.IPC if is_user(self.proof) else ListenerKind.CURVE

    @property
    def key(self) -> tuple[Role, int]:
        return self.role, self.descriptor
