"""The slots of a worker's runners, and the calls that wait for one.

All runners share the slots. The calls start in the order in which they were handed over, and wait for a slot and for a
place in the concurrency of their handler.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from stepwire.session import Offer


class Call(Protocol):
    """A call of a handler, with the number of the handler's offer."""

    offer: int


C = TypeVar("C", bound=Call)


class RunSlots(Generic[C]):
    """Gives slots to calls. Any thread may call these methods."""

    def __init__(self, slots: int, offers: Iterable[Offer]) -> None:
        self._free = slots
        self._waiting: deque[C] = deque()
        self._places = {i: offer.concurrency for i, offer in enumerate(offers) if offer.concurrency is not None}
        self._blocked: dict[int, deque[C]] = {number: deque() for number in self._places}
        self._lock = threading.Lock()

    def add(self, calls: Iterable[C]) -> list[C]:
        """Add calls. Returns those that have a slot now, and must be started."""
        with self._lock:
            self._waiting.extend(calls)
            started = []
            while self._free and (call := self._next()) is not None:
                self._free -= 1
                started.append(call)
            return started

    def release(self, call: C) -> C | None:
        """Release the slot of a call. Returns the call that has the slot now, and must be started."""
        offer = call.offer
        with self._lock:
            if offer in self._places:
                self._places[offer] += 1
                if self._blocked[offer]:
                    self._places[offer] -= 1
                    return self._blocked[offer].popleft()
            following = self._next() if self._waiting else None
            if following is None:
                self._free += 1
            return following

    def _next(self) -> C | None:
        """The next call in the queue whose handler has a place. Calls before it wait for their own handlers."""
        while self._waiting:
            call = self._waiting.popleft()
            offer = call.offer
            if offer not in self._places:
                return call
            if self._places[offer] > 0:
                self._places[offer] -= 1
                return call
            self._blocked[offer].append(call)
        return None
