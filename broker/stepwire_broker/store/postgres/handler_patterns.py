"""Patterns for handler names as regular expressions of PostgreSQL."""

import re
from typing import Final

from stepwire_protocol.patterns import SEPARATOR, compile_pattern

_NOT_LITERAL: Final = re.compile(r"([\\^$.|?*+()\[\]{}])")


def regular_expression(pattern: str) -> str:
    """Return the expression that matches the same names as the pattern: `*` is a part of one segment, `**` is any
    number of whole segments."""
    text = ""
    wants_separator = False  # before the next segment
    globs = compile_pattern(pattern).globs
    for at, glob in enumerate(globs):
        if glob is not None:
            pieces = (_NOT_LITERAL.sub(r"\\\1", piece) for piece in glob)
            text += (SEPARATOR if wants_separator else "") + _IN_SEGMENT.join(pieces)
            wants_separator = True
        elif wants_separator:
            text += f"({SEPARATOR}{_SEGMENT})*"
        elif at == len(globs) - 1:
            text += ".*"
        else:
            text += f"({_SEGMENT}{SEPARATOR})*"
    return f"^(?:{text})$"


# A segment is a text without `::`. A single colon may be part of it.
_SEGMENT: Final = "(?:(?!::).)*"
_IN_SEGMENT: Final = _SEGMENT
