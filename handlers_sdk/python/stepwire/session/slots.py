"""The deliveries that wait for a slot, and the slots in use."""

from collections import deque

from stepwire_protocol.messages import Item

from .config import Offers
from .deliveries import QUEUED, HeldDelivery


class Slots:
    """The run queue. A slot is in use from the start of a run, or from its request for permission, to its end."""

    def __init__(self, slots: int, offers: Offers) -> None:
        self.asking: dict[Item, HeldDelivery] = {}  # at_most_once: has a slot, and waits for the broker's go
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
        """Assign a slot to the next delivery in the queue. None: no slot is free, or nothing in the queue may start."""
        queue = self.queued
        while queue and self.taken < self._slots:
            held = queue.popleft()
            if held.state is not QUEUED:
                self._unblock(held.offer)  # cancelled while queued, perhaps after `_unblock`: unblock the next one
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
        """Release the slot of a delivery."""
        self.taken -= 1
        self._taken_by[held.offer] -= 1
        if self._blocked:
            self._unblock(held.offer)

    def _unblock(self, offer: int) -> None:
        """Put the next delivery that waits for this offer's concurrency at the head of the queue."""
        blocked = self._blocked.get(offer)
        while blocked:
            held = blocked.popleft()
            if held.state is QUEUED:
                self.queued.appendleft(held)
                break
