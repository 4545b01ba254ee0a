"""The session: receives facts, and returns actions.

The caller passes the time with every call, in milliseconds of a clock that counts sleep. It passes all facts that have
arrived, then calls `actions`, and calls it again at `wake_at` at the latest. Results of one batch that finished in the
meantime are sent in one message.

The guarantees: a process runs a delivery at most once. No step starts after its broker may consider this worker dead.
An at_most_once step starts only after the broker's go. A result is kept until a broker has committed it.
"""

from collections.abc import Callable
from typing import assert_never

from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import (
    Ack,
    Adopt,
    Adopted,
    AdoptedItem,
    BrokerMessage,
    Cancel,
    Go,
    HeartbeatAck,
    HeldItem,
    Here,
    Item,
    Refused,
    Reset,
    Result,
    Steps,
    Welcome,
)

from stepwire.actions import NEVER, Action, Quit

from .announcements import Announcements
from .brokers import BrokerPeer, Brokers
from .config import Config, Offers
from .credit import Credit
from .deliveries import DONE, RUNNING, HeldDelivery, ResultsMessage
from .endpoints import BrokerLinks
from .holdings import HeldDeliveries
from .intake import Intake
from .leases import Leases
from .outbox import ResultsOutbox
from .outgoing import Outgoing, V, parts
from .pace import Pace
from .progress import ProgressReports
from .reporting import ResultsReporting, without_verdict
from .runs import Runs
from .slots import Slots


class Session:
    """One worker's sessions with all its brokers. `random` returns numbers in [0, 1)."""

    def __init__(self, config: Config, random: Callable[[], float]) -> None:
        self._inbox = topics.to_worker(config.worker)
        self._bytes_max = config.max_message_bytes
        self._has_quit = False
        offers = Offers(config.offers)
        self.out = out = Outgoing(config.worker)
        self.brokers = brokers = Brokers()
        self.slots = slots = Slots(config.slots, offers)
        pace = Pace(config.queue_max)
        self.holdings = holdings = HeldDeliveries(slots, pace)
        self.outbox = outbox = ResultsOutbox(out)
        self.runs = runs = Runs(offers, slots, holdings, out)
        self.credit = credit = Credit(config, brokers, holdings, outbox)
        self.intake = intake = Intake(offers, config.accept_delay_ms, brokers, holdings, credit, outbox, out)
        self.reporting = ResultsReporting(holdings, credit, intake, outbox, out)
        self.progress = ProgressReports(holdings, out)
        self.announcements = Announcements(config, random, brokers, holdings, credit, out)
        self.leases = Leases(brokers, self.announcements, credit, holdings, runs, outbox, out)
        self.endpoints = BrokerLinks(config, brokers, holdings, out)

    # -- facts in -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: float) -> None:
        self.announcements.start(now_ms)
        self.endpoints.start(now_ms)

    def receive(self, topic: bytes, body: bytes, now_ms: float) -> None:
        """Receive a frame of the SUB socket, split at its first space."""
        self.leases.check(now_ms)
        if topic not in (self._inbox, topics.BROKERS):
            return
        if len(body) > self._bytes_max:
            self.intake.on_unreadable(body, "too_large", f"{len(body)} bytes", now_ms)
            return
        try:
            message = codec.decode_broker(body)
        except InvalidMessage as refusal:
            if refusal.code != "unknown_type":
                self.intake.on_unreadable(body, "bad_message", str(refusal), now_ms)
            return
        if topic == self._inbox or isinstance(message, Here):
            self._dispatch(message, body, now_ms)

    def finished(self, item: Item, result: Result, now_ms: float) -> None:
        """Report the end of a run that `Run` started. The first report of a run counts."""
        held = self.holdings.get(item)
        if held is None or held.state is not RUNNING:
            self.holdings.release_orphan(item, now_ms)
            return
        if result.status != "completed" and (held.is_interrupted or now_ms >= held.timeout_at_ms):
            result = without_verdict(held, result)
        self.reporting.add(held, result, now_ms)
        if self.progress.send_at_ms != NEVER:
            self.progress.forget(held)
        self.holdings.finish(held, now_ms)

    def give_back(self, item: Item, now_ms: float) -> None:
        """Return a step to its broker: its run did not start, or had no effect, so another worker may run the step."""
        held = self.holdings.get(item)
        if held is None or held.state is not RUNNING:
            self.holdings.release_orphan(item, now_ms)
            return
        self.intake.give_back([held], "draining" if self.credit.is_draining else "busy", now_ms)

    def progressed(self, item: Item, done: float, total: float | None, note: str | None, now_ms: float) -> None:
        held = self.holdings.get(item)
        if held is not None and held.state is RUNNING:
            self.progress.add(held, done, total, note, now_ms)

    def quiet(self, now_ms: float) -> None:
        """Accept no new steps, and finish those that are held."""
        self.credit.is_quiet = True
        self.announcements.request_heartbeat(now_ms)

    def full(self, is_full: bool, now_ms: float) -> None:
        """Report whether the runner accepts no steps at the moment, although slots are free."""
        if is_full != self.credit.is_full:
            self.credit.is_full = is_full
            self.announcements.request_heartbeat(now_ms)

    def drain(self, now_ms: float) -> None:
        """Return steps that have not started, finish those that run, then `Quit`."""
        if self.credit.is_draining:
            return
        self.credit.is_draining = True
        self.leases.check(now_ms)
        self.intake.give_back(self.holdings.withdraw(), "draining", now_ms)
        self.out.log("info", "worker_drains", running=len(self.holdings.running()))
        self.announcements.request_heartbeat(now_ms)

    def expel(self) -> int:
        """Ask every run to stop, because the time to drain is over. Returns the number of runs."""
        return self.runs.interrupt_all("shutdown")

    # -- actions out --------------------------------------------------------------------------------------------------

    def actions(self, now_ms: float) -> list[Action]:
        """All actions that are due now, in their order."""
        # Called for every frame and every end of a run, so a part that is not due costs only a comparison.
        if now_ms >= self.leases.check_at_ms:
            self.leases.check(now_ms)
        if now_ms >= self.runs.timeout_at_ms:
            self.runs.stop_overdue(now_ms)
        self._hand_over(now_ms)
        if now_ms >= self.credit.return_at_ms:
            self._return_excess(now_ms)
        if self.reporting.is_due(now_ms, self.slots.taken):
            self.reporting.send_due(now_ms, self.slots.taken)
        if now_ms >= self.outbox.resend_at_ms:
            self.outbox.resend(now_ms)
        if now_ms >= self.runs.ask_at_ms:
            self.runs.ask(now_ms)
        if now_ms >= self.intake.accept_at_ms:
            self.intake.accept_due(now_ms)
        if now_ms >= self.progress.send_at_ms:
            self.progress.send(now_ms)
        if now_ms >= self.announcements.hello_at_ms:
            self.announcements.hello(now_ms)
        if now_ms >= self.announcements.heartbeat_at_ms:
            self._heartbeat(now_ms)
        if now_ms >= self.endpoints.check_at_ms:
            self.endpoints.check(now_ms)
        if self.credit.is_draining and self._may_quit():
            self._has_quit = True
            self._heartbeat(now_ms)
            self.out.add(Quit())
        return self.out.take()

    def wake_at(self) -> float:
        """The latest time for the next call of `actions`; minus infinity: now. At that time, nothing may be due."""
        if self.out.actions or self.slots.has_next() or self.reporting.has_whole:
            return -NEVER
        if self.reporting.send_at_ms != NEVER and not self.slots.taken:
            return -NEVER
        if self.credit.is_draining and self._may_quit():
            return -NEVER
        return min(
            self.leases.check_at_ms,
            self.runs.timeout_at_ms,
            self.credit.return_at_ms,
            self.reporting.send_at_ms,
            self.outbox.resend_at_ms,
            self.runs.ask_at_ms,
            self.intake.accept_at_ms,
            self.progress.send_at_ms,
            self.announcements.hello_at_ms,
            self.announcements.heartbeat_at_ms,
            self.endpoints.check_at_ms,
        )

    @property
    def awaits_results(self) -> bool:
        """True if results wait for others that are about to end. Then the caller need not report each end at once:
        within the next millisecond is soon enough."""
        return self.reporting.send_at_ms != NEVER and self.slots.taken >= self.holdings.load

    @property
    def is_draining(self) -> bool:
        """True after `drain`, or after a broker's `quit`."""
        return self.credit.is_draining

    @property
    def is_idle(self) -> bool:
        """True if nothing is held: no step, and no result that a broker has not acknowledged."""
        return not self.holdings

    def holding(self, now_ms: float) -> list[HeldItem]:
        return self.holdings.report(now_ms)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _dispatch(self, message: BrokerMessage, body: bytes, now_ms: float) -> None:
        peer = self.brokers.get(message.broker)
        match message:
            case Ack():
                self.reporting.on_ack(message, now_ms)
            case Here():
                self.leases.on_here(self.brokers.get_or_add(message.broker, now_ms), message, now_ms)
            case Welcome():
                peer = self.brokers.get_or_add(message.broker, now_ms)
                if self.leases.on_welcome(peer, message, now_ms):
                    self.endpoints.learn(peer, message.brokers, now_ms)
            case Reset():
                self.leases.on_reset(self.brokers.get_or_add(message.broker, now_ms), message, now_ms)
            case Refused():
                self.reporting.on_refused(message, now_ms)
            case _ if peer is None or peer.session != message.session or peer.epoch != message.epoch:
                return  # not in the current session: the next heartbeat informs the sender
            case Steps():
                is_waking = self.credit.is_waking(peer, now_ms)
                self.intake.on_steps(peer, message, body, now_ms)
                if is_waking:
                    self.announcements.recall_credit(now_ms)
            case HeartbeatAck():
                self.leases.on_heartbeat_ack(peer, message, now_ms)
                if message.brokers is not None:
                    self.endpoints.learn(peer, message.brokers, now_ms)
                if message.quit:
                    self.drain(now_ms)
            case Go():
                self.runs.on_go(peer, message.items, now_ms)
            case Cancel():
                self._on_cancel(peer, message, now_ms)
            case Adopt():
                self._on_adopt(peer, message, now_ms)
            case _:
                assert_never(message)

    def _on_cancel(self, peer: BrokerPeer, message: Cancel, now_ms: float) -> None:
        not_started: list[HeldDelivery] = []
        for item in message.items:
            held = self.holdings.get(item)
            if held is None:
                self.holdings.tombstones.disown(item, peer, now_ms)
            elif held.peer is peer and held.state is not DONE:
                if held.withdraw():
                    not_started.append(held)
                else:
                    self.runs.interrupt(held, message.reason)
        self.intake.give_back(not_started, "stale", now_ms)

    def _on_adopt(self, peer: BrokerPeer, message: Adopt, now_ms: float) -> None:
        """Move deliveries to another broker, or to the same one after a restart. Unknown ones will never start here."""
        answers: list[AdoptedItem] = []
        moved: dict[ResultsMessage, list[HeldDelivery]] = {}
        for item in dict.fromkeys(message.items):
            held = self.holdings.get(item)
            if held is None or held.state is None:
                self.holdings.tombstones.disown(item, peer, now_ms)
                answers.append((*item, "unknown", 0))
                continue
            assert held.reported_state is not None
            answers.append((*item, held.reported_state, held.age_ms(now_ms)))
            if held.message is not None:
                self.outbox.hasten(held.message, now_ms)
                if held.message.peer is not peer:
                    moved.setdefault(held.message, []).append(held)
            self.holdings.move(held, peer)
        assert peer.session is not None
        for part in parts(answers):
            self.out.send_to(peer, Adopted(v=V, worker=self.out.worker, session=peer.session, items=part))
        for results_message, deliveries in moved.items():
            self.reporting.change_owner(results_message, deliveries, peer, now_ms)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _hand_over(self, now_ms: float) -> None:
        """Hand steps to the runner, as far as slots and pace permit, and watch those that still wait."""
        slots = self.slots
        if slots.has_queue():
            slots.ahead = self.credit.ahead(now_ms)
            if slots.has_next():
                self.runs.start_queued(now_ms)
        self.credit.watch(now_ms)

    def _return_excess(self, now_ms: float) -> None:
        """Return the newest steps that no longer fit, because steps have become longer."""
        count, peers = self.credit.excess(now_ms)
        if count:
            self.intake.give_back(self.holdings.withdraw_newest(count, peers), "busy", now_ms)

    def _may_quit(self) -> bool:
        return self.credit.is_draining and not self.holdings and not self._has_quit

    def _heartbeat(self, now_ms: float) -> None:
        self.holdings.tombstones.sweep(now_ms)
        if not self.announcements.is_for_credit:
            self.credit.rotate()
        self.announcements.heartbeat(now_ms)
