"""Patterns over names of `::`-separated segments: handlers that a worker offers, step paths that a route takes.

`*` as a segment is exactly one segment, `**` any number of them, `*` inside a segment any run of characters of it,
possibly none; everything else is literal. Matching remembers one place to come back to and never a tree of them:
a pattern costs at most its length times the name's, whoever wrote it.
"""

from functools import lru_cache
from typing import Final, NamedTuple

SEPARATOR: Final = "::"
ANY: Final = "**"


class Pattern(NamedTuple):
    """A compiled pattern."""

    text: str
    globs: tuple[tuple[str, ...] | None, ...]  # a segment's literal pieces between its stars; None is `**`

    def matches(self, name: str) -> bool:
        globs, segments = self.globs, name.split(SEPARATOR)
        at = taken = 0
        back_to: int | None = None  # the last `**`: when stuck, it takes one segment more
        back_taken = 0
        while taken < len(segments):
            if at < len(globs) and globs[at] is None:
                back_to, back_taken = at, taken
                at += 1
            elif at < len(globs) and _segment_matches(globs[at] or (), segments[taken]):
                at += 1
                taken += 1
            elif back_to is not None:
                back_taken += 1
                at, taken = back_to + 1, back_taken
            else:
                return False
        return all(glob is None for glob in globs[at:])


def is_pattern(text: str) -> bool:
    """Does it stand for more than the one name that it is?"""
    return "*" in text


@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> Pattern:
    globs: list[tuple[str, ...] | None] = []
    for segment in text.split(SEPARATOR):
        if segment != ANY:
            globs.append(tuple(segment.split("*")))
        elif not globs or globs[-1] is not None:  # `**::**` is `**`
            globs.append(None)
    return Pattern(text, tuple(globs))


def matches(pattern: str, name: str) -> bool:
    return compile_pattern(pattern).matches(name)


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Does `wide` match whatever `narrow` does?"""
    known: dict[tuple[int, int], bool] = {}

    def from_here(w: int, n: int) -> bool:
        key = (w, n)
        if key not in known:
            known[key] = False  # while it is being found out
            known[key] = _covers(w, n)
        return known[key]

    def _covers(w: int, n: int) -> bool:
        if w == len(wide.globs):
            return n == len(narrow.globs)
        if wide.globs[w] is None:
            return from_here(w + 1, n) or (n < len(narrow.globs) and from_here(w, n + 1))
        if n == len(narrow.globs) or narrow.globs[n] is None:
            return False
        # What its stars stand for can be anything, so it is something that no literal has.
        sample = _NEVER_WRITTEN.join(narrow.globs[n] or ())
        return _segment_matches(wide.globs[w] or (), sample) and from_here(w + 1, n + 1)

    return from_here(0, 0)


_NEVER_WRITTEN: Final = "\0"


def _segment_matches(pieces: tuple[str, ...], segment: str) -> bool:
    """First and last piece at the ends, the others in order between: the leftmost place is always as good as any."""
    if len(pieces) == 1:
        return segment == pieces[0]
    first, last = pieces[0], pieces[-1]
    end = len(segment) - len(last)
    if end < len(first) or not segment.startswith(first) or not segment.endswith(last):
        return False
    at = len(first)
    for piece in pieces[1:-1]:
        found = segment.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
