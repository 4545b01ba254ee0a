"""A worker's half of the protocol, and all of it: no sockets, no clock, no threads, no randomness of its own.

Facts go in (`receive`, `finished`, …), orders come out (`actions`). The caller gives the time with every call, in
milliseconds of a clock that counts sleep, and calls `actions` after the facts that were at hand, and again not later
than `wake_at`. Results that are finished by then and came in one batch leave in one message.

What the rules protect: a delivery is run at most once by a process; nothing starts once its broker may think this
worker dead; an at_most_once step starts only on the broker's go; a result is kept until a broker has committed it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from stepwire_protocol import codec, limits, patterns, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Adopt,
    Adopted,
    AdoptedItem,
    BrokerMessage,
    Bye,
    Cancel,
    ErrorDetail,
    FromWorker,
    Go,
    Heartbeat,
    HeartbeatAck,
    HeldItem,
    Hello,
    Here,
    Item,
    Progress,
    ProgressItem,
    Refuse,
    RefuseCode,
    Refused,
    Reset,
    Result,
    Results,
    Start,
    Steps,
    Welcome,
)

from . import credit
from .actions import Action, CancelRun, Connect, Link, Log, Quit, Rebuild, Run, RunEnd, Send
from .errors import OUTCOME_UNKNOWN
from .held import ASKING, DONE, QUEUED, RUNNING, Batch, Held, Message, Peer, Tombstones

T = TypeVar("T")

NEVER: Final = float("inf")
V: Final = limits.PROTOCOL_LEVEL_1

SENT_MAX: Final = 128  # heartbeats and hellos whose time of sending is remembered: minutes, and a lease is seconds
OUTBOX_BYTES_MAX: Final = 64 * 1024 * 1024  # above this no free place is offered: whoever does not ack gets no more
PROGRESS_EVERY_MS: Final = 200
CLASSES_MAX: Final = 10_000

# A results message refused for one of these is not at fault for what it carries: saying it differently cannot help.
_HOPELESS: Final = frozenset({"wrong_batch", "wrong_sender", "unknown_delivery", "unknown_session", "unknown_type"})


class Offer(Struct, frozen=True):
    """A handler this worker has, by name or pattern."""

    pattern: str
    concurrency: int | None = None  # runs at a time; None: as many as there are slots
    timeout_ms: int | None = None  # shorter than the step's own time-out, if given
    shadow_safe: bool = False


class Config(Struct, frozen=True, kw_only=True):
    """Who this worker is and what it can take; what it says of itself in `hello`."""

    worker: str
    offers: tuple[Offer, ...]
    slots: int
    prefetch: int | None = None  # None: as many as slots, at least 10
    labels: dict[str, str] = {}
    links: tuple[Link, ...] = ()
    heartbeat_ms: int = limits.HEARTBEAT_MS
    accept_delay_ms: int = 0  # how long an accept may wait for results that would say as much
    max_message_bytes: int = limits.MESSAGE_BYTES_MAX
    lang: str = "python"
    sdk: str = ""
    host: str = ""
    pid: int = 0
    pid_started: int = 0
    proof: bool = False


class Session:
    def __init__(self, config: Config, random: Callable[[], float]) -> None:
        """`random` gives numbers in [0, 1); it spreads heartbeats and hellos."""
        self._config = config
        self._random = random
        self._inbox = topics.to_worker(config.worker)
        self._prefetch = max(config.slots, limits.PREFETCH_MIN) if config.prefetch is None else config.prefetch
        self._capacity = config.slots + self._prefetch
        self._offer_of: dict[str, int | None] = {}

        self._peers: dict[str, Peer] = {}
        self._items: dict[Item, Held] = {}
        self._orphans: dict[Item, Held] = {}  # still running, for a database that is no more
        self._tombstones = Tombstones()
        self._queue: deque[Held] = deque()
        self._blocked: dict[int, deque[Held]] = {}  # by offer: its own concurrency is used up
        self._busy_of: dict[int, int] = {}  # by offer
        self._asking: dict[Item, Held] = {}
        self._busy = 0  # slots taken
        self._load = 0  # deliveries that need a slot or have one
        self._unaccepted: dict[tuple[str, str], tuple[Peer, float]] = {}  # by session and batch: when to accept it
        self._ready: dict[Batch, None] = {}
        self._outbox: dict[int, Message] = {}
        self._outbox_bytes = 0
        self._progress: dict[Item, ProgressItem] = {}

        self._n = 0
        self._rid = 0
        self._sent_ms: dict[int, float] = {}  # by n
        self._rotation = 0
        self._is_quiet = False
        self._is_full = False
        self._is_draining = False
        self._has_quit = False

        self._links: dict[Link, str | None] = dict.fromkeys(config.links)
        self._link_ms: dict[Link, float] = {}
        self._actions: list[Action] = []

        # When to look again. Each is a lower bound: what it waits for may have gone away since, never come nearer.
        self._hello_at = NEVER
        self._hello_wait_ms = float(limits.HELLO_RETRY_MS)
        self._hello_sent_ms = -NEVER
        self._hello_n = 0
        self._heartbeat_at = NEVER
        self._lease_at = NEVER
        self._timeout_at = NEVER
        self._ask_at = NEVER
        self._accept_at = NEVER
        self._outbox_at = NEVER
        self._progress_at = NEVER
        self._progress_sent_ms = -NEVER
        self._rebuild_at = NEVER

    # -- facts in -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: float) -> None:
        self._hello_at = now_ms
        self._heartbeat_at = now_ms + self._heartbeat_every_ms()
        self._link_ms = dict.fromkeys(self._links, now_ms)
        self._rebuild_at = now_ms + limits.SOCKET_REBUILD_MS

    def receive(self, topic: bytes, body: bytes, now_ms: float) -> None:
        """A frame of the SUB socket, split at its first space."""
        self._check_leases(now_ms)
        if topic not in (self._inbox, topics.BROKERS):
            return
        if len(body) > self._config.max_message_bytes:
            self._refuse_unread(body, "too_large", f"{len(body)} bytes", now_ms)
            return
        try:
            message = codec.decode_broker(body)
        except InvalidMessage as refusal:
            if refusal.code != "unknown_type":
                self._refuse_unread(body, "bad_message", str(refusal), now_ms)
            return
        if topic == self._inbox or isinstance(message, Here):
            self._take(message, now_ms)

    def finished(self, item: Item, result: Result, now_ms: float) -> None:
        """The run that `Run` ordered has ended. Counts once; what nobody waits for any more is dropped."""
        held = self._items.get(item)
        if held is None or held.state is not RUNNING:
            self._release_orphan(item)
            return
        if result.status != "completed" and (held.is_interrupted or now_ms >= held.timeout_at_ms):
            result = _no_verdict(held, result)
        held.state = DONE
        held.step = None
        held.batch.ready.append((held, result))
        self._ready[held.batch] = None
        self._progress.pop(item, None)
        self._lighten(held)
        self._free_slot(held)

    def give_back(self, item: Item, now_ms: float) -> None:
        """The run did not start, or has left nothing behind: let the broker have it run elsewhere."""
        held = self._items.get(item)
        if held is None or held.state is not RUNNING:
            self._release_orphan(item)
            return
        self._bury(held, now_ms)
        self._refuse(held.peer, held.batch.id, [item], "draining" if self._is_draining else "busy", now_ms)

    def progressed(self, item: Item, done: float, total: float | None, note: str | None, now_ms: float) -> None:
        held = self._items.get(item)
        if held is not None and held.state is RUNNING:
            self._progress[item] = (*item, done, total, note)
            self._progress_at = max(now_ms, self._progress_sent_ms + PROGRESS_EVERY_MS)

    def quiet(self, now_ms: float) -> None:
        """Take nothing new; go on with what is here."""
        self._is_quiet = True
        self._heartbeat_at = now_ms

    def full(self, is_full: bool, now_ms: float) -> None:
        """Whoever runs the steps takes no more for now, whatever slots there are; or does again."""
        if is_full != self._is_full:
            self._is_full = is_full
            self._heartbeat_at = now_ms

    def drain(self, now_ms: float) -> None:
        """Give back what has not started, finish what runs, then `Quit`."""
        if self._is_draining:
            return
        self._is_draining = True
        self._check_leases(now_ms)
        back: dict[tuple[Peer, str], list[Item]] = {}
        for held in [h for h in self._items.values() if h.state is QUEUED or h.state is ASKING]:
            back.setdefault((held.peer, held.batch.id), []).append(held.item)
            self._bury(held, now_ms)
        for (peer, batch_id), items in back.items():
            self._refuse(peer, batch_id, items, "draining", now_ms)
        self._heartbeat_at = now_ms

    def expel(self) -> int:
        """The time to drain is over: ask what still runs to stop. Returns how many runs that is."""
        running = [held for held in self._items.values() if held.state is RUNNING]
        for held in running:
            self._interrupt(held, "shutdown")
        return len(running)

    # -- orders out ---------------------------------------------------------------------------------------------------

    def actions(self, now_ms: float) -> list[Action]:
        self._check_leases(now_ms)
        if now_ms >= self._timeout_at:
            self._stop_overdue(now_ms)
        if self._queue:
            self._start_queued(now_ms)
        if self._ready:
            self._send_results(now_ms)
        if now_ms >= self._outbox_at:
            self._send_results_again(now_ms)
        if now_ms >= self._ask_at:
            self._ask(now_ms)
        if now_ms >= self._accept_at:
            self._accept(now_ms)
        if now_ms >= self._progress_at:
            self._send_progress(now_ms)
        if now_ms >= self._hello_at:
            self._hello(now_ms)
        if now_ms >= self._heartbeat_at:
            self._heartbeat(now_ms)
        if now_ms >= self._rebuild_at:
            self._rebuild(now_ms)
        if self._is_draining and not self._items and not self._has_quit:
            self._has_quit = True
            self._heartbeat(now_ms)
            self._actions.append(Quit())
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self) -> float:
        """Call `actions` at this time at the latest. Minus infinity: at once."""
        if self._actions or self._ready or (self._queue and self._busy < self._config.slots):
            return -NEVER
        if self._is_draining and not self._items and not self._has_quit:
            return -NEVER
        return min(
            self._lease_at,
            self._timeout_at,
            self._outbox_at,
            self._ask_at,
            self._accept_at,
            self._progress_at,
            self._hello_at,
            self._heartbeat_at,
            self._rebuild_at,
        )

    @property
    def is_idle(self) -> bool:
        """Nothing is held: no step, no result that a broker has not acked."""
        return not self._items

    def holding(self, now_ms: float) -> list[HeldItem]:
        return [
            (*held.item, held.state, _age_ms(held, now_ms)) for held in self._items.values() if held.state is not None
        ]

    # -- hello, welcome, heartbeats, leases ---------------------------------------------------------------------------

    def _take(self, message: BrokerMessage, now_ms: float) -> None:
        peer = self._peers.get(message.broker)
        match message:
            case Ack():
                self._on_ack(message, now_ms)
            case Here():
                self._on_here(self._peer(message.broker, now_ms), message, now_ms)
            case Welcome():
                self._on_welcome(self._peer(message.broker, now_ms), message, now_ms)
            case Reset():
                self._on_reset(self._peer(message.broker, now_ms), message, now_ms)
            case Refused():
                self._on_refused(message, now_ms)
            case _ if peer is None or peer.session != message.session or peer.epoch != message.epoch:
                return  # of a session that is not, or no longer, the current one: its sender will learn that
            case Steps():
                self._on_steps(peer, message, now_ms)
            case HeartbeatAck():
                self._on_heartbeat_ack(peer, message, now_ms)
            case Go():
                self._on_go(peer, message, now_ms)
            case Cancel():
                self._on_cancel(peer, message, now_ms)
            case Adopt():
                self._on_adopt(peer, message, now_ms)

    def _peer(self, broker: str, now_ms: float) -> Peer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = Peer(broker, now_ms)
        return peer

    def _on_here(self, peer: Peer, message: Here, now_ms: float) -> None:
        if peer.deployment not in (None, message.deployment):
            self._replace(peer, message.deployment, message.epoch, now_ms)
            return
        if message.epoch < peer.epoch:
            return
        if message.epoch > peer.epoch:
            # It restarted. What it gave us goes on under the lease we have, until that ends; the new session adopts.
            peer.epoch = message.epoch
            peer.session = None
        peer.deployment = message.deployment
        peer.n_after = self._n
        self._want_hello(now_ms)

    def _on_welcome(self, peer: Peer, message: Welcome, now_ms: float) -> None:
        epoch, k = topics.session_parts(message.session)
        sent_ms = self._sent_ms.get(message.n)
        if epoch != message.epoch or k != peer.next or message.n <= peer.n_after or sent_ms is None:
            return
        if peer.deployment not in (None, message.deployment):
            self._replace(peer, message.deployment, message.epoch, now_ms)
            return
        if epoch < peer.epoch:
            return
        until_ms = sent_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR
        if until_ms <= now_ms:
            return  # an answer so late that the lease it gives is over: the next hello's answer will do
        is_new = message.session != peer.session
        peer.epoch = epoch
        peer.deployment = message.deployment
        peer.bytes_max = message.max_message_bytes
        peer.lease_ms = message.lease_ms
        peer.heartbeat_ms = max(100, min(message.heartbeat_ms or limits.HEARTBEAT_MS, message.lease_ms // 5))
        if is_new:
            peer.lease.until_ms = 0.0  # a broker that restarted may give a shorter one, and then counts by that
        self._extend(peer, until_ms, now_ms)
        if is_new:
            peer.session = message.session
            peer.floor = -1
            peer.is_quiet = False
            self._heartbeat_at = now_ms  # tells it at once how much may come
            self._hasten(peer, now_ms)
            self._rest_from_hello()
            self._actions.append(Log("info", "session_opened", {"broker": peer.id, "session": peer.session}))
        self._learn(peer, message, now_ms)

    def _on_heartbeat_ack(self, peer: Peer, message: HeartbeatAck, now_ms: float) -> None:
        sent_ms = self._sent_ms.get(message.n)
        if sent_ms is not None:
            self._extend(peer, sent_ms + peer.lease_ms * limits.LEASE_WORKER_FACTOR, now_ms)
        if message.quiet != peer.is_quiet:
            peer.is_quiet = message.quiet
            self._heartbeat_at = now_ms
        if message.quit:
            self.drain(now_ms)

    def _on_reset(self, peer: Peer, message: Reset, now_ms: float) -> None:
        if message.next != peer.next or message.epoch < peer.epoch:
            return
        level: Literal["warning", "error"] = "error" if message.code in ("version", "unauthorized") else "warning"
        self._drop(peer, message.code, now_ms, level)

    def _extend(self, peer: Peer, until_ms: float, now_ms: float) -> None:
        peer.heard_ms = now_ms
        if until_ms > peer.lease.until_ms:
            peer.lease.until_ms = until_ms
            self._lease_at = min(self._lease_at, until_ms)

    def _check_leases(self, now_ms: float) -> None:
        """Nothing may start, and no message may be believed, under a lease that is over."""
        if now_ms < self._lease_at:
            return
        for peer in list(self._peers.values()):
            if peer.lease.until_ms and now_ms >= peer.lease.until_ms:
                self._drop(peer, "lease_over", now_ms)
        self._lease_at = min((p.lease.until_ms for p in self._peers.values() if p.lease.until_ms), default=NEVER)

    def _drop(
        self, peer: Peer, why: str, now_ms: float, level: Literal["info", "warning", "error"] = "warning"
    ) -> None:
        """End the session. The broker may run elsewhere whatever of it has not started here, so that never will."""
        dropped = 0
        for held in [h for h in self._items.values() if h.peer is peer]:
            if held.state is RUNNING:
                self._interrupt(held, "lease_lost")
            elif held.state is not DONE:
                self._bury(held, now_ms)
                dropped += 1
        had = peer.session
        peer.next += 1
        peer.session = None
        peer.lease.until_ms = 0.0
        peer.n_after = self._n
        facts: dict[str, object] = {"broker": peer.id, "session": had, "why": why, "not_started": dropped}
        self._actions.append(Log(level, "session_dropped", facts))
        self._want_hello(now_ms)

    def _replace(self, peer: Peer, deployment: str, epoch: int, now_ms: float) -> None:
        """The broker stands on another database: what it gave us before has no owner, and its numbers mean nothing."""
        lost = [message.rid for message in self._outbox.values() if message.peer is peer]
        for held in [h for h in self._items.values() if h.peer is peer]:
            if held.state is RUNNING:
                self._interrupt(held, "superseded")
                del self._items[held.item]
                self._orphans[held.item] = held
                self._lighten(held)
            else:
                self._bury(held, now_ms)
        for rid in lost:
            self._outbox_bytes -= len(self._outbox.pop(rid).body)
        facts: dict[str, object] = {"broker": peer.id, "deployment": deployment, "results_given_up": len(lost)}
        self._actions.append(Log("error", "deployment_replaced", facts))
        self._drop(peer, "deployment_replaced", now_ms)
        self._tombstones.forget_broker(peer)
        peer.deployment = deployment
        peer.epoch = epoch

    def _want_hello(self, now_ms: float) -> None:
        self._hello_wait_ms = float(limits.HELLO_RETRY_MS)
        soonest_ms = self._hello_sent_ms + self._spread(limits.HELLO_RETRY_MS, limits.HELLO_JITTER)
        self._hello_at = min(self._hello_at, max(now_ms, soonest_ms))

    def _hello(self, now_ms: float) -> None:
        c = self._config
        hello = Hello(
            v=V,
            worker=c.worker,
            n=self._next_n(now_ms),
            versions=list(limits.VERSIONS_SUPPORTED),
            next=self._nexts(),
            sessions=self._sessions(),
            handlers=[offer.pattern for offer in c.offers],
            shadow_safe=[offer.pattern for offer in c.offers if offer.shadow_safe],
            labels=c.labels,
            slots=c.slots,
            prefetch=self._prefetch,
            free={peer.id: self._free(peer, now_ms) for peer in self._peers.values()},
            holding=self.holding(now_ms),
            heartbeat_ms=c.heartbeat_ms,
            lang=c.lang,
            sdk=c.sdk,
            host=c.host,
            pid=c.pid,
            pid_started=c.pid_started,
            proof=c.proof,
            max_message_bytes=c.max_message_bytes,
        )
        self._say(hello)
        self._hello_sent_ms = now_ms
        self._hello_n = hello.n
        self._hello_at = now_ms + self._spread(self._hello_wait_ms, limits.HELLO_JITTER)
        self._hello_wait_ms = min(self._hello_wait_ms * 2, limits.HELLO_RETRY_MAX_MS)
        self._rest_from_hello()

    def _rest_from_hello(self) -> None:
        """Enough hellos, when every broker has answered since it last gave a reason to say one."""
        if self._peers and all(p.session is not None and p.n_after < self._hello_n for p in self._peers.values()):
            self._hello_at = NEVER

    def _heartbeat(self, now_ms: float) -> None:
        self._tombstones.sweep(now_ms)
        self._rotation += 1
        n = self._next_n(now_ms)
        heartbeat = Heartbeat(
            v=V,
            worker=self._config.worker,
            n=n,
            next=self._nexts(),
            sessions=self._sessions(),
            free={peer.id: self._free(peer, now_ms) for peer in self._peers.values()},
            holding=self.holding(now_ms),
        )
        self._say(heartbeat)
        if self._is_draining:
            self._say(Bye(v=V, worker=self._config.worker, n=self._next_n(now_ms)))
        self._heartbeat_at = now_ms + self._spread(self._heartbeat_every_ms(), limits.HEARTBEAT_JITTER)

    def _heartbeat_every_ms(self) -> float:
        asked = (peer.heartbeat_ms for peer in self._peers.values() if peer.session)
        return float(min(self._config.heartbeat_ms, *asked, limits.LEASE_MS))

    def _next_n(self, now_ms: float) -> int:
        self._n += 1
        self._sent_ms[self._n] = now_ms
        if len(self._sent_ms) > SENT_MAX:
            del self._sent_ms[next(iter(self._sent_ms))]
        return self._n

    def _nexts(self) -> dict[str, int]:
        return {peer.id: peer.next for peer in self._peers.values()}

    def _sessions(self) -> dict[str, str]:
        return {peer.id: peer.session for peer in self._peers.values() if peer.session}

    def _spread(self, ms: float, jitter: float) -> float:
        return ms * (1 + jitter * (2 * self._random() - 1))

    # -- steps, go, cancel, adopt -------------------------------------------------------------------------------------

    def _on_steps(self, peer: Peer, message: Steps, now_ms: float) -> None:
        """Whatever is sent again is answered again: silence would have it sent for ever."""
        if message.protocol_version.partition(".")[0] != V.partition(".")[0]:
            self._refuse_all(peer, message, "bad_message", now_ms)
            return
        batch = Batch(message.batch_id, message.session, len(message.steps))
        refused: dict[RefuseCode, list[Item]] = {}
        is_known = False
        items, queue, tombstones = self._items, self._queue, self._tombstones
        room = 2 * self._capacity - self._load
        before = len(queue)
        peer.steps_ms = now_ms
        for step in message.steps:
            item = (step.step_id, step.delivery)
            code: RefuseCode
            if item in items:
                is_known |= self._hear_again(peer, items[item], refused, now_ms)
                continue
            if item in tombstones or batch.number in range(peer.floor + 1):
                code = "stale"
            elif (offer := self._offer(step.handler_class)) is None:
                code = "unknown_handler"
            elif self._is_draining:
                code = "draining"
            elif room <= 0 or item in self._orphans:
                code = "busy"
            else:
                held = Held(item, step, peer, batch, offer, now_ms)
                items[item] = held
                queue.append(held)
                room -= 1
                continue
            refused.setdefault(code, []).append(item)
            if code != "stale":
                tombstones.add(item, peer, batch, now_ms)
        taken = len(queue) - before
        peer.load += taken
        self._load += taken
        if taken or is_known:
            at_ms = now_ms if is_known else now_ms + self._config.accept_delay_ms
            self._unaccepted[message.session, message.batch_id] = (peer, at_ms)
            self._accept_at = min(self._accept_at, at_ms)
        for code, back in refused.items():
            self._refuse(peer, message.batch_id, back, code, now_ms)

    def _hear_again(self, peer: Peer, held: Held, refused: dict[RefuseCode, list[Item]], now_ms: float) -> bool:
        """True when the batch is to be accepted (again) for this item."""
        if held.peer is not peer:
            refused.setdefault("stale", []).append(held.item)  # another broker has adopted it since
        elif held.message is not None:
            held.message.at_ms = now_ms
            self._outbox_at = now_ms
        elif held.state is not DONE:
            return True
        return False

    def _offer(self, handler_class: str) -> int | None:
        """The exact name wins, then the first pattern that fits."""
        known = self._offer_of
        if handler_class not in known:
            if len(known) >= CLASSES_MAX:
                known.clear()
            known[handler_class] = find_offer(self._config.offers, handler_class)
        return known[handler_class]

    def _start_queued(self, now_ms: float) -> None:
        queue = self._queue
        while queue and self._busy < self._config.slots:
            held = queue.popleft()
            if held.state is not QUEUED:
                self._unblock(held.offer)  # it may have had its turn from those that wait for their offer
                continue
            limit = self._config.offers[held.offer].concurrency
            busy = self._busy_of.get(held.offer, 0)
            if limit is not None and busy >= limit:
                self._blocked.setdefault(held.offer, deque()).append(held)
                continue
            self._busy += 1
            self._busy_of[held.offer] = busy + 1
            if held.is_at_most_once:
                held.state = ASKING
                held.ask_at_ms = now_ms
                held.ask_wait_ms = float(limits.START_RETRANSMIT_MS)
                self._asking[held.item] = held
                self._ask_at = now_ms
            else:
                self._run(held, now_ms)

    def _run(self, held: Held, now_ms: float) -> None:
        step = held.step
        assert step is not None
        assert now_ms < held.peer.lease.until_ms, "a step must not start after its broker's lease"
        held.state = RUNNING
        held.started_ms = now_ms
        timeout_ms = step.metadata.timeout_ms or NEVER
        own_ms = self._config.offers[held.offer].timeout_ms
        if own_ms is not None and own_ms < timeout_ms:
            timeout_ms = own_ms
        at_ms = now_ms + timeout_ms
        if step.metadata.deadline_ms is not None:
            at_ms = min(at_ms, held.received_ms + step.metadata.deadline_ms)
        held.timeout_at_ms = at_ms
        if at_ms < self._timeout_at:
            self._timeout_at = at_ms
        self._actions.append(Run(held.item, step, held.offer, now_ms, at_ms, held.peer.lease))

    def _ask(self, now_ms: float) -> None:
        """May these at_most_once steps run? Asked until the broker says so or not."""
        due: dict[Peer, list[Item]] = {}
        for held in self._asking.values():
            if held.ask_at_ms <= now_ms:
                due.setdefault(held.peer, []).append(held.item)
                held.ask_at_ms = now_ms + held.ask_wait_ms
                held.ask_wait_ms = min(held.ask_wait_ms * 2, limits.START_RETRANSMIT_MAX_MS)
        self._ask_at = min((held.ask_at_ms for held in self._asking.values()), default=NEVER)
        for peer, items in due.items():
            if peer.session is not None:
                for part in _parts(items):
                    self._tell(peer, Start(v=V, worker=self._config.worker, session=peer.session, items=part))

    def _on_go(self, peer: Peer, message: Go, now_ms: float) -> None:
        for item in message.items:
            held = self._asking.get(item)
            if held is not None and held.peer is peer:
                del self._asking[item]
                self._run(held, now_ms)

    def _on_cancel(self, peer: Peer, message: Cancel, now_ms: float) -> None:
        stopped: dict[str, list[Item]] = {}
        for item in message.items:
            held = self._items.get(item)
            if held is None:
                self._tombstones.disown(item, peer, now_ms)
            elif held.peer is peer and held.state is RUNNING:
                self._interrupt(held, message.reason)
            elif held.peer is peer and held.state is not DONE:
                stopped.setdefault(held.batch.id, []).append(item)
                self._bury(held, now_ms)
        for batch_id, items in stopped.items():
            self._refuse(peer, batch_id, items, "stale", now_ms)

    def _interrupt(self, held: Held, reason: RunEnd) -> None:
        """`lease_lost` is told to the handler and stops nothing; whatever else comes first is the reason."""
        self._actions.append(CancelRun(held.item, reason))
        held.is_interrupted = True

    def _stop_overdue(self, now_ms: float) -> None:
        at_ms = NEVER
        for held in self._items.values():
            if held.state is RUNNING:
                if held.timeout_at_ms > now_ms:
                    at_ms = min(at_ms, held.timeout_at_ms)
                elif not held.is_overdue:
                    held.is_overdue = True
                    self._interrupt(held, "timeout")
        self._timeout_at = at_ms

    def _on_adopt(self, peer: Peer, message: Adopt, now_ms: float) -> None:
        """Another broker, or this one after a restart, takes over what we hold. What we deny we must never start."""
        answers: list[AdoptedItem] = []
        moved: dict[Message, list[Held]] = {}
        for item in message.items:
            held = self._items.get(item)
            if held is None or held.state is None:
                self._tombstones.disown(item, peer, now_ms)
                answers.append((*item, "unknown", 0))
                continue
            answers.append((*item, held.state, _age_ms(held, now_ms)))
            if held.message is not None:
                held.message.at_ms = self._outbox_at = now_ms
                if held.message.peer is not peer:
                    moved.setdefault(held.message, []).append(held)
            elif held.state is not DONE and held.peer is not peer:
                held.peer.load -= 1
                peer.load += 1
            held.peer = peer
        assert peer.session is not None
        for part in _parts(answers):
            self._tell(peer, Adopted(v=V, worker=self._config.worker, session=peer.session, items=part))
        for outbox_message, helds in moved.items():
            self._repoint(outbox_message, helds, peer, now_ms)

    # -- results ------------------------------------------------------------------------------------------------------

    def _send_results(self, now_ms: float) -> None:
        ready, self._ready = self._ready, {}
        for batch in ready:
            done = [pair for pair in batch.ready if pair[0].state is DONE]
            batch.ready = []
            owners = dict.fromkeys(held.peer for held, _ in done)
            for peer in owners:
                mine = done if len(owners) == 1 else [pair for pair in done if pair[0].peer is peer]
                for part in _parts(mine):
                    self._send_part(peer, batch, part, now_ms)

    def _send_part(
        self, peer: Peer, batch: Batch, done: list[tuple[Held, Result]], now_ms: float, is_replacement: bool = False
    ) -> None:
        """One results message into the outbox and onto the wire; halves of it where the broker's limit wants that."""
        self._n += 1
        rid = self._rid + 1
        session = peer.session or batch.session
        body = codec.encode(
            Results(
                v=V,
                worker=self._config.worker,
                session=session,
                deployment=peer.deployment or "",
                batch_id=batch.id,
                protocol_version=V,
                rid=rid,
                n=self._n,
                free=self._free(peer, now_ms),
                results=[result for _, result in done],
            )
        )
        if len(body) > peer.bytes_max:
            if len(done) > 1:
                half = len(done) // 2
                self._send_part(peer, batch, done[:half], now_ms, is_replacement)
                self._send_part(peer, batch, done[half:], now_ms, is_replacement)
                return
            if not is_replacement:
                held, result = done[0]
                text = f"the result is {len(body)} bytes with its message, the broker takes {peer.bytes_max}"
                small = _sdk_failure(held, result.step_id, "too_large", text)
                self._send_part(peer, batch, [(held, small)], now_ms, is_replacement=True)
                return
        self._rid = rid
        message = Message(rid, peer, batch, session, body, [held for held, _ in done], now_ms)
        message.is_replacement = is_replacement
        for held in message.done:
            held.message = message
        self._keep(message)
        self._actions.append(Send(peer.topic, body))
        if len(done) == batch.size:
            self._unaccepted.pop((session, batch.id), None)  # results are an answer too

    def _keep(self, message: Message) -> None:
        self._outbox[message.rid] = message
        self._outbox_bytes += len(message.body)
        if message.at_ms < self._outbox_at:
            self._outbox_at = message.at_ms

    def _send_results_again(self, now_ms: float) -> None:
        at_ms = NEVER
        for message in self._outbox.values():
            if message.at_ms <= now_ms:
                self._renew(message)
                message.tries += 1
                message.wait_ms = min(message.wait_ms * 2, limits.RESULTS_RETRANSMIT_MAX_MS)
                message.at_ms = now_ms + message.wait_ms
                self._actions.append(Send(message.peer.topic, message.body))
                if message.tries >= limits.RESULTS_BROADCAST_FROM_TRY:
                    # Its owner may be gone, and we cannot know who has its steps now.
                    self._actions.append(Send(topics.RESULTS, message.body))
            at_ms = min(at_ms, message.at_ms)
        self._outbox_at = at_ms

    def _renew(self, message: Message) -> None:
        """Say it under the session of now. `n` and `free` stay as old as they are, so nobody takes them for news."""
        session = message.peer.session
        if session is None or session == message.session:
            return
        results = msgspec.structs.replace(
            _decode_results(message.body), session=session, deployment=message.peer.deployment or ""
        )
        self._outbox_bytes -= len(message.body)
        message.session = session
        message.body = codec.encode(results)
        self._outbox_bytes += len(message.body)

    def _repoint(self, message: Message, adopted: list[Held], peer: Peer, now_ms: float) -> None:
        """These results have another owner now. The rest of their message goes on without them."""
        taken = {held.item for held in adopted}
        rest = [held for held in message.done if held.item not in taken]
        if not rest:
            message.peer = peer
            return
        result_of = {(r.step_id, r.delivery): r for r in _decode_results(message.body).results}
        self._outbox_bytes -= len(self._outbox.pop(message.rid).body)
        for owner, helds in ((message.peer, rest), (peer, adopted)):
            pairs = [(held, result_of[held.item]) for held in helds]
            self._send_part(owner, message.batch, pairs, now_ms, message.is_replacement)

    def _hasten(self, peer: Peer, now_ms: float) -> None:
        """The broker is back: what it is owed need not wait for its turn."""
        for message in self._outbox.values():
            if message.peer is peer:
                message.at_ms = self._outbox_at = now_ms
        for held in self._asking.values():
            if held.peer is peer:
                held.ask_at_ms = self._ask_at = now_ms

    def _on_ack(self, message: Ack, now_ms: float) -> None:
        for rid in message.rids:
            kept = self._outbox.pop(rid, None)
            if kept is not None:
                self._outbox_bytes -= len(kept.body)
                for held in kept.done:
                    self._bury(held, now_ms)

    def _on_refused(self, message: Refused, now_ms: float) -> None:
        facts: dict[str, object] = {
            "broker": message.broker,
            "refused": message.refused,
            "code": message.code,
            "message": message.message,
        }
        self._actions.append(Log("error", "message_refused", facts))
        kept = None if message.rid is None else self._outbox.pop(message.rid, None)
        if kept is None:
            return
        self._outbox_bytes -= len(kept.body)
        if kept.is_replacement or message.code in _HOPELESS:
            for held in kept.done:
                self._bury(held, now_ms)
            return
        # The broker will never take what these results carry. Forgetting them would have the steps run again.
        for held in kept.done:
            failure = _sdk_failure(held, held.item[0], "result_refused", f"{message.code}: {message.message}")
            self._send_part(kept.peer, kept.batch, [(held, failure)], now_ms, is_replacement=True)

    def _accept(self, now_ms: float) -> None:
        waiting = self._unaccepted
        at_ms = NEVER
        for key, (peer, due_ms) in list(waiting.items()):
            if due_ms > now_ms:
                at_ms = min(at_ms, due_ms)
                continue
            del waiting[key]
            session, batch_id = key
            if peer.session == session:
                free = self._free(peer, now_ms)
                accept = Accept(v=V, worker=self._config.worker, session=session, batch_id=batch_id, free=free)
                self._tell(peer, accept)
        self._accept_at = at_ms

    def _refuse(self, peer: Peer, batch_id: str, items: list[Item], code: RefuseCode, now_ms: float) -> None:
        if peer.session is None:
            return
        for part in _parts(items):
            refuse = Refuse(
                v=V,
                worker=self._config.worker,
                session=peer.session,
                batch_id=batch_id,
                items=part,
                code=code,
                free=self._free(peer, now_ms),
            )
            self._tell(peer, refuse)
        if code != "stale":
            facts: dict[str, object] = {"broker": peer.id, "batch_id": batch_id, "code": code, "steps": len(items)}
            self._actions.append(Log("info" if code == "draining" else "warning", "steps_refused", facts))

    def _refuse_all(self, peer: Peer, message: Steps, code: RefuseCode, now_ms: float) -> None:
        items = [(step.step_id, step.delivery) for step in message.steps]
        self._bury_unread(peer, Batch(message.batch_id, message.session, len(items)), items, now_ms)
        self._refuse(peer, message.batch_id, items, code, now_ms)

    def _refuse_unread(self, body: bytes, code: Literal["bad_message", "too_large"], why: str, now_ms: float) -> None:
        """A message that cannot be taken. If it is work, its broker is told, or it would send it for ever."""
        facts: dict[str, object] = {"code": code, "why": why}
        self._actions.append(Log("error", "message_unreadable", facts))
        try:
            rest = _decode_remains(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        peer = self._peers.get(rest.broker)
        if rest.type == "steps" and peer is not None and peer.session == rest.session and rest.steps:
            items = [(step.step_id, step.delivery) for step in rest.steps]
            self._bury_unread(peer, Batch(rest.batch_id, rest.session, len(items)), items, now_ms)
            self._refuse(peer, rest.batch_id, items, code, now_ms)

    def _bury_unread(self, peer: Peer, batch: Batch, items: list[Item], now_ms: float) -> None:
        for item in items:
            if item not in self._items:
                self._tombstones.add(item, peer, batch, now_ms)

    def _send_progress(self, now_ms: float) -> None:
        self._progress_at = NEVER
        self._progress_sent_ms = now_ms
        waiting, self._progress = self._progress, {}
        by_peer: dict[Peer, list[ProgressItem]] = {}
        for item, entry in waiting.items():
            held = self._items.get(item)
            if held is not None and held.peer.session is not None:
                by_peer.setdefault(held.peer, []).append(entry)
        for peer, items in by_peer.items():
            for part in _parts(items):
                self._tell(peer, Progress(v=V, worker=self._config.worker, session=peer.session or "", items=part))

    # -- places, slots, graves ----------------------------------------------------------------------------------------

    def _free(self, peer: Peer, now_ms: float) -> int:
        """The places this broker may fill."""
        is_closed = self._is_draining or self._is_quiet or self._is_full or peer.is_quiet
        if is_closed or self._outbox_bytes > OUTBOX_BYTES_MAX:
            return 0
        if len(self._peers) == 1:
            return max(0, self._capacity - self._load)
        live = [p for p in self._peers.values() if p.session or p is peer]
        quiet_ms = 2 * self._config.heartbeat_ms
        claims = [credit.Claim(p.load, not p.load and p.steps_ms + quiet_ms <= now_ms) for p in live]
        return credit.free(self._capacity, claims, live.index(peer), self._rotation)

    def _lighten(self, held: Held) -> None:
        held.peer.load -= 1
        self._load -= 1

    def _free_slot(self, held: Held) -> None:
        self._busy -= 1
        self._busy_of[held.offer] -= 1
        self._unblock(held.offer)

    def _unblock(self, offer: int) -> None:
        """The next that waited because its offer's own concurrency was used up."""
        blocked = self._blocked.get(offer)
        while blocked:
            next_held = blocked.popleft()
            if next_held.state is QUEUED:
                self._queue.appendleft(next_held)
                break

    def _release_orphan(self, item: Item) -> None:
        held = self._orphans.pop(item, None)
        if held is not None:
            self._free_slot(held)

    def _bury(self, held: Held, now_ms: float) -> None:
        """Forget the delivery but for its tombstone."""
        state, held.state = held.state, None
        if state is None:
            return
        del self._items[held.item]
        self._tombstones.add(held.item, held.peer, held.batch, now_ms)
        if state is DONE:
            held.message = None  # which names us, too: only the cyclic collector would ever find the two
            return
        held.step = None
        self._lighten(held)
        if state is not QUEUED:
            self._asking.pop(held.item, None)
            self._free_slot(held)

    # -- endpoints ----------------------------------------------------------------------------------------------------

    def _learn(self, peer: Peer, message: Welcome, now_ms: float) -> None:
        """Brokers tell of each other. What may be a configured endpoint under another name is not connected twice."""
        known = {broker: link for link, broker in self._links.items() if broker is not None}
        for entry in message.brokers:
            link = Link(entry.steps, entry.results)
            if link in self._links and self._links[link] is None:
                self._links[link] = entry.broker
                known[entry.broker] = link
        unnamed = [link for link, broker in self._links.items() if broker is None]
        if peer.id not in known and len(unnamed) == 1:
            self._links[unnamed.pop()] = peer.id
        for entry in message.brokers:
            link = Link(entry.steps, entry.results)
            if entry.broker not in self._peers and entry.broker not in known and not unnamed:
                self._links[link] = entry.broker
                self._link_ms[link] = now_ms
                self._actions.append(Connect(link))

    def _rebuild(self, now_ms: float) -> None:
        """A connection can be refused, or go deaf, for good and without a sign: only a new one helps."""
        named = set(self._links.values())
        unnamed = sum(broker is None for broker in self._links.values())
        since_ms = now_ms - limits.SOCKET_REBUILD_MS
        strangers = sum(p.id not in named and p.heard_ms > since_ms for p in self._peers.values() if p.session)
        for link, broker in self._links.items():
            if broker is not None and broker in self._peers:
                heard_ms = self._peers[broker].heard_ms
            elif broker is None and strangers >= unnamed:
                continue
            else:
                heard_ms = -NEVER
            if max(heard_ms, self._link_ms[link]) <= since_ms:
                self._link_ms[link] = now_ms
                self._actions.append(Rebuild(link))
                self._actions.append(Log("warning", "link_rebuilt", {"link": link, "broker": broker}))
        self._rebuild_at = now_ms + 1_000

    # -- wire ---------------------------------------------------------------------------------------------------------

    def _say(self, message: FromWorker) -> None:
        self._actions.append(Send(topics.WORKERS, codec.encode(message)))

    def _tell(self, peer: Peer, message: FromWorker) -> None:
        self._actions.append(Send(peer.topic, codec.encode(message)))


def find_offer(offers: Iterable[Offer], handler_class: str) -> int | None:
    """Which offer takes this handler_class: the exact name, else the first pattern that fits."""
    found = None
    for i, offer in enumerate(offers):
        if offer.pattern == handler_class:
            return i
        if found is None and patterns.is_pattern(offer.pattern) and patterns.matches(offer.pattern, handler_class):
            found = i
    return found


def _no_verdict(held: Held, result: Result) -> Result:
    """A handler that was told to stop and then fails has not said that its effect did not happen."""
    if not held.is_at_most_once or result.error is None:
        return result
    return msgspec.structs.replace(result, error=msgspec.structs.replace(result.error, code=OUTCOME_UNKNOWN))


def _sdk_failure(held: Held, step_id: int, code: str, text: str) -> Result:
    """The step ran, and what it said cannot be delivered."""
    if held.is_at_most_once:
        error = ErrorDetail(message=f"{code}: {text}", code=OUTCOME_UNKNOWN)
    else:
        error = ErrorDetail(message=text, code=code, retryable=False)
    return Result(step_id=step_id, delivery=held.item[1], status="error", error=error)


def _age_ms(held: Held, now_ms: float) -> int:
    since_ms = held.started_ms if held.state in (RUNNING, DONE) else held.received_ms
    return max(0, int(now_ms - since_ms))


def _parts(items: list[T]) -> Iterable[list[T]]:
    if len(items) <= limits.BATCH_ITEMS_MAX:
        return (items,)
    return (items[i : i + limits.BATCH_ITEMS_MAX] for i in range(0, len(items), limits.BATCH_ITEMS_MAX))


class _StepRemains(Struct):
    step_id: int
    delivery: int


class _Remains(Struct):
    """The members of a `steps` message that a refusal needs."""

    type: str
    broker: str = ""
    session: str = ""
    batch_id: str = ""
    steps: list[_StepRemains] = []


_decode_remains: Final = msgspec.json.Decoder(_Remains).decode
_decode_results: Final = msgspec.json.Decoder(Results).decode
