"""When a group that could not be written is tried again, and when its stall is reported again."""

from typing import Final

from stepwire_broker.core.model.commit_group import StallCode, Stalled

PAUSE_MS: Final = 50
PAUSE_MAX_MS: Final = 500
STALL_REPEAT_MS: Final = 1_000


class Stall:
    """The times of the next attempt and of the next report of a stall."""

    def __init__(self, lane: int, seq: int) -> None:
        self._lane = lane
        self._seq = seq
        self._code: StallCode | None = None
        self._reported_at = 0.0
        self._pause_ms = PAUSE_MS // 2

    def again(self, code: StallCode, error: str, now_s: float) -> Stalled | None:
        if code == self._code and now_s - self._reported_at < STALL_REPEAT_MS / 1000:
            return None
        self._code, self._reported_at = code, now_s
        return Stalled(self._lane, self._seq, code, error)

    def pause_s(self) -> float:
        self._pause_ms = min(self._pause_ms * 2, PAUSE_MAX_MS)
        return self._pause_ms / 1000
