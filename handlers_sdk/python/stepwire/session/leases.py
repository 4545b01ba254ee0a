"""The session with each broker: opened by hello and welcome, valid during its lease, dropped after it.

A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock. Therefore the lease ends at the
worker before the broker may consider the worker dead, and their clocks need not agree.
"""

from typing import Final

from stepwire_protocol import limits, topics
from stepwire_protocol.messages import HeartbeatAck, Here, Reset, Welcome

from stepwire.actions import NEVER, LogLevel

from .announcements import Announcements
from .brokers import BrokerPeer, Brokers
from .credit import Credit
from .deliveries import DONE, RUNNING
from .holdings import HeldDeliveries
from .outbox import ResultsOutbox
from .outgoing import Outgoing
from .runs import Runs

_PERMANENT: Final = frozenset({"version", "unauthorized"})  # resets that a hello does not change


class Leases:
    """Opens, extends and drops sessions."""

    def __init__(
        self,
        brokers: Brokers,
        announcements: Announcements,
        credit: Credit,
        holdings: HeldDeliveries,
        runs: Runs,
        outbox: ResultsOutbox,
        out: Outgoing,
    ) -> None:
        self.check_at_ms = NEVER
        self._brokers = brokers
        self._announcements = announcements
        self._credit = credit
        self._holdings = holdings
        self._runs = runs
        self._outbox = outbox
        self._out = out

    def check(self, now_ms: float) -> None:
        """Drop sessions whose lease is over: no step may start in them, and their messages are ignored."""
        if now_ms < self.check_at_ms:
            return
        for peer in list(self._brokers):
            if peer.lease.until_ms and now_ms >= peer.lease.until_ms:
                self._drop(peer, "lease_over", now_ms)
        self.check_at_ms = min((p.lease.until_ms for p in self._brokers if p.lease.until_ms), default=NEVER)

    def on_here(self, peer: BrokerPeer, message: Here, now_ms: float) -> None:
        if peer.deployment not in (None, message.deployment):
            self._replace(peer, message.deployment, message.epoch, now_ms)
            return
        if message.epoch < peer.epoch:
            return
        if message.epoch > peer.epoch:
            # The broker restarted. Its deliveries continue with the current lease; the new session will adopt them.
            peer.epoch = message.epoch
            peer.session = None
        peer.deployment = message.deployment
        peer.n_after = self._out.n
        self._announcements.request_hello(now_ms)

    def on_welcome(self, peer: BrokerPeer, message: Welcome, now_ms: float) -> bool:
        """Open or extend a session. True if the message answers a hello with the current session number, and its lease
        is not over yet."""
        epoch, k = topics.session_parts(message.session)
        sent_ms = self._out.sent_ms(message.n)
        if epoch != message.epoch or k != peer.next or message.n <= peer.n_after or sent_ms is None:
            return False
        if peer.deployment not in (None, message.deployment):
            self._replace(peer, message.deployment, message.epoch, now_ms)
            return False
        until_ms = sent_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR
        if epoch < peer.epoch or until_ms <= now_ms:
            return False  # sent before a restart, or its lease is over; the broker answers the next hello, too
        is_new = message.session != peer.session
        peer.epoch = epoch
        peer.deployment = message.deployment
        peer.bytes_max = message.max_message_bytes
        peer.lease_ms = message.lease_ms
        peer.heartbeat_ms = min(message.heartbeat_ms or limits.HEARTBEAT_MS, message.lease_ms // 5)
        peer.promises.acknowledge(message.n)
        if is_new:
            peer.lease.until_ms = 0.0  # a restarted broker may have a shorter lease, which then applies
        self._extend(peer, until_ms, now_ms)
        if is_new:
            self._open(peer, message.session, now_ms)
        return True

    def on_heartbeat_ack(self, peer: BrokerPeer, message: HeartbeatAck, now_ms: float) -> None:
        sent_ms = self._out.sent_ms(message.n)
        if sent_ms is not None:
            self._extend(peer, sent_ms + peer.lease_ms * limits.LEASE_WORKER_FACTOR, now_ms)
        if peer.promises.acknowledge(message.n) and self._credit.moves(peer):
            self._announcements.move_credit(now_ms)
        if message.quiet != peer.is_quiet:
            peer.is_quiet = message.quiet
            self._announcements.request_heartbeat(now_ms)

    def on_reset(self, peer: BrokerPeer, message: Reset, now_ms: float) -> None:
        if message.next == peer.next and message.epoch >= peer.epoch:
            self._drop(peer, message.code, now_ms, "error" if message.code in _PERMANENT else "warning")

    def _open(self, peer: BrokerPeer, session: str, now_ms: float) -> None:
        peer.session = session
        peer.opened_ms = now_ms
        peer.floor = -1
        peer.is_quiet = False
        self._announcements.request_heartbeat(now_ms)  # carries the credit
        self._outbox.hasten_all(peer, now_ms)
        self._runs.hasten(peer, now_ms)
        self._announcements.stop_hello_if_welcomed()
        self._out.log("info", "session_opened", broker=peer.id, session=session)

    def _extend(self, peer: BrokerPeer, until_ms: float, now_ms: float) -> None:
        peer.answered_ms = now_ms
        if until_ms > peer.lease.until_ms:
            peer.lease.until_ms = until_ms
            self.check_at_ms = min(self.check_at_ms, until_ms)

    def _drop(self, peer: BrokerPeer, why: str, now_ms: float, level: LogLevel = "warning") -> None:
        """End the session. Deliveries that have not started here never start, because another worker may get them."""
        dropped = 0
        for held in self._holdings.of_broker(peer):
            if held.state is DONE:
                continue
            if held.withdraw():
                self._holdings.bury(held, now_ms)
                dropped += 1
            else:
                self._runs.interrupt(held, "lease_lost")
        session, peer.session = peer.session, None
        peer.next += 1
        peer.lease.until_ms = 0.0
        peer.n_after = self._out.n
        self._out.log(level, "session_dropped", broker=peer.id, session=session, why=why, not_started=dropped)
        self._request_hello(peer, session, why, now_ms)

    def _request_hello(self, peer: BrokerPeer, session: str | None, why: str, now_ms: float) -> None:
        """Send hello at once after a drop, and after a growing pause if the broker keeps ending the session."""
        if session is not None and now_ms - peer.opened_ms >= peer.lease_ms / 2:
            peer.drop_wait_ms = 0.0
        if why in _PERMANENT:
            wait_ms = peer.drop_wait_ms = float(limits.DROP_WAIT_MAX_MS)
        else:
            wait_ms = peer.drop_wait_ms
            peer.drop_wait_ms = float(min(limits.DROP_WAIT_MAX_MS, max(limits.DROP_WAIT_MS, 2 * wait_ms)))
        if wait_ms:
            self._announcements.request_hello_after(wait_ms, peer, now_ms)
        else:
            self._announcements.request_hello(now_ms)

    def _replace(self, peer: BrokerPeer, deployment: str, epoch: int, now_ms: float) -> None:
        """Discard everything of a broker that has another database: earlier deliveries have no owner, and their ids
        now belong to other steps."""
        discarded = self._outbox.discard(peer)
        for held in self._holdings.of_broker(peer):
            if held.state is not RUNNING or held.withdraw():
                self._holdings.bury(held, now_ms)
            else:
                self._runs.interrupt(held, "superseded")
                self._holdings.orphan(held, now_ms)
        self._out.log(
            "error", "deployment_replaced", broker=peer.id, deployment=deployment, results_discarded=discarded
        )
        self._drop(peer, "deployment_replaced", now_ms)
        self._holdings.tombstones.forget_broker(peer)
        peer.deployment = deployment
        peer.epoch = epoch
