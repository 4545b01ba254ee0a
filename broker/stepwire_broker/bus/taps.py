"""Taps: functions that see every message that passes the bus."""

import contextlib
from collections.abc import Callable
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["in", "out"]
Tap: TypeAlias = Callable[[Direction, bytes, bytes], None]


class Taps:
    """`active` is read for every message: it is empty most of the time, and then `show` is not called."""

    def __init__(self) -> None:
        self.active: list[Tap] = []

    def add(self, tap: Tap) -> Callable[[], None]:
        """Show every message that passes, until the returned function is called."""
        self.active.append(tap)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self.active.remove(tap)

        return remove

    def show(self, direction: Direction, topic: bytes, body: bytes) -> None:
        for tap in tuple(self.active):
            tap(direction, topic, body)
