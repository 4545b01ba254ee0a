"""Finds probable secrets in a workflow's document, where a reference would keep them out of the database:
`handler_config: {api_key: sk_live_…}`."""

import re
from collections.abc import Iterator
from typing import Any, Final

from stepwire_broker.core.reading.document_problems import Path

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "token", "key", "apikey", "credential", "credentials"}
)
_NO_SECRET: Final = frozenset(  # `public_key`, `idempotency_key`, `page_token`
    {"public", "primary", "foreign", "sort", "partition", "idempotency", "cache", "routing", "object", "page", "next"}
)


def literals(config: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The path and the name of each member that is named like a secret and holds a text."""
    waiting: list[tuple[Path, Any]] = [(path, config)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, dict):
            for name, value in each.items():
                if isinstance(value, str) and value and isinstance(name, str) and _is_named_like_a_secret(name):
                    yield (*place, name), name
                elif isinstance(value, dict | list):
                    waiting.append(((*place, name), value))
        elif isinstance(each, list):
            waiting += [((*place, i), inner) for i, inner in enumerate(each) if isinstance(inner, dict | list)]


def _is_named_like_a_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name[:128])]
    return bool(words) and not name.startswith("$") and words[-1] in _SECRET and not _NO_SECRET.intersection(words)
