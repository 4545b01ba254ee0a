"""A notification: one broker lets the others look at the database now, before their next regular look.

A notification may be lost, late or doubled. The regular looks find everything that a notification can name.
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

ANSWERS_MAX: Final = 500  # in one notification; the asking brokers find the rest by their own looks


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, of another broker; and a part of a decision, for the other brokers."""

    orders: tuple[int, ...] = ()  # lanes with new orders
    answers: tuple[int, ...] = ()  # orders that have answers now
    controls: bool = False  # the revision of `controls` has risen
    lanes: bool = False  # lanes are free now

    def __bool__(self) -> bool:
        return self != NOTHING

    def __or__(self, other: "Notification") -> "Notification":
        return Notification(
            orders=_merged(self.orders, other.orders),
            answers=_merged(self.answers, other.answers)[:ANSWERS_MAX],
            controls=self.controls or other.controls,
            lanes=self.lanes or other.lanes,
        )


NOTHING: Final = Notification()


class NotificationCounts(Struct):
    """Counted in the threads that send and receive, since the start."""

    sent: int = 0
    received: int = 0
    is_listening: bool = False


def _merged(some: Collection[int], more: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted({*some, *more}))
