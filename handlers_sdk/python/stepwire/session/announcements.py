"""The messages to every broker: hello (until every broker has sent welcome), heartbeats, and bye."""

from collections.abc import Callable

from stepwire_protocol import limits
from stepwire_protocol.messages import Bye, Heartbeat, Hello

from stepwire.actions import NEVER

from .brokers import BrokerPeer, Brokers
from .config import Config
from .credit import Credit
from .holdings import HeldDeliveries
from .outgoing import Outgoing, V


class Announcements:
    """Sends hello, heartbeat and bye. `random` returns numbers in [0, 1), for the jitter of the intervals."""

    def __init__(
        self,
        config: Config,
        random: Callable[[], float],
        brokers: Brokers,
        holdings: HeldDeliveries,
        credit: Credit,
        out: Outgoing,
    ) -> None:
        self.hello_at_ms = NEVER
        self.heartbeat_at_ms = NEVER
        self._config = config
        self._random = random
        self._brokers = brokers
        self._holdings = holdings
        self._credit = credit
        self._out = out
        self._hello_wait_ms = float(limits.HELLO_RETRY_MS)
        self._hello_sent_ms = -NEVER
        self._hello_n = 0
        self._may_move_credit = True
        self.is_for_credit = False  # the next heartbeat was requested only because places move

    def start(self, now_ms: float) -> None:
        self.hello_at_ms = now_ms
        self.heartbeat_at_ms = now_ms + self._heartbeat_every_ms()

    def request_hello(self, now_ms: float) -> None:
        """Begin to send hello again. The pause since the last hello is at least that of the first retry."""
        self._hello_wait_ms = float(limits.HELLO_RETRY_MS)
        soonest_ms = self._hello_sent_ms + self._spread(limits.HELLO_RETRY_MS, limits.HELLO_JITTER)
        self.hello_at_ms = min(self.hello_at_ms, max(now_ms, soonest_ms))

    def request_hello_after(self, wait_ms: float, peer: BrokerPeer, now_ms: float) -> None:
        """Begin to send hello again after this pause, because this broker keeps ending the session. Another broker that
        has no session either does not wait for it."""
        self._hello_wait_ms = float(limits.HELLO_RETRY_MS)
        at_ms = now_ms + wait_ms
        others_are_open = all(other.session is not None for other in self._brokers if other is not peer)
        self.hello_at_ms = at_ms if others_are_open else min(self.hello_at_ms, at_ms)

    def request_heartbeat(self, now_ms: float) -> None:
        """Send a heartbeat with the next actions, because the brokers must be informed at once."""
        self.heartbeat_at_ms = now_ms

    def recall_credit(self, now_ms: float) -> None:
        """Send a heartbeat with the next actions, because a broker is no longer idle, and its share was lent. The
        remainder of the split does not rotate with it."""
        self._may_move_credit = True
        self._request_credit(now_ms)

    def move_credit(self, now_ms: float) -> None:
        """Send a heartbeat with the next actions, because places have become free for another broker. At most once
        between two other heartbeats: each ack of one could cause the next."""
        if self._may_move_credit:
            self._may_move_credit = False
            self._request_credit(now_ms)

    def _request_credit(self, now_ms: float) -> None:
        if self.heartbeat_at_ms > now_ms:
            self.heartbeat_at_ms = now_ms
            self.is_for_credit = True

    def stop_hello_if_welcomed(self) -> None:
        """Stop sending hello, if every broker has answered a hello that was sent after its last drop or `here`."""
        peers = self._brokers
        if peers and all(peer.session is not None and peer.n_after < self._hello_n for peer in peers):
            self.hello_at_ms = NEVER

    def hello(self, now_ms: float) -> None:
        c = self._config
        n = self._out.next_timed_n(now_ms)
        free, slots_free = self._credit.offer_all(n, now_ms)
        hello = Hello(
            v=V,
            worker=c.worker,
            n=n,
            versions=list(limits.VERSIONS_SUPPORTED),
            next=self._brokers.next_numbers(),
            sessions=self._brokers.sessions(),
            handlers=[offer.pattern for offer in c.offers],
            shadow_safe=[offer.pattern for offer in c.offers if offer.shadow_safe],
            labels=c.labels,
            slots=c.slots,
            prefetch=c.queue_max,
            free=free,
            slots_free=slots_free,
            holding=self._holdings.report(now_ms),
            heartbeat_ms=c.heartbeat_ms,
            lang=c.lang,
            sdk=c.sdk,
            handler_version=c.handler_version,
            host=c.host,
            pid=c.pid,
            pid_started=c.pid_started,
            proof=c.proof,
            max_message_bytes=c.max_message_bytes,
        )
        self._out.send_to_all(hello)
        self._hello_sent_ms = now_ms
        self._hello_n = hello.n
        self.hello_at_ms = now_ms + self._spread(self._hello_wait_ms, limits.HELLO_JITTER)
        self._hello_wait_ms = min(self._hello_wait_ms * 2, limits.HELLO_RETRY_MAX_MS)
        self.stop_hello_if_welcomed()

    def heartbeat(self, now_ms: float) -> None:
        """Send a heartbeat; while draining, also a bye."""
        n = self._out.next_timed_n(now_ms)
        free, slots_free = self._credit.offer_all(n, now_ms)
        heartbeat = Heartbeat(
            v=V,
            worker=self._out.worker,
            n=n,
            next=self._brokers.next_numbers(),
            sessions=self._brokers.sessions(),
            free=free,
            slots_free=slots_free,
            holding=self._holdings.report(now_ms),
        )
        self._out.send_to_all(heartbeat)
        if self._credit.is_draining:
            self._out.send_to_all(Bye(v=V, worker=self._out.worker, n=self._out.next_timed_n(now_ms)))
        self.heartbeat_at_ms = now_ms + self._spread(self._heartbeat_every_ms(), limits.HEARTBEAT_JITTER)
        self._may_move_credit |= not self.is_for_credit
        self.is_for_credit = False

    def _heartbeat_every_ms(self) -> float:
        requested = (peer.heartbeat_ms for peer in self._brokers if peer.session)
        return float(max(limits.HEARTBEAT_MIN_MS, min(self._config.heartbeat_ms, *requested, limits.LEASE_MS)))

    def _spread(self, ms: float, jitter: float) -> float:
        return ms * (1 + jitter * (2 * self._random() - 1))
