"""Durations as people write them: `250ms`, `30s`, `5m`, `1.5h`, `7d`."""

import re
from typing import Final

FORMS: Final = "250ms, 30s, 5m, 2h or 7d"
DURATION_MAX_MS: Final = 366 * 24 * 3600 * 1000

PATTERN: Final = r"^\s*[0-9]{1,15}(?:\.[0-9]{1,3})?\s*(?:ms|s|m|h|d)\s*$"  # the same, for a JSON Schema

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?\s*(ms|s|m|h|d)")


def milliseconds(text: str) -> int | None:
    """Return a duration in milliseconds; None if the text is no duration of whole milliseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    whole, fraction, unit = match.groups()
    thousandths = int(whole) * 1000 + int((fraction or "").ljust(3, "0"))
    ms, rest = divmod(thousandths * _UNITS_MS[unit], 1000)
    return None if rest else ms
