"""The deliveries that wait to be handed to the runner, and those that the runner has.

A runner starts the next step the moment a slot is free. It can only do so if it has that step already, so at_least_once
steps are handed over ahead of free slots: as many as the observed pace says. The runner itself keeps to the slots and
to the concurrency of each handler (`runners/run_slots.py`). An at_most_once step asks its broker for permission, and a
slot must be free for it from then on. So it is never handed over ahead, and while one asks, no step is.
"""

from collections import deque

from stepwire_protocol import limits
from stepwire_protocol.messages import Item

from .config import Offers
from .deliveries import QUEUED, HeldDelivery
from .pace import Pace


class Slots:
    """The run queue. A delivery is taken from its hand-over, or from its request for permission, to its end."""

    def __init__(self, slots: int, offers: Offers) -> None:
        self.asking: dict[Item, HeldDelivery] = {}  # at_most_once: has a slot, and waits for the broker's go
        self.taken = 0
        self.ahead = 0  # the number of steps that may be handed over ahead of free slots
        self._unblocked: deque[HeldDelivery] = deque()  # before `_queued`
        self._queued: deque[HeldDelivery] = deque()
        self.queue = self._queued.append
        self.slots = slots
        self._limited = {
            number: _Limited(offer.concurrency)
            for number, offer in enumerate(offers.by_number)
            if offer.concurrency is not None
        }

    def has_queue(self) -> bool:
        return bool(self._queued or self._unblocked)

    def has_next(self) -> bool:
        """True if the delivery at the head of the queue can be taken, unless its handler's concurrency is used up."""
        queue = self._unblocked or self._queued
        if not queue:
            return False
        must_have_slot = self.asking or queue[0].is_at_most_once
        return self.taken < (self.slots if must_have_slot else self.slots + self.ahead)

    def take_next(self, now_ms: float) -> HeldDelivery | None:
        """Take the next delivery from the queue. None: nothing in the queue can be taken now."""
        while self.has_next():
            is_unblocked = bool(self._unblocked)
            held = (self._unblocked or self._queued).popleft()
            limited = self._limited.get(held.offer) if self._limited else None
            if held.state is not QUEUED:
                if limited is not None:  # cancelled while queued, perhaps after it was unblocked
                    self._unblock(limited, now_ms)
                continue
            if limited is not None:
                if is_unblocked:
                    if self._room(limited, held, now_ms) <= 0:
                        limited.blocked.appendleft(held)
                        continue
                elif limited.blocked or self._room(limited, held, now_ms) <= 0:
                    limited.blocked.append(held)
                    continue
                limited.take(now_ms)
            self.taken += 1
            return held
        return None

    def release(self, held: HeldDelivery, now_ms: float) -> None:
        """The delivery has ended, or will never start."""
        self.taken -= 1
        if self._limited and (limited := self._limited.get(held.offer)) is not None:
            limited.release(now_ms)
            self._unblock(limited, now_ms)

    def _unblock(self, limited: "_Limited", now_ms: float) -> None:
        """Put deliveries that waited for this handler's concurrency before the queue."""
        blocked, unblocked = limited.blocked, 0
        while blocked and (blocked[0].state is not QUEUED or self._room(limited, blocked[0], now_ms) > unblocked):
            held = blocked.popleft()
            if held.state is QUEUED:
                self._unblocked.append(held)
                unblocked += 1

    def _room(self, limited: "_Limited", held: HeldDelivery, now_ms: float) -> int:
        return limited.room(bool(self.asking) or held.is_at_most_once, now_ms)


class _Limited:
    """The deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it."""

    __slots__ = ("_pace", "blocked", "concurrency", "taken")

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.taken = 0
        self.blocked: deque[HeldDelivery] = deque()
        self._pace = Pace(0.0)

    def room(self, without_ahead: bool, now_ms: float) -> int:
        ahead = 0 if without_ahead else int(self._pace.steps_in(limits.PREFETCH_MS, now_ms) + 0.5)
        return self.concurrency + ahead - self.taken

    def take(self, now_ms: float) -> None:
        self.taken += 1
        self._pace.resume(now_ms)

    def release(self, now_ms: float) -> None:
        self.taken -= 1
        self._pace.count_end(now_ms)
        if not self.taken:
            self._pace.pause(now_ms)
