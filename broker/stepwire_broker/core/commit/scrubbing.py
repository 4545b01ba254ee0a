"""The history of an erased task: its facts without what clients, handlers and operators wrote in them."""

from typing import Final

import msgspec

from stepwire_broker.core.answers.erasing import TEXT, code
from stepwire_broker.core.model import facts

# The members of facts that may hold text of clients, handlers or operators, or a checksum of an output. The reason of
# an erasure stays: it is the record of why the payloads are gone.
TEXTS: Final = frozenset({"message", "reason"})
CODES: Final = frozenset({"code"})
CHECKSUMS: Final = frozenset({"output_crc32"})


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
