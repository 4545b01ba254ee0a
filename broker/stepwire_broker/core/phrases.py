"""Parts of sentences for people: lists of names, counts, times and durations."""

from collections.abc import Iterable
from typing import Final

from .model.events import Now

NAMED_MAX: Final = 5  # the names shown of a list; the others are counted
DAY_MS: Final = 24 * 3600 * 1000


def named(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
    return ", ".join(shown[:NAMED_MAX]) + more


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def at_time(ms: int | None, now: Now) -> str:
    """Return `12:00:03 UTC`, or the number of days for a time at least a day away."""
    if ms is None:
        return "some time ago"
    if abs(ms - now.wall) >= DAY_MS:
        days = counted(abs(ms - now.wall) // DAY_MS, "day")
        return f"{days} ago" if ms < now.wall else f"in {days}"
    minutes, seconds = divmod(ms % DAY_MS // 1000, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02} UTC"


def span(ms: int) -> str:
    seconds = max(0, ms) / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def progress_text(done: float, total: float | None, note: str | None) -> str:
    """Return `3 of 10 (30%): packing`."""
    text = f"{done:g}" if total is None else f"{done:g} of {total:g}"
    if total and total > 0:
        text += f" ({min(100.0, 100 * done / total):.0f}%)"
    return f"{text}: {note}" if note else text
