"""Controls of operators that survive a restart: forced breakers, paused executors and drained workers.

Each is a row of `controls`, written in the transaction of its command. Routing rules and offered handlers have modules
of their own.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.model.commit_group import ControlChanged


class ForcedBreaker(Struct, frozen=True):
    """A breaker that stays open or closed. The row has the name of its handler_class."""

    state: Literal["open", "closed"]
    reason: str
    since_ms: int


class PausedExecutor(Struct, frozen=True):
    """An executor that gets no further steps. The row has the name of its key."""

    since_ms: int


class DrainedWorker(Struct, frozen=True):
    """A worker, one process, that gets no further steps. The row has the name of its id."""

    quit: bool
    since_ms: int


OperatorControl: TypeAlias = ForcedBreaker | PausedExecutor | DrainedWorker
ControlT = TypeVar("ControlT", ForcedBreaker, PausedExecutor, DrainedWorker)

KINDS: Final[dict[type[OperatorControl], str]] = {
    ForcedBreaker: "breaker",
    PausedExecutor: "paused",
    DrainedWorker: "drained",
}


def control(name: str, value: OperatorControl) -> ControlChanged:
    return ControlChanged(KINDS[type(value)], name, msgspec.json.encode(value).decode(), 0)


def removal(name: str, kind: type[OperatorControl]) -> ControlChanged:
    return ControlChanged(KINDS[kind], name, None, 0)


def stored(controls: Iterable[StoredControl], kind: type[ControlT]) -> list[tuple[str, ControlT]]:
    """Return the stored controls of a kind with their names, the oldest first."""
    found = [(row.name, msgspec.json.decode(row.value, type=kind)) for row in controls if row.kind == KINDS[kind]]
    return sorted(found, key=lambda each: (each[1].since_ms, each[0]))
