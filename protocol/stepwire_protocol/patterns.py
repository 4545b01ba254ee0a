"""Patterns for names of `::`-separated segments: handlers that a worker offers, and step paths that a rule matches.

`*` as a segment matches exactly one segment, `**` any number of segments, and `*` inside a segment any number of its
characters; everything else is literal. The matcher keeps only one position to return to. Its time is therefore at most
the length of the pattern times the length of the name, even for a hostile pattern.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

SEPARATOR: Final = "::"
ANY: Final = "**"


class Pattern(NamedTuple):
    """A compiled pattern."""

    text: str
    globs: tuple[tuple[str, ...] | None, ...]  # the literal pieces of a segment between its stars; None is `**`

    def matches(self, name: str) -> bool:
        globs, segments = self.globs, name.split(SEPARATOR)
        at = taken = 0
        back_to: int | None = None  # the last `**`: after a mismatch, it matches one more segment
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
    """True if the text can match more than one name."""
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


def has_literal_part(text: str) -> bool:
    """True for a handler class, and for a pattern with a character that is neither a star nor a separator."""
    return bool(text.strip("*:"))


def any_of(texts: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that is true for a name that one of these names or patterns matches."""
    texts = tuple(texts)
    exact = frozenset(text for text in texts if not is_pattern(text))
    globs = [compile_pattern(text) for text in texts if is_pattern(text)]

    def matches_one(name: str) -> bool:
        return name in exact or any(glob.matches(name) for glob in globs)

    return matches_one


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """True if `wide` matches every name that `narrow` matches."""
    known: dict[tuple[int, int], bool] = {}

    def from_here(w: int, n: int) -> bool:
        key = (w, n)
        if key not in known:
            known[key] = False  # while the answer is computed
            known[key] = _covers(w, n)
        return known[key]

    def _covers(w: int, n: int) -> bool:
        if w == len(wide.globs):
            return n == len(narrow.globs)
        if wide.globs[w] is None:
            return from_here(w + 1, n) or (n < len(narrow.globs) and from_here(w, n + 1))
        if n == len(narrow.globs) or narrow.globs[n] is None:
            return False
        # A star can match any text, so in the sample each star is a character that no literal contains.
        sample = _NEVER_WRITTEN.join(narrow.globs[n] or ())
        return _segment_matches(wide.globs[w] or (), sample) and from_here(w + 1, n + 1)

    return from_here(0, 0)


_NEVER_WRITTEN: Final = "\0"


def _segment_matches(pieces: tuple[str, ...], segment: str) -> bool:
    """Match the first and the last piece at the ends, and each other piece at the leftmost position between them."""
    if len(pieces) == 1:
        return segment == pieces[0]
    first, last = pieces[0], pieces[-1]
    end = len(segment) - len(last)
    if end < len(first) or not segment.startswith(first) or not segment.endswith(last):
        return False
    at = len(first)
    for piece in pieces[1:-1]:
        start = segment.find(piece, at, end)
        if start < 0:
            return False
        at = start + len(piece)
    return True


def split_name(name: str, namespace: str | None = None) -> tuple[str | None, str]:
    """`shop::eu::order` → `shop::eu` and `order`. With a namespace, the name is left as it is."""
    if namespace is None and "::" in name:
        namespace, _, name = name.rpartition("::")
    return namespace, name
