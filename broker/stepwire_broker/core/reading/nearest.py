"""The known name that a misspelled one probably means."""

import difflib
from collections.abc import Collection, Iterator
from typing import Final

WRITTEN_CHARACTERS_MAX: Final = 128  # a longer name is no misspelling, and comparing takes time
SHOWN_CHARACTERS_MAX: Final = 64
WORK_MAX: Final = 200_000  # pairs of characters: about 6 ms


def nearest(written: str, names: Collection[str]) -> str | None:
    """The most similar name. Beyond WORK_MAX, later names are not compared."""
    if len(written) > WRITTEN_CHARACTERS_MAX:
        return None
    return next(iter(difflib.get_close_matches(written, _affordable(written, names), 1)), None)


def did_you_mean(written: str, names: Collection[str]) -> str:
    """`did you mean lease_ms?`, or nothing."""
    name = nearest(written, names)
    return "" if name is None else f"did you mean {name}?"


def echoed(written: str) -> str:
    """A name that a stranger has written, in a length for messages."""
    return written if len(written) <= SHOWN_CHARACTERS_MAX else f"{written[:SHOWN_CHARACTERS_MAX]}…"


def _affordable(written: str, names: Collection[str]) -> Iterator[str]:
    left = WORK_MAX
    for name in names:
        left -= (len(written) + 8) * (len(name) + 8)  # a comparison costs something also for short names
        if left < 0:
            return
        yield name
