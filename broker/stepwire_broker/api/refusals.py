"""The number of refused requests and closed connections, by the limit that was exceeded."""

from collections import Counter


class Refusals:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, limit: str) -> None:
        self.counts[limit] += 1
