"""One finding of `stepwire doctor`."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    state: Literal["ok", "note", "warning", "red"]
    about: str
    text: str
    todo: str = ""
