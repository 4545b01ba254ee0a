"""The audit rows of a database, for commands that read it themselves."""

from collections.abc import Iterator, Sequence
from typing import Final

from .audit_chain import AuditChain, AuditHead, AuditRow, faults, faults_against
from .stored_state import StoredState

ROWS: Final = f"SELECT {', '.join(AuditRow._fields)} FROM audit ORDER BY lane, n"  # noqa: S608


def verify(state: StoredState, heads: Sequence[AuditHead] = ()) -> Iterator[str]:
    """Yield a sentence for each fault of the chains, and for each of `heads` that the database contradicts. All rows
    are read as of one moment."""
    with state.moment():
        ends = chains(state)
        yield from faults(ends, _rows(state))
        yield from faults_against(heads, ends, _rows_of(state, heads))


def chains(state: StoredState) -> list[AuditChain]:
    found = state.select("SELECT lane, n, hash, cut_n, cut_hash FROM audit_chains ORDER BY lane")
    return [AuditChain(*row) for row in found]


def rows(state: StoredState) -> Iterator[AuditRow]:
    """Yield every row, by lane and number."""
    with state.moment():
        yield from _rows(state)


def _rows(state: StoredState) -> Iterator[AuditRow]:
    return (AuditRow(*row) for row in state.each(ROWS))


def _rows_of(state: StoredState, heads: Sequence[AuditHead]) -> Iterator[AuditHead]:
    for head in heads:
        found = state.select(f"SELECT lane, n, hash FROM audit WHERE lane = {head.lane:d} AND n = {head.n:d}")  # noqa: S608
        yield from (AuditHead(*row) for row in found)
