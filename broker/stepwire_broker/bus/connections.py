"""The open connections of both sockets, and the budgets that are applied to each.

ZeroMQ reports the begin and the end of a connection through its monitors, and names the connection of every frame by
its descriptor. A connection that exceeds a budget is disconnected. Its frames that have already arrived are ignored.

A peer on inproc has no connection and no budgets: it runs in this process.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import zmq
from msgspec import Struct, field

from stepwire_broker.core.model.principal import BUILT_IN, PROCESS, Grant

from . import budgets
from .budgets import Offences, PrincipalUsage, Window
from .counters import WireCounters
from .disconnecting import disconnect, inode_of
from .identity import descriptor_of
from .kernel_counts import KernelCounts, bytes_waiting, read_counts
from .stuck_watch import StuckWatch

Role: TypeAlias = Literal["steps", "results"]

MONITORED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
SWEEP_S: Final = 0.1
SWEEP_SOON_S: Final = 0.02  # while much waits unread
SWEEP_EACH_S: Final = 0.0001  # with many connections the sweeps are rarer
LOG_EVERY_S: Final = 10.0
# What the broker sends in a handshake without encryption: the greeting, and READY with the longest socket type.
HANDSHAKE_BYTES_SENT: Final = 64 + 28
HANDSHAKE_BYTES_RECEIVED: Final = 64 + 25  # the least of a peer's part
FRAMING_BYTES: Final = 40  # of one frame, at most
STEPS_UNREAD_BYTES_MAX: Final = 1024 * 1024  # a peer of the steps socket sends nothing but a few subscriptions
STEPS_WAITING_BYTES_MAX: Final = 16 * 1024  # the part of them that the kernel holds

_EVENT: Final = struct.Struct("=Hi")


class BusConnection(Struct, eq=False):
    """One connection. `is_ended`: the bus has disconnected it. Frames that arrived before are ignored."""

    role: Role
    descriptor: int
    inode: int | None
    principal: str | None = None  # of its last frame
    topics: set[bytes] = field(default_factory=set)  # that it subscribed, granted or not
    changes: Window = field(default_factory=Window)  # of its subscriptions
    refused: Window = field(default_factory=Window)
    used_s: float = 0.0  # recent use of its principal's budget, in seconds of that budget; fades
    read_bytes: int = 0
    has_spoken: bool = False  # it has sent its part of the handshake
    is_admitted: bool = False  # its handshake has ended, or the kernel does not tell
    is_flooding: bool = False  # the watch has ended it, and the loop has not noticed
    is_ended: bool = False

    @property
    def key(self) -> tuple[Role, int]:
        return self.role, self.descriptor


class Connections:
    """`read_events` keeps the registry current. The sockets' owner asks it about every frame."""

    def __init__(
        self,
        monitors: Mapping[Role, "zmq.Socket[bytes]"],
        connections_max: int,
        unread_bytes_max: int,
        counters: WireCounters,
        grant_of: Callable[[str], Grant | None],
        report: Callable[[str, str, int], None],
    ) -> None:
        """`report` gets a reason, a principal (empty if unknown), and the number of disconnections since its last
        report."""
        self._monitors = monitors
        self._connections_max = connections_max
        self._unread_bytes_max = unread_bytes_max
        self._counters = counters
        self._grant_of = grant_of
        self._report = report
        self.parted: Final[deque[BusConnection]] = deque()  # ended connections of `steps` that the audience must forget
        # By socket as well: the two may use one descriptor in turn, and their monitors are queues of their own.
        self._open: dict[tuple[Role, int], BusConnection] = {}
        self._muted: dict[
            tuple[Role, int], BusConnection
        ] = {}  # disconnected and gone, with frames that may still be read
        self._handshaking: dict[tuple[Role, int], BusConnection] = {}  # in the order of their begin
        self._usage: dict[str, PrincipalUsage] = {}
        self._offences: dict[str, Offences] = {}
        self._reported: dict[str, tuple[float, int]] = {}  # by principal: when, and how many were not reported since
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # as of the last sweep
        self._turns = 0
        self._watch = StuckWatch(lambda: self._turns, self._end_floods)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for monitor in self._monitors.values():
            self._loop.add_reader(monitor.FD, self.read_events)
        self.read_events()
        self._sweep_later()
        self._watch.start()

    def stop(self) -> None:
        if self._sweep_timer is not None:
            self._watch.stop()
            self._sweep_timer.cancel()
            self._sweep_timer = None
            for monitor in self._monitors.values():
                self._loop.remove_reader(monitor.FD)

    def read_events(self) -> None:
        """Read all events of the monitors. The queue has one edge, so it is always emptied."""
        self._turns += 1
        for role, monitor in self._monitors.items():
            while True:
                try:
                    event, _ = monitor.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                kind, descriptor = _EVENT.unpack(event)
                if kind == zmq.EVENT_ACCEPTED:
                    self._on_accepted(role, descriptor)
                else:
                    self._on_disconnected(role, descriptor)

    def _on_accepted(self, role: Role, descriptor: int) -> None:
        self._on_disconnected(role, descriptor)
        self._muted.pop((role, descriptor), None)
        connection = BusConnection(role, descriptor, inode_of(descriptor))
        self._open[connection.key] = connection
        self._counters.connections[role] += 1
        self._handshaking[connection.key] = connection
        if len(self._open) > self._connections_max:
            self.disconnect(connection, "connections")
        if len(self._handshaking) > budgets.UNAUTHENTICATED_MAX:
            self._end_a_handshake()

    def _on_disconnected(self, role: Role, descriptor: int) -> None:
        connection = self._open.pop((role, descriptor), None)
        if connection is None:
            return
        self._counters.connections[connection.role] -= 1
        self._handshaking.pop(connection.key, None)
        if connection.is_flooding:
            self._offend(connection, "subscriptions")
        if connection.is_ended:
            self._muted[connection.key] = connection
        if connection.role == "steps":
            self.parted.append(connection)

    def _end_a_handshake(self) -> None:
        """Disconnect the oldest peer that has not sent its part of the handshake, or else the oldest one of all."""
        for connection in list(self._handshaking.values()):
            self._observe(connection)
            if not (connection.is_admitted or connection.has_spoken):
                self.disconnect(connection, "unauthenticated")
                return
        if len(self._handshaking) > budgets.UNAUTHENTICATED_MAX:
            self.disconnect(next(iter(self._handshaking.values())), "unauthenticated")

    def _observe(self, connection: BusConnection) -> KernelCounts | None:
        """Note how far the handshake is. Only after its end does the broker send more than its own part of it."""
        counts = read_counts(connection.descriptor)
        connection.has_spoken = counts is None or counts.received >= HANDSHAKE_BYTES_RECEIVED
        connection.is_admitted = connection.is_admitted or counts is None or counts.sent > HANDSHAKE_BYTES_SENT
        if connection.is_admitted:
            self._handshaking.pop(connection.key, None)
        return counts

    # -- ending connections -------------------------------------------------------------------------------------------

    def disconnect(self, connection: BusConnection, reason: str) -> None:
        """End a connection, count it and report it. Frames that it has already sent are ignored."""
        if connection.is_ended:
            return
        connection.is_ended = True
        self._handshaking.pop(connection.key, None)
        disconnect(connection.descriptor, connection.inode)
        self._counters.disconnected[reason] += 1
        now_s, principal = self._loop.time(), connection.principal or ""
        since_s, unreported = self._reported.get(principal, (-LOG_EVERY_S, 0))
        if now_s - since_s >= LOG_EVERY_S:
            self._reported[principal] = (now_s, 0)
            self._report(reason, principal, unreported + 1)
        else:
            self._reported[principal] = (since_s, unreported + 1)

    def disconnect_principal(self, principal: str, reason: str) -> int:
        """End every connection that has sent a frame as this principal. Return their number."""
        self.read_events()
        own = [one for one in self._open.values() if one.principal == principal and not one.is_ended]
        for connection in own:
            self.disconnect(connection, reason)
        return len(own)

    def _offend(self, connection: BusConnection, reason: str) -> None:
        """Disconnect a peer that no correct program can be. If it repeats that, block its principal for a time."""
        self.disconnect(connection, reason)
        principal = connection.principal
        # Honest and hostile peers may share an identity that needs no key.
        if principal and principal not in BUILT_IN:
            offences = self._offences.setdefault(principal, Offences())
            if offences.add(self._loop.time()):
                self.disconnect_principal(principal, "blocked")

    @property
    def blocked(self) -> frozenset[str]:
        """The principals that are blocked now. The authenticator refuses their new connections."""
        now_s = self._loop.time()
        return frozenset(name for name, offences in self._offences.items() if offences.blocked_until_s > now_s)

    def _is_blocked(self, connection: BusConnection) -> bool:
        if connection.principal in self._offences:
            return self._offences[connection.principal].blocked_until_s > self._loop.time()
        return False

    # -- frames -------------------------------------------------------------------------------------------------------

    def of(self, role: Role, frame: zmq.Frame, principal: str) -> BusConnection | None:
        """Return the connection that sent this frame. None: inproc, or it has ended by itself."""
        descriptor = descriptor_of(frame)
        if descriptor is None:
            return None
        connection = self._open.get((role, descriptor)) or self._muted.get((role, descriptor))
        if connection is None:
            self.read_events()
            connection = self._open.get((role, descriptor))
        if connection is not None and connection.principal != principal:
            connection.principal = principal
            if not connection.is_ended and self._is_blocked(connection):
                self.disconnect(connection, "blocked")
        return connection

    def has_ended(self, role: Role, frame: zmq.Frame) -> bool:
        """True if the bus has disconnected the connection that sent this frame."""
        descriptor = descriptor_of(frame)
        if descriptor is None:
            return False
        connection = self._open.get((role, descriptor)) or self._muted.get((role, descriptor))
        return connection is not None and connection.is_ended

    def admits_event(self, connection: BusConnection, sign: bytes, topic: bytes) -> bool:
        """Count an event of the steps socket. False: the connection has ended, and the event changes nothing."""
        if sign == b"\x01":
            connection.topics.add(topic)
        elif sign == b"\x00":
            connection.topics.discard(topic)
        if connection.is_ended:
            return False
        connection.read_bytes += len(topic) + FRAMING_BYTES
        if sign not in (b"\x00", b"\x01"):
            self._offend(connection, "user_message")
        elif (
            len(connection.topics) > budgets.SUBSCRIPTIONS_MAX
            or connection.is_flooding
            or connection.changes.add(self._loop.time()) > budgets.SUBSCRIPTION_CHANGES_MAX
        ):
            self._offend(connection, "subscriptions")
        return not connection.is_ended

    def admits(self, connection: BusConnection | None, size: int, principal: str) -> bool:
        """Count a frame of the results socket. False: the frame exceeds the rate, or its connection has ended."""
        self._turns += 1
        if connection is not None:
            connection.read_bytes += size + FRAMING_BYTES
            if connection.is_ended:
                return False
        if principal == PROCESS:
            return True
        now_s = self._loop.time()
        usage = self._usage.get(principal) or self._unused(principal, now_s)
        if connection is not None:
            connection.used_s += 1 / usage.messages.per_s + size / usage.bytes.per_s
        verdict = usage.take(size, now_s)
        if verdict == "pass":
            return True
        self._counters.refused["rate"] += 1
        if verdict == "disconnect":
            self._disconnect_heaviest(principal)
        return False

    def _unused(self, principal: str, now_s: float) -> PrincipalUsage:
        grant = self._grant_of(principal)
        rates = (None, None) if grant is None else (grant.messages_per_s, grant.bytes_per_s)
        usage = self._usage[principal] = PrincipalUsage.unused(*rates, now_s)
        return usage

    def grants_changed(self) -> None:
        """Apply the rates of new grants."""
        self._usage.clear()

    def refused(self, connection: BusConnection | None) -> None:
        """Count a frame that was refused by its form, by the core or by a grant."""
        if connection is None or connection.is_ended:
            return
        if connection.refused.add(self._loop.time()) > budgets.REFUSED_MAX:
            self._offend(connection, "refused_frames")

    def _disconnect_heaviest(self, principal: str) -> None:
        """One identity may have many connections, so the one that uses most of its budget ends first."""
        own = [one for one in self._open.values() if one.principal == principal and not one.is_ended]
        if own:
            self.disconnect(max(own, key=lambda one: one.used_s), "rate")

    def _end_floods(self) -> None:
        """Called in the watch's thread. The list is a snapshot, which the interpreter copies at once."""
        for connection in list(self._open.values()):
            if (
                connection.role == "steps"
                and not connection.is_ended
                and bytes_waiting(connection.descriptor) > STEPS_WAITING_BYTES_MAX
                and disconnect(connection.descriptor, connection.inode)
            ):
                connection.is_flooding = True

    # -- memory -------------------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        wait_s = SWEEP_SOON_S if self._unread_bytes > self._unread_bytes_max / 4 else SWEEP_S
        delay_s = max(wait_s, SWEEP_EACH_S * len(self._open))
        self._sweep_timer = self._loop.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        self.read_events()
        self.limit_unread()

    def limit_unread(self) -> None:
        """Disconnect the peers whose unread messages, finished or not, take most of the memory.

        libzmq limits a connection's queue by finished messages. A message in parts has no limit, and each connection
        may also have one unfinished message of the largest size.
        """
        unread: list[tuple[int, BusConnection]] = []
        for connection in list(self._open.values()):
            connection.used_s /= 2
            if connection.is_flooding:
                self._offend(connection, "subscriptions")
            counts = self._observe(connection)
            if counts is None:
                continue
            left = counts.received - connection.read_bytes
            if left < 0:  # FRAMING_BYTES is an upper bound
                connection.read_bytes = counts.received
            elif connection.is_ended:
                continue
            elif connection.role == "steps" and left > STEPS_UNREAD_BYTES_MAX:
                self._offend(connection, "unread_bytes")
            else:
                unread.append((left, connection))
        self._limit_total(unread)

    def _limit_total(self, unread: list[tuple[int, BusConnection]]) -> None:
        self._unread_bytes = sum(left for left, _ in unread)
        excess = self._unread_bytes - self._unread_bytes_max
        if excess <= 0:
            return
        for left, connection in sorted(unread, key=lambda each: -each[0]):
            self.disconnect(connection, "unread_bytes")
            excess -= left
            if excess <= 0:
                return
