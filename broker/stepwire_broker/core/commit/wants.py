"""The handlers that a task in the database waits for: the handler classes of its ready steps, as one stored text.

One text serves an index lookup for each distinct set of handlers, however many tasks wait.
"""

from collections.abc import Iterable
from typing import Final

HANDLERS_MAX: Final = 16  # a task that waits for more handlers is loaded whenever memory has space
_SEPARATOR: Final = ","  # no handler class contains it


def wants_of(handler_classes: Iterable[str]) -> str | None:
    """Return the text to store. None: too many handlers to name."""
    distinct = sorted(set(handler_classes))
    return _SEPARATOR.join(distinct) if 0 < len(distinct) <= HANDLERS_MAX else None


def handlers_in(wants: str) -> list[str]:
    """Return the handler classes of a stored text."""
    return wants.split(_SEPARATOR)
