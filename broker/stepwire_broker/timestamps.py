"""The format of times in the API and its clients: RFC 3339 in UTC with milliseconds."""

import functools
from datetime import UTC, datetime


def rfc3339(ms: int) -> str:
    """`2026-11-18T10:17:57.123Z`"""
    second, rest = divmod(ms, 1000)
    return f"{_second(second)}.{rest:03}Z"


@functools.lru_cache(1024)
def _second(second: int) -> str:
    """Format a second. Most times of a document lie within a few seconds, so the cache is effective."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def rfc3339_or_none(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def parse_rfc3339(text: str) -> int | None:
    """Return the milliseconds since 1970 of a time with a zone; None for any other text."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else int(at.timestamp() * 1000)
