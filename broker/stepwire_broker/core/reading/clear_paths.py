"""Paths in a workflow with sealed payloads: the broker reads only the member `clear` of a context or an output."""

from collections.abc import Iterator
from typing import Any, Final

from stepwire_broker.core.reading.document_problems import Path

CLEAR: Final = "clear"


def unreadable(mapping: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The place of each path in an `input` or `output` that leads into the sealed part, and the path to write."""
    for member, target in mapping.items() if isinstance(mapping, dict) else ():
        words = target.split(".") if isinstance(target, str) else []
        roots = 1 if words[:1] == ["context"] else 2
        if words and words[roots : roots + 1] != [CLEAR]:
            yield (*path, member), ".".join([*words[:roots], CLEAR, *words[roots:]])


def unreadable_in_rule(rule: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The same for a written `trigger_rule`."""
    waiting = [(path, rule)]
    while waiting:
        place, each = waiting.pop()
        if not isinstance(each, dict):
            continue
        for kind, value in each.items():
            if kind in ("all", "any", "none") and isinstance(value, list):
                waiting += [((*place, kind, i), inner) for i, inner in enumerate(value)]
            elif kind in ("context", "result") and isinstance(value, str):
                words = value.split(".")
                roots = 0 if kind == "context" else 1
                if words[roots : roots + 1] != [CLEAR]:
                    yield (*place, kind), ".".join([*words[:roots], CLEAR, *words[roots:]])
