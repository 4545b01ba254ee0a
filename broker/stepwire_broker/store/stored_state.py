"""The port through which a command reads the whole state of a database, whether a broker runs or not.

Statements that are read through it hold for every database: plain SQL over the tables that all databases have.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from .queries import Queries

T = TypeVar("T")


class StoredState(Protocol):
    """A connection for reading. Outside `moment`, each statement sees a state of its own."""

    name: ClassVar[str]  # of the database product
    damage: ClassVar[tuple[type[Exception], ...]]  # errors by which the product reports that it cannot read its data
    open_task_ids: ClassVar[str]  # selects the ids of the open tasks from their indexes

    def moment(self) -> AbstractContextManager[object]:
        """Let every statement inside see one state. Keep the time short: the database keeps old rows meanwhile."""

    def select(self, statement: str) -> list[tuple[Any, ...]]: ...

    def each(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Read many rows, a few at a time. To be called inside `moment`."""

    def read(self, query: Callable[[Queries], T]) -> T:
        """Run a query of the port Queries, which sees one state. Not to be called inside `moment`."""

    def own_faults(self) -> Iterator[str]:
        """Yield a sentence for each fault that only this product can have."""
