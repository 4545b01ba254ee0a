"""Which deliveries wait for a slot, and how many slots are taken."""

from collections import deque

from stepwire_protocol.messages import Item

from .config import Offers
from .deliveries import QUEUED, HeldDelivery


class Slots:
    """The run queue. A slot is taken from the start of a run, or from its request for permission, to its end."""

    def __init__(self, slots: int, offers: Offers) -> None:
        self.asking: dict[Item, HeldDelivery] = {}  # at_most_once: have a slot, and wait for the broker's go
        self.taken = 0
        self._slots = slots
        self._offers = offers.by_number
        self.queued: deque[HeldDelivery] = deque()
        self.queue = self.queued.append
        self._blocked: dict[int, deque[HeldDelivery]] = {}  # by offer: its own concurrency is used up
        self._taken_by: dict[int, int] = {}  # by offer

    def has_next(self) -> bool:
        return bool(self.queued) and self.taken < self._slots

    def take_next(self) -> HeldDelivery | None:
        """Give the next delivery in the queue a slot. None: no slot is free, or nothing in the queue may start."""
        queue = self.queued
        while queue and self.taken < self._slots:
            held = queue.popleft()
            if held.state is not QUEUED:
                self._unblock(
                    held.offer
                )  # cancelled in the queue, perhaps after `_unblock`: the next one that was blocked is due
                continue
            limit = self._offers[held.offer].concurrency
            taken = self._taken_by.get(held.offer, 0)
            if limit is not None and taken >= limit:
                self._blocked.setdefault(held.offer, deque()).append(held)
                continue
            self.taken += 1
            self._taken_by[held.offer] = taken + 1
            return held
        return None

    def release(self, held: HeldDelivery) -> None:
        """The delivery needs its slot no longer."""
        self.taken -= 1
        self._taken_by[held.offer] -= 1
        if self._blocked:
            self._unblock(held.offer)

    def _unblock(self, offer: int) -> None:
        """Put the next delivery that waited for its offer's own concurrency at the head of the queue."""
        blocked = self._blocked.get(offer)
        while blocked:
            held = blocked.popleft()
            if held.state is QUEUED:
                self.queued.appendleft(held)
                break
