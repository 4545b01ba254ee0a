"""The open connections of both sockets, and the budgets that are applied to each.

ZeroMQ reports the begin and the end of a connection through its monitors, and names the connection of every frame by
its descriptor. A connection that exceeds a budget is disconnected. Its frames that have already arrived are ignored.

A peer on inproc has no connection and no budgets: it runs in this process.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from stepwire_broker.core.model.principal import BUILT_IN, PROCESS, Grant

from . import budgets, handshakes
from .budgets import Offences, PrincipalUsage
from .bus_connection import BusConnection, Role
from .counters import WireCounters
from .disconnecting import disconnect, inode_of
from .disconnections import Disconnections
from .flood_watch import FloodWatch
from .floods import SWEEP_EACH_S, Floods
from .identity import descriptor_of, proof_of
from .kernel_counts import KernelCounts, bytes_waiting, read_counts
from .local_handshakes import LocalHandshakes
from .newcomers import Newcomers
from .user_id import owner_of

MONITORED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
SWEEP_S: Final = 0.1
EVENTS_PER_TURN: Final = 200  # afterwards the loop does other work
EVENTS_MAX: Final = 5_000  # for an answer that depends on them
FRAMING_BYTES: Final = 40  # of one frame, at most
BLAMELESS: Final = (
    "connections",
    "muted_inbox",
    "revoked",
    "old_server_key",
)  # an honest peer may end for these reasons

_LOCAL: Final = b"ipc://"
_EVENT: Final = struct.Struct("=Hi")

_FAILED: Final = frozenset(
    {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}
)

# Handshakes that libzmq ends before it asks the authenticator. All others are a `bad_handshake`.
_REFUSED_HANDSHAKES: Final[Mapping[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "wrong_mechanism",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "wrong_server_key",
}


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
        hold_back: Callable[[float], None] = lambda _: None,
        handshake: handshakes.HandshakeBytes = handshakes.PLAIN,
    ) -> None:
        """`report` gets a reason, a principal (empty if unknown), and the number of disconnections since its last
        report. `hold_back` delays new connections by at most this time in seconds; another thread calls it."""
        self._monitors = monitors
        self._connections_max = connections_max
        self._counters = counters
        self._grant_of = grant_of
        self.disconnections: Final = Disconnections(counters, report)
        self.parted: Final[deque[BusConnection]] = deque()  # ended connections of `steps` that the audience must forget
        # By socket as well: the two may use one descriptor in turn, and their monitors are queues of their own.
        self._open: dict[tuple[Role, int], BusConnection] = {}
        self._muted: dict[
            tuple[Role, int], BusConnection
        ] = {}  # disconnected and gone, with frames that may still be read
        self._handshaking: dict[tuple[Role, int], BusConnection] = {}  # in the order of their begin
        self._local: Final = LocalHandshakes()
        self._has_failed: dict[Role, bool] = dict.fromkeys(monitors, False)  # the last event was a failed handshake
        self._usage: dict[str, PrincipalUsage] = {}
        self._offences: dict[str, Offences] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_steps_read = False  # all events, since the last sweep
        self._turns = 0
        self._is_scheduled = False  # the rest of the events is read soon
        self.floods: Final = Floods(lambda: list(self._open.values()), unread_bytes_max, hold_back)
        self._handshake = handshake
        self.newcomers: Final = Newcomers(self._on_edge)
        self._watch = FloodWatch(lambda: self._turns, self.floods.end_subscriptions, self.floods.measure)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.newcomers.start()
        for monitor in self._monitors.values():
            self._loop.add_reader(monitor.FD, self._on_edge)
        self._sweep_later()
        self._on_edge()
        self._watch.start()

    def stop(self) -> None:
        self.newcomers.stop()
        if self._sweep_timer is not None:
            self._watch.stop()
            self._sweep_timer.cancel()
            self._sweep_timer = None
            for monitor in self._monitors.values():
                self._loop.remove_reader(monitor.FD)

    def read_events(self) -> None:
        """Read all events of the monitors, before an answer that depends on them."""
        self._read_events(EVENTS_MAX)

    def _on_edge(self) -> bool:
        """Read some events. Peers that connect again at once could keep the loop here for as long as they like. Return
        True if all have been read."""
        self._is_scheduled = False
        if self._sweep_timer is not None:  # not stopped
            self._read_events(EVENTS_PER_TURN)
        return not self._is_scheduled

    def _read_events(self, most: int) -> None:
        """Read at most this number of events. The queue has one edge, so the rest is read in the next turn."""
        self._turns += 1
        for role, monitor in self._monitors.items():
            for _ in range(most):
                try:
                    event, endpoint = monitor.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                kind, value = _EVENT.unpack(event)
                self._on_event(role, kind, value, is_local=endpoint.startswith(_LOCAL))
            else:
                if not self._is_scheduled:
                    self._is_scheduled = True
                    self._loop.call_soon(self._on_edge)

    def _on_event(self, role: Role, kind: int, value: int, *, is_local: bool) -> None:
        has_failed, self._has_failed[role] = self._has_failed[role], kind in _FAILED
        match kind:
            case zmq.EVENT_ACCEPTED:
                self._on_accepted(role, value, is_local)
            case zmq.EVENT_DISCONNECTED:
                self._on_disconnected(role, value, has_failed=has_failed)
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                if is_local:
                    self._local.succeeded()
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                pass  # the authenticator counts what it refuses
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # the peer or the time ended it
                self._counters.refused["unfinished_handshake"] += 1
            case _:
                self._counters.refused[_REFUSED_HANDSHAKES.get(value, "bad_handshake")] += 1

    def _on_accepted(self, role: Role, descriptor: int, is_local: bool) -> None:
        self._on_disconnected(role, descriptor)
        self._muted.pop((role, descriptor), None)
        connection = BusConnection(role, descriptor, inode_of(descriptor))
        self._open[connection.key] = connection
        self._counters.connections[role] += 1
        if is_local:
            self._local.begun(connection, time.monotonic())
        else:
            self._handshaking[connection.key] = connection
        if len(self._open) > self._connections_max:
            self.disconnect(connection, "connections")
        if len(self._handshaking) > budgets.UNAUTHENTICATED_MAX:
            self._end_a_handshake()

    def _on_disconnected(self, role: Role, descriptor: int, *, has_failed: bool = False) -> None:
        connection = self._open.pop((role, descriptor), None)
        if connection is None:
            return
        self._counters.connections[connection.role] -= 1
        self._handshaking.pop(connection.key, None)
        self._local.ended(connection, has_failed=has_failed)
        self._settle(connection)
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
        connection.has_spoken = self._handshake.has_spoken(counts)
        connection.is_admitted = connection.is_admitted or self._handshake.has_ended(counts)
        if connection.is_admitted:
            self._handshaking.pop(connection.key, None)
        return counts

    # -- ending connections -------------------------------------------------------------------------------------------

    def disconnect(self, connection: BusConnection, reason: str) -> None:
        """End a connection, count it and report it. Frames that it has already sent are ignored."""
        if connection.is_ended:
            return
        connection.is_ended = True
        disconnect(connection.descriptor, connection.inode)
        self._count(connection, reason)

    def _count(self, connection: BusConnection, reason: str) -> None:
        self._handshaking.pop(connection.key, None)
        self._local.disconnected(connection)
        if reason not in BLAMELESS:
            self.floods.blamed_s = time.monotonic()
        self.disconnections.add(reason, owner_of(connection.principal or ""), time.monotonic())

    def disconnect_principal(self, principal: str, reason: str) -> int:
        """End every connection that has sent a frame as this principal. Return their number."""
        self.read_events()
        own = [one for one in self._open.values() if owner_of(one.principal or "") == principal and not one.is_ended]
        for connection in own:
            self.disconnect(connection, reason)
        return len(own)

    def _offend(self, connection: BusConnection, reason: str) -> None:
        """Disconnect a peer that no correct program can be. If it repeats that, block its principal for a time."""
        self.disconnect(connection, reason)
        self._blame(connection)

    def _blame(self, connection: BusConnection) -> None:
        principal = connection.principal
        # Honest and hostile peers may share an identity that needs no key, so it is not blocked.
        if principal and principal not in BUILT_IN:
            offences = self._offences.setdefault(principal, Offences())
            if offences.add(self._loop.time()):
                self.disconnect_principal(principal, "blocked")

    def _settle(self, connection: BusConnection) -> None:
        """Count a disconnection by the watch."""
        reason, connection.ended_for = connection.ended_for, None
        if reason is not None:
            self._count(connection, reason)
            if connection.role == "steps":
                self._blame(connection)

    @property
    def proofs(self) -> set[str]:
        """The keys and users of the connections that are open and have sent a frame."""
        return {one.proof for one in self._open.values() if one.proof and not one.is_ended}

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
            if connection.principal is None:
                self.read_events()  # among them is the success of its handshake
                self._local.spoke(connection)
            connection.principal = principal
            connection.proof = proof_of(frame)
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
        usage = self._usage.get(principal)
        if usage is None:
            usage = self._usage[principal] = _unused(self._grant_of(principal), now_s)
        if connection is not None:
            connection.used_s += 1 / usage.messages.per_s + size / usage.bytes.per_s
        verdict = usage.take(size, now_s)
        # Honest and hostile peers may share an identity that needs no key: the light connections of a heavy one pass.
        if verdict == "pass" or (connection is not None and connection.used_s < budgets.LIGHT_USE_S):
            return True
        self._counters.refused["rate"] += 1
        if verdict == "disconnect":
            self._disconnect_heaviest(principal)
        return False

    def grants_changed(self) -> None:
        """Apply the rates of new grants."""
        self._usage.clear()

    def refused(self, connection: BusConnection | None, size: int = 0) -> None:
        """Count a frame that was refused by its form, by the core or by a grant. A large one counts several times."""
        if connection is None or connection.is_ended:
            return
        weight = 1 + size // budgets.REFUSED_BYTES_EACH
        if connection.refused.add(self._loop.time(), weight) > budgets.REFUSED_MAX:
            self._offend(connection, "refused_frames")

    def _disconnect_heaviest(self, principal: str) -> None:
        """One identity may have many connections, so the one that uses most of its budget ends first."""
        own = [one for one in self._open.values() if one.principal == principal and not one.is_ended]
        if own:
            self.disconnect(max(own, key=lambda one: one.used_s), "rate")

    # -- regular checks on the loop -----------------------------------------------------------------------------------

    def steps_emptied(self) -> None:
        """Note that no event of the steps socket waits unread."""
        self._is_steps_read = True

    def _sweep_later(self) -> None:
        delay_s = max(SWEEP_S, SWEEP_EACH_S * len(self._open))
        self._sweep_timer = self._loop.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        self._on_edge()
        for connection in self._local.excess(time.monotonic()):
            self.disconnect(connection, "unauthenticated")
        for connection in list(self._open.values()):
            connection.used_s /= 2
            self._settle(connection)
            counts = None if connection.is_ended else self._observe(connection)
            if counts is None:
                continue
            if connection.role == "steps" and self._is_steps_read:
                # What is no event, such as the PING of a client, has been read as well.
                connection.read_bytes = max(connection.read_bytes, connection.received_bytes)
            connection.received_bytes = counts.received
            connection.read_bytes = min(connection.read_bytes, counts.received)  # FRAMING_BYTES is an upper bound
            unread = counts.received - connection.read_bytes - bytes_waiting(connection.descriptor)
            if not connection.is_admitted and unread > handshakes.READ_BYTES_MAX:
                self.disconnect(connection, "unauthenticated")
        self._is_steps_read = False


def _unused(grant: Grant | None, now_s: float) -> PrincipalUsage:
    rates = (None, None) if grant is None else (grant.messages_per_s, grant.bytes_per_s)
    return PrincipalUsage.unused(*rates, now_s)
