"""The known name that a misspelled one probably means."""

import difflib
from collections.abc import Collection

CHARACTERS_MAX = 128  # of a written name: a longer one is cut before it is compared


def nearest(written: str, names: Collection[str]) -> str | None:
    return next(iter(difflib.get_close_matches(written[:CHARACTERS_MAX], names, 1)), None)


def did_you_mean(written: str, names: Collection[str]) -> str:
    """`did you mean lease_ms?`, or nothing."""
    name = nearest(written, names)
    return "" if name is None else f"did you mean {name}?"
