"""Recent counts: sums over a sliding window, in pieces, so that memory does not grow with the number of events.

Events older than the window are forgotten one piece at a time. Therefore a sum covers at least nine tenths of the
window, and at most the whole window.
"""

from typing import Final

PIECES: Final = 10


class Recent:
    """Counts of the last `window_ms`, in `columns` columns. Callers pass times in ascending order."""

    __slots__ = ("_piece", "_pieces", "_sums", "piece_ms")

    def __init__(self, window_ms: int, columns: int) -> None:
        self.piece_ms = max(1, window_ms // PIECES)
        self._piece = 0  # the number of the newest piece, counted from the clock's zero
        self._pieces = [[0] * columns for _ in range(PIECES)]
        self._sums = [0] * columns

    def add(self, column: int, mono: int, count: int = 1) -> None:
        self._roll(mono)
        self._pieces[self._piece % PIECES][column] += count
        self._sums[column] += count

    def take_back(self, column: int, mono: int) -> None:
        """Undo the count of one event, the latest that is still counted."""
        self._roll(mono)
        for back in range(PIECES):
            piece = self._pieces[(self._piece - back) % PIECES]
            if piece[column] > 0:
                piece[column] -= 1
                self._sums[column] -= 1
                return

    def sum(self, column: int, mono: int) -> int:
        self._roll(mono)
        return self._sums[column]

    def next_roll(self, mono: int) -> int:
        """Return when the next piece is forgotten."""
        return (mono // self.piece_ms + 1) * self.piece_ms

    def clear(self) -> None:
        for piece in self._pieces:
            piece[:] = [0] * len(piece)
        self._sums = [0] * len(self._sums)

    def _roll(self, mono: int) -> None:
        newest = mono // self.piece_ms
        if newest - self._piece >= PIECES:
            self.clear()
            self._piece = newest
        while self._piece < newest:
            self._piece += 1
            oldest = self._pieces[self._piece % PIECES]
            for column, count in enumerate(oldest):
                self._sums[column] -= count
                oldest[column] = 0
