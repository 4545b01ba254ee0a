"""Where a step may go: targets, and the routes by which ready steps are queued."""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

BUS: Final = "bus"  # the executor of every worker that connects over the bus
LOCAL: Final = "local"  # the executor of handlers in the broker's own process
POLL: Final = "poll"  # the executor of workers that lease steps over HTTP

Selector: TypeAlias = tuple[tuple[str, str], ...]  # labels, sorted


class Labelled(Protocol):
    """The part of a session that a target compares."""

    @property
    def executor(self) -> str: ...

    @property
    def joins_bus(self) -> bool: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


class Target(Struct, frozen=True, eq=False):
    """The sessions that may take a step: those of `executor` that have all labels `selector` and lack one of `without`.

    The router makes one object for each combination, so targets are compared and hashed by identity.
    """

    executor: str
    selector: Selector = ()
    without: Selector = ()  # labels of a canary, whose workers take no other steps

    def is_executor_of(self, session: "Labelled") -> bool:
        return session.executor == self.executor or (session.joins_bus and self.executor == BUS)

    def labels_match(self, session: "Labelled") -> bool:
        labels = session.labels
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return not self.without or any(labels.get(key) != value for key, value in self.without)


class Route(NamedTuple):
    """The properties of a step that decide which workers can take it.

    Ready steps are queued by route, so that a step that no worker can take does not block the others.
    """

    target: Target
    handler_class: str
    goes_alone: bool = False  # a suspect: two sessions died with it
    is_at_most_once: bool = False
    is_held_to_budget: bool = False  # a retry that the retry budget of its handler may delay
    message_bytes: int = 0  # of a step that was too large for a worker: other workers must accept this much
    namespace: str | None = None  # only where a grant distinguishes namespaces
