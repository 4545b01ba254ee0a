"""References to secrets: `{"$secret": "stripe/live"}` stands for a value that only the worker can read.

A reference is an object with this one member. Its name is a relative path of plain file names, so that a directory of
files can hold the values.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

MEMBER: Final = "$secret"
NAME_CHARS_MAX: Final = 200
NAME_FORM: Final = "names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins with . or -"

Path: TypeAlias = tuple[str | int, ...]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def may_hold(raw: bytes) -> bool:
    """False if this JSON certainly holds no reference. A key may also be written with escapes (`\\u0024secret`)."""
    return b"$secret" in raw or b"\\u00" in raw


def is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) is not None


def faults(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The path and the fault of each object in this value that has the member `$secret` and is no reference."""
    for place, found in _objects(value, path):
        if MEMBER not in found:
            continue
        if len(found) > 1:
            yield place, f"a reference to a secret has the one member {MEMBER}: move the others out of this object"
        elif not is_name(found[MEMBER]):
            yield (*place, MEMBER), f"{_shown(found[MEMBER])} is not the name of a secret: {NAME_FORM}"


def replaced(value: Any, value_of: Callable[[str], str]) -> Any:
    """A copy of the value with the secret's value in the place of each reference. Without recursion beyond the 32
    levels of a message."""
    if isinstance(value, dict):
        if value.keys() == {MEMBER}:
            return value_of(value[MEMBER])
        return {key: replaced(inner, value_of) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, value_of) for inner in value]
    return value


def _objects(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    waiting = [(path, value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, dict):
            yield place, each
            waiting += [((*place, key), inner) for key, inner in each.items() if isinstance(inner, dict | list)]
        elif isinstance(each, list):
            waiting += [((*place, i), inner) for i, inner in enumerate(each) if isinstance(inner, dict | list)]


def _shown(name: object) -> str:
    if not isinstance(name, str):
        return "a value that is no string"
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
