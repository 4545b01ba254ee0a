"""Erasure: what replaces the payloads of a task that an operator has erased.

Rows, states and times stay, and the history replays. Contexts, outputs and errors become `{"erased": at}`. The labels
become the same object, with their names: a client cannot store a number as a label's value, so the labels of a task
tell whether it was erased. Texts inside a fact become `erased`: see core/commit/scrubbing.py.
"""

from typing import Final

import msgspec

from .reason_codes import SENTENCES

TEXT: Final = "erased"
KNOWN_CODES: Final = frozenset({*SENTENCES, "failed", TEXT})


class _Marker(msgspec.Struct, frozen=True):
    erased: int


_read_marker: Final = msgspec.json.Decoder(_Marker, strict=True).decode


def marker(at_ms: int) -> bytes:
    """Return the JSON that replaces a payload."""
    return b'{"erased":%d}' % at_ms


def erased_ms(labels: bytes | str | None) -> int | None:
    """Return when the task with these labels was erased; None if it was not."""
    if labels is None or len(labels) > 64:
        return None
    try:
        return _read_marker(labels).erased
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def code(code: str) -> str:
    """Return a reason code of the broker unchanged. A code that a handler chose may hold anything."""
    return code if code in KNOWN_CODES else TEXT
