"""Runs, from their slot to their end: permission for at_most_once steps, start, timeouts, cancels."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Item, Start

from stepwire.actions import NEVER, CancelRun, Run, RunEnd

from .brokers import BrokerPeer
from .config import Offers
from .deliveries import ASKING, RUNNING, HeldDelivery
from .holdings import HeldDeliveries
from .outgoing import Outgoing, V, parts
from .slots import Slots

RECHECK_MS: Final = 50.0  # a run that has not begun by its deadline is checked again after this time


class Runs:
    """Starts deliveries in the run queue, and asks runs to stop."""

    def __init__(self, offers: Offers, slots: Slots, holdings: HeldDeliveries, out: Outgoing) -> None:
        self.ask_at_ms = NEVER
        self.timeout_at_ms = NEVER
        self._offers = offers.by_number
        self._slots = slots
        self._holdings = holdings
        self._out = out

    def start_queued(self, now_ms: float) -> None:
        while (held := self._slots.take_next(now_ms)) is not None:
            if held.is_at_most_once:
                held.state = ASKING
                held.ask_at_ms = now_ms
                held.ask_wait_ms = float(limits.START_RETRANSMIT_MS)
                self._slots.asking[held.item] = held
                self.ask_at_ms = now_ms
            else:
                self._start(held, now_ms)

    def ask(self, now_ms: float) -> None:
        """Send `start` for the at_most_once steps that are due. Resent until the broker answers go or cancel."""
        asking = self._slots.asking
        due: dict[BrokerPeer, list[Item]] = {}
        for held in asking.values():
            if held.ask_at_ms <= now_ms:
                due.setdefault(held.peer, []).append(held.item)
                held.ask_at_ms = now_ms + held.ask_wait_ms
                held.ask_wait_ms = min(held.ask_wait_ms * 2, limits.START_RETRANSMIT_MAX_MS)
        self.ask_at_ms = min((held.ask_at_ms for held in asking.values()), default=NEVER)
        for peer, items in due.items():
            if peer.session is not None:
                for part in parts(items):
                    self._out.send_to(peer, Start(v=V, worker=self._out.worker, session=peer.session, items=part))

    def hasten(self, peer: BrokerPeer, now_ms: float) -> None:
        """Ask this broker with the next actions, because its session has just opened."""
        for held in self._slots.asking.values():
            if held.peer is peer:
                held.ask_at_ms = self.ask_at_ms = now_ms

    def on_go(self, peer: BrokerPeer, items: list[Item], now_ms: float) -> None:
        for item in items:
            held = self._slots.asking.get(item)
            if held is not None and held.peer is peer:
                del self._slots.asking[item]
                self._start(held, now_ms)

    def interrupt(self, held: HeldDelivery, reason: RunEnd) -> None:
        """Ask a run that has begun to stop. The first reason counts, and a run is asked once, although a broker repeats
        its cancel at every heartbeat that lists the run. `lease_lost` informs the handler, and stops nothing."""
        held.is_interrupted = True
        if not held.is_stopping:
            held.is_stopping = reason != "lease_lost"
            self._out.add(CancelRun(held.item, reason))

    def interrupt_all(self, reason: RunEnd) -> int:
        """Ask every run to stop. Returns their number."""
        running = self._holdings.running()
        for held in running:
            self.interrupt(held, reason)
        return len(running)

    def stop_overdue(self, now_ms: float) -> None:
        at_ms = NEVER
        for held in self._holdings.running():
            run = held.run
            assert run is not None
            if run.started_ms is None:  # may begin at any time
                at_ms = min(at_ms, now_ms + run.timeout_ms, max(run.deadline_ms, now_ms + RECHECK_MS))
            elif run.timeout_at_ms > now_ms:
                at_ms = min(at_ms, run.timeout_at_ms)
            else:
                self.interrupt(held, "timeout")
        self.timeout_at_ms = at_ms

    def _start(self, held: HeldDelivery, now_ms: float) -> None:
        step = held.step
        assert step is not None
        assert now_ms < held.peer.lease.until_ms, "a step must not start after its broker's lease"
        held.state = RUNNING
        timeout_ms: float = step.metadata.timeout_ms or NEVER
        own_ms = self._offers[held.offer].timeout_ms
        if own_ms is not None and own_ms < timeout_ms:
            timeout_ms = own_ms
        deadline_ms = step.metadata.deadline_ms
        ends_ms = NEVER if deadline_ms is None else held.received_ms + deadline_ms
        soonest_ms = min(now_ms + timeout_ms, ends_ms)  # if the run begins at once
        if soonest_ms < self.timeout_at_ms:
            self.timeout_at_ms = soonest_ms
        may_need_opening = held.batch.may_need_opening
        held.run = Run(held.item, step, held.offer, held.peer.lease, timeout_ms, ends_ms, may_need_opening)
        self._out.add(held.run)
