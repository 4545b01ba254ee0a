"""Data of shadows: the copies in progress, and the counts of the results of earlier comparisons.

`copies.py` sends and compares them.
"""

from collections import deque
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from stepwire_protocol.messages import StepRequest

from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.targets import Target

FIRST: Final = 1 << 52  # ids of shadows are from here to 2^53, and ids of steps are below
PER_EPOCH: Final = 1 << 32
EPOCHS: Final = 1 << 20
DIFFERENCES_KEPT: Final = 20


class Shadow(Struct, weakref=False, eq=False):
    """One copy. A shadow ends when the copy and the real step have ended, or when its time is over."""

    id: int
    step_id: int
    task_id: int
    handler_class: str
    worker: str  # that has the copy
    tally: "Tally"
    is_sealed: bool = False  # its workflow: texts of a worker are not kept
    over: bool = False
    copied: tuple[str, bytes | None] | None = None  # status and output of the copy
    real: tuple[str, bytes | None] | None = None  # status and output of the real step


class WantedCopy(NamedTuple):
    """A copy that is sent if a slot is free after the real steps were dispatched."""

    step: Step
    request: StepRequest
    target: Target
    match: str


class OutputDifference(NamedTuple):
    task_id: int
    step_id: int
    what: str  # "differs at $.path", or the cause of the copy's failure
    at_ms: int


class Tally(Struct):
    """Counts of how the shadows of one rule and handler compared."""

    match: str
    handler_class: str
    executor: str
    equal: int = 0
    differs: int = 0
    failed: int = 0  # the copy failed and the step did not
    not_compared: int = 0  # the step itself failed, or an output was too large
    lost: int = 0  # the copy was not answered in time
    dropped: int = 0  # not sent, because no worker had a free slot
    lately: deque[OutputDifference] = field(default_factory=lambda: deque(maxlen=DIFFERENCES_KEPT))


class Shadows:
    def __init__(self, epoch: int) -> None:
        self.by_id: dict[int, Shadow] = {}
        self.of_step: dict[int, Shadow] = {}
        self.wanted: list[WantedCopy] = []
        self.tallies: dict[tuple[str, str], Tally] = {}
        self._first = FIRST + epoch % EPOCHS * PER_EPOCH
        self._count = 0

    def next_id(self) -> int:
        """A new id. Every start of a broker gives other ids, so that no worker confuses two copies."""
        self._count += 1
        return self._first + self._count % PER_EPOCH

    def tally(self, match: str, handler_class: str, executor: str) -> Tally:
        key = (match, handler_class)
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally(match, handler_class, executor)
        return tally


def difference(one: Any, other: Any, path: str = "$") -> str | None:
    """Return the path of the first difference of two JSON values, like $.lines[2].total; None if they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{path}.{key}"
            if (where := difference(one[key], other[key], f"{path}.{key}")) is not None:
                return where
        return None
    if isinstance(one, list) and isinstance(other, list):
        for i, (a, b) in enumerate(zip(one, other, strict=False)):
            if (where := difference(a, b, f"{path}[{i}]")) is not None:
                return where
        return None if len(one) == len(other) else f"{path}[{min(len(one), len(other))}]"
    if isinstance(one, bool) or isinstance(other, bool):
        return None if one is other else path
    return None if one == other else path
