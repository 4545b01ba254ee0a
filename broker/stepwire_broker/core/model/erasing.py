"""Erasure: what replaces the payloads of a task that an operator has erased.

Rows, states and times stay, and the history replays. Contexts, outputs and errors become `{"erased": at}`. The labels
become the same object, with their names: a client cannot store a number as a label's value, so the labels of a task
tell whether it was erased. Texts inside a fact become `erased`.
"""

from typing import Final

import msgspec

from stepwire_broker.core.answers.reason_codes import SENTENCES

from . import facts

TEXT: Final = "erased"
KNOWN_CODES: Final = frozenset({*SENTENCES, "failed", TEXT})

# The members of facts that may hold text of clients, handlers or operators, or a checksum of an output. The reason of
# an erasure stays: it is the record of why the payloads are gone.
TEXTS: Final = frozenset({"message", "reason"})
CODES: Final = frozenset({"code"})
CHECKSUMS: Final = frozenset({"output_crc32"})


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


def scrubbed(history_row: bytes) -> bytes:
    """Return the facts of a history row without what clients, handlers and operators wrote in them."""
    return facts.encode([_scrubbed(fact) for fact in facts.decode(history_row)])


def _scrubbed(fact: facts.Fact) -> facts.Fact:
    if isinstance(fact, facts.Erased):
        return fact
    changes: dict[str, object] = {}
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if name in TEXTS and value:
            changes[name] = TEXT
        elif name in CODES:
            changes[name] = code(value)
        elif name in CHECKSUMS:
            changes[name] = 0
    return msgspec.structs.replace(fact, **changes) if changes else fact
