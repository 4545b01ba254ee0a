"""Freezes the vectors of a protocol version when it is released: `python -m tests.protocol.frozen 2.0`.

The command copies protocol/vectors/*.json to protocol/vectors/released/2.0/. From then on a test requires that the
files of today contain every vector of that copy, so all runners of today's files play the old vectors too. A vector
stays as it is. Only its `value` may get members, because it shows the defaults of members that a later minor version
adds.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VECTORS: Final = Path(__file__).parents[2] / "protocol/vectors"
GROWS: Final = "value"


def main() -> None:
    match sys.argv[1:]:
        case [version] if re.fullmatch(r"\d+\.\d+", version):
            freeze(version)
        case _:
            sys.exit("usage: python -m tests.protocol.frozen MAJOR.MINOR")


def freeze(version: str, vectors: Path = VECTORS) -> None:
    """Copy the vectors of today. A version is frozen once."""
    copy = vectors / "released" / version
    if copy.exists():
        sys.exit(f"{copy} exists: the vectors of a released version do not change")
    copy.mkdir(parents=True)
    for file in sorted(vectors.glob("*.json")):
        shutil.copy(file, copy)


def changed(vectors: Path = VECTORS) -> Iterator[str]:
    """The frozen vectors that the files of today do not contain."""
    for frozen in sorted(vectors.glob("released/*/*.json")):
        today = vectors / frozen.name
        if not today.is_file():
            yield f"{frozen.name} of {frozen.parent.name} is gone"
            continue
        present = json.loads(today.read_text())
        for group, old in json.loads(frozen.read_text()).items():
            yield from _lost(f"{frozen.name} of {frozen.parent.name}, {group}", old, present.get(group))


def _lost(where: str, old: Any, present: Any) -> Iterator[str]:
    if not isinstance(old, list):
        if present != old:
            yield f"{where}: {old!r} is now {present!r}"
        return
    for vector in old:
        if not any(is_kept(vector, one) for one in present or ()):
            name = vector.get("name") or json.dumps(vector)[:100]
            yield f"{where}: the vector {name!r} was changed or removed"


def is_kept(old: Any, present: Any, *, may_grow: bool = False) -> bool:
    """Whether `present` is the old vector. Objects in its `value` may have members that the old one lacks."""
    if isinstance(old, dict) and isinstance(present, dict):
        if not (old.keys() <= present.keys() if may_grow else old.keys() == present.keys()):
            return False
        return all(is_kept(part, present[name], may_grow=may_grow or name == GROWS) for name, part in old.items())
    if isinstance(old, list) and isinstance(present, list):
        return len(old) == len(present) and all(
            is_kept(one, other, may_grow=may_grow) for one, other in zip(old, present, strict=True)
        )
    return type(old) is type(present) and bool(old == present)  # 1, 1.0 and true differ


if __name__ == "__main__":
    main()
