"""Where a step may go: targets, and the routes that ready steps are queued by."""

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

BUS: Final = "bus"  # the executor of every worker that connects over the bus
LOCAL: Final = "local"  # the executor of handlers in the broker's own process
POLL: Final = "poll"  # the executor of workers that lease steps over HTTP

Selector: TypeAlias = tuple[tuple[str, str], ...]  # labels, sorted


class Labelled(Protocol):
    """What a target must know of a session."""

    @property
    def executor(self) -> str: ...

    @property
    def joins_bus(self) -> bool: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


class Target(Struct, frozen=True, eq=False):
    """Sessions that may take a step: of this executor, with these labels, and not with those. One object for each, so
    that it is its own key."""

    executor: str
    selector: Selector = ()
    without: Selector = ()  # a canary's labels: its workers are not for the others

    def takes(self, session: "Labelled") -> bool:
        if session.executor != self.executor and not (session.joins_bus and self.executor == BUS):
            return False
        labels = session.labels
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return not self.without or any(labels.get(key) != value for key, value in self.without)


# where it goes, handler_class, whether it goes alone, whether it is at_most_once, and whether it is a retry that the
# budget of its handler may hold up: what some cannot take must not bar the way to the rest
Route: TypeAlias = tuple[Target, str, bool, bool, bool]
