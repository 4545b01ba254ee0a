"""The memory of connections that have ended.

Each connection occupies about 50 kB inside libzmq. After a crowd of them has ended, the allocator keeps that memory,
because blocks of other connections lie between theirs.
"""

from . import budgets


class Crowd:
    """Decides when the memory of ended connections is worth returning. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._most = 0  # open at once since the last return
        self._returned_s = -budgets.CROWD_EVERY_S
        self._is_owed = False  # libzmq frees connections after the loop has counted their ends: the rest comes later

    def has_left(self, connections: int, now_s: float) -> bool:
        """True if at least CROWD connections were open and most of them have ended: the caller returns memory now.

        A crowd that shrinks slowly is returned in parts, at most once in CROWD_EVERY_S. One more return follows the
        last part.
        """
        self._most = max(self._most, connections)
        has_left = self._most >= budgets.CROWD and connections <= self._most / 2
        if not (has_left or self._is_owed) or now_s - self._returned_s < budgets.CROWD_EVERY_S:
            return False
        self._most, self._returned_s, self._is_owed = connections, now_s, has_left
        return True
