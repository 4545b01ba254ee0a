"""The deliveries of one worker over HTTP, as the broker knows them: the state of each, and the cancelled ones."""

from collections.abc import Container, Iterable
from typing import Final

from msgspec import Struct
from stepwire_protocol import limits
from stepwire_protocol.messages import CancelReason, HeldItem, HeldState, Item
from stepwire_protocol.polling import CancelledItem

HELD_MAX: Final = limits.BATCH_ITEMS_MAX
ACKED_REMEMBERED_MAX: Final = limits.BATCH_ITEMS_MAX

_RANK: Final[dict[HeldState, int]] = {"queued": 0, "asking": 1, "running": 2, "done": 3}


class LeasedStep(Struct):
    """A delivery to this worker, with the latest state that the client reported."""

    state: HeldState
    since_mono: int
    is_given: bool = True  # the delivery was part of an answer, so the client may have it


class PolledSteps:
    def __init__(self) -> None:
        self.cancels: dict[Item, CancelledItem] = {}  # sent with every answer while the client may hold the delivery
        self._held: dict[Item, LeasedStep] = {}
        self._acked: dict[Item, None] = {}  # a call may have left before the client received the ack

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, item: object) -> bool:
        return item in self._held

    @property
    def has_given(self) -> bool:
        """True if the client may have a delivery whose result it has not reported."""
        return any(held.is_given for held in self._held.values())

    def clear(self) -> None:
        self._held = {}
        self.cancels = {}

    def add(self, items: Iterable[Item], now_mono: int) -> None:
        """Add deliveries from the core that were in no answer yet."""
        for item in items:
            self._held[item] = LeasedStep("queued", now_mono, False)

    def mark_given(self, items: Iterable[Item]) -> None:
        for item in items:
            self._held[item].is_given = True

    def update(self, holding: Iterable[HeldItem], now_mono: int) -> None:
        """Merge the client's report. Calls may arrive out of order, so a state never goes backwards."""
        for step_id, delivery, state, age_ms in holding:
            held = self._held.get((step_id, delivery))
            if held is None:
                if len(self._held) < HELD_MAX and (step_id, delivery) not in self._acked:
                    self._held[step_id, delivery] = LeasedStep(state, now_mono - age_ms)
            else:
                held.is_given = True
                if _RANK[state] > _RANK[held.state]:
                    held.state = state
                    held.since_mono = now_mono - age_ms

    def missing(self, reported: Container[Item]) -> list[Item]:
        """Deliveries that were in an answer and are not in `reported`."""
        return [item for item, held in self._held.items() if held.is_given and item not in reported]

    def report(self, now_mono: int, among: Iterable[Item] | None = None) -> list[HeldItem]:
        """All deliveries, or those in `among`, in the form of a message to the core."""
        items = self._held if among is None else [item for item in among if item in self._held]
        return [(*item, held.state, max(0, now_mono - held.since_mono)) for item in items if (held := self._held[item])]

    def cancel(self, items: Iterable[Item], reason: CancelReason) -> None:
        for item in items:
            if item in self._held:
                self.cancels[item] = (*item, reason)

    def remove(self, item: Item) -> None:
        self._held.pop(item, None)
        self.cancels.pop(item, None)

    def acknowledge(self, items: Iterable[Item]) -> None:
        """Remove deliveries whose results are committed. A later call that still reports one of them is ignored."""
        for item in items:
            self.remove(item)
            self._acked[item] = None
        while len(self._acked) > ACKED_REMEMBERED_MAX:
            del self._acked[next(iter(self._acked))]
