"""Ids of tasks and steps. Each block of consecutive ids belongs to one lane, so that the lane of an id is known without
a read. The ids of a task and its steps are consecutive, and are in one block.
"""

from typing import Final

from msgspec import Struct

IDS_PER_BLOCK: Final = 1 << 20


def block_of(number: int) -> int:
    """Return the number of the block that has this id."""
    return (number - 1) // IDS_PER_BLOCK


class LaneIds(Struct):
    """The ids that this broker has reserved in a lane, and has not used yet."""

    next: int
    last: int
    is_asked: bool = False  # further ids are being reserved

    @property
    def left(self) -> int:
        return self.last - self.next + 1

    def take(self, count: int) -> int:
        """Use this number of ids. Returns the first of them."""
        first = self.next
        self.next += count
        assert self.next <= self.last + 1, (first, count, self.last)
        return first
