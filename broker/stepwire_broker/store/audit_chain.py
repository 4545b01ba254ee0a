"""The chain of audit rows: each row's hash covers the row and the hash of the row before it.

A changed, removed, inserted or renumbered row breaks the chain at that row. Only a writer that recomputes every later
hash leaves no trace in the database, and a head that was stored elsewhere shows such a change.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from stepwire_broker.core.model.commit_group import AuditNew

START: Final = "0" * 64  # the hash before the first row of a chain


class AuditHead(NamedTuple):
    """The last row of a lane's chain."""

    lane: int
    n: int
    hash: str


class AuditChain(NamedTuple):
    """A lane's chain: its last row, and the last row that retention removed. `cut_n` is 0 if no row was removed."""

    lane: int
    n: int
    hash: str
    cut_n: int
    cut_hash: str

    @property
    def head(self) -> AuditHead:
        return AuditHead(self.lane, self.n, self.hash)


class AuditRow(NamedTuple):
    """A row of `audit`."""

    lane: int
    n: int
    at_ms: int
    principal: str
    via: str
    action: str
    target: str
    reason: str
    detail: str
    outcome: str
    request_id: str | None
    hash: str


def canonical(row: AuditRow) -> bytes:
    """Return the text that is hashed: the row's columns except `hash`, as JSON without spaces, sorted by name."""
    columns = row._asdict()
    del columns["hash"]
    return json.dumps(columns, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def hash_of(previous: str, row: AuditRow) -> str:
    return hashlib.sha256(bytes.fromhex(previous) + canonical(row)).hexdigest()


def linked(end: AuditHead, new: Sequence[AuditNew]) -> list[AuditRow]:
    """Number these rows and hash them, after the row at the end of the chain."""
    rows = []
    for each in new:
        row = AuditRow(
            end.lane,
            end.n + 1,
            each.at_ms,
            storable(each.principal),
            storable(each.via),
            storable(each.action),
            storable(each.target),
            storable(each.reason),
            storable(each.detail),
            storable(each.outcome),
            each.request_id,
            "",
        )
        row = row._replace(hash=hash_of(end.hash, row))
        rows.append(row)
        end = AuditHead(row.lane, row.n, row.hash)
    return rows


def command_row(action: str, target: str, detail: dict[str, object], wall_ms: int) -> AuditNew:
    """A row about a command that writes to the database without a broker. Its principal is the user of the process."""
    text = msgspec.json.encode(detail).decode()
    return AuditNew(wall_ms, f"uid-{os.geteuid()}", "command", action, target, "", text, "done", None)


def storable(text: str) -> str:
    """Replace what a database cannot store as text, so that no reason or name keeps a row out of the chain."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def faults(chains: Sequence[AuditChain], rows: Iterable[AuditRow]) -> Iterator[str]:
    """Yield a sentence for each fault of the chains. `rows` are all rows, by lane and number.

    After a fault the check goes on from the faulty row as it is stored, so each fault is reported once.
    """
    ends: dict[int, AuditHead] = {}
    by_lane = {chain.lane: chain for chain in chains}
    for row in rows:
        chain = by_lane.get(row.lane)
        if chain is None and row.lane not in ends:
            yield f"audit row {row.n} of lane {row.lane}: the lane's end in audit_chains is missing"
        cut = AuditHead(row.lane, 0, START) if chain is None else AuditHead(row.lane, chain.cut_n, chain.cut_hash)
        end = ends.get(row.lane, cut)
        yield from _faults_of(row, end, is_first=row.lane not in ends, is_cut=cut.n > 0)
        ends[row.lane] = AuditHead(row.lane, row.n, row.hash)
    for chain in chains:
        yield from _faults_of_end(chain, ends.get(chain.lane, AuditHead(chain.lane, chain.cut_n, chain.cut_hash)))


def _faults_of(row: AuditRow, before: AuditHead, *, is_first: bool, is_cut: bool) -> Iterator[str]:
    where = f"audit row {row.n} of lane {row.lane}"
    if row.n != before.n + 1:
        missing = f"row {before.n + 1}" if row.n == before.n + 2 else f"rows {before.n + 1} to {row.n - 1}"
        yield (
            f"audit {missing} of lane {row.lane}: missing before row {row.n}"
            if row.n > before.n
            else f"{where}: its number is not above {before.n}, the number before it"
        )
        return
    if row.hash != hash_of(before.hash, row):
        because = (
            "the row, or the stored hash of the rows that retention removed, was changed"
            if is_first and is_cut
            else "the row was changed, or the row before it was changed or replaced"
        )
        yield f"{where}: its hash does not follow from the row before it: {because}"


def _faults_of_end(chain: AuditChain, last: AuditHead) -> Iterator[str]:
    if last.n < chain.n:
        missing = f"row {chain.n}" if last.n + 1 == chain.n else f"rows {last.n + 1} to {chain.n}"
        yield f"audit {missing} of lane {chain.lane}: missing at the end of the chain"
    elif last.n > chain.n:
        yield f"audit row {last.n} of lane {chain.lane}: it is beyond the end of the chain, row {chain.n}"
    elif last.hash != chain.hash:
        yield f"audit row {last.n} of lane {chain.lane}: its hash differs from the end of the chain in audit_chains"


def faults_against(
    heads: Sequence[AuditHead], chains: Sequence[AuditChain], found: Iterable[AuditHead]
) -> Iterator[str]:
    """Yield a sentence for each head, stored elsewhere, that the database contradicts. `found`: the rows of the heads
    that the database has."""
    by_lane = {chain.lane: chain for chain in chains}
    hashes = {(row.lane, row.n): row.hash for row in found}
    for head in heads:
        chain = by_lane.get(head.lane)
        where = f"audit row {head.n} of lane {head.lane}"
        if head.n == 0:
            continue
        if chain is None or chain.n < head.n:
            at = "the lane has no rows" if chain is None else f"the chain ends at row {chain.n}"
            yield f"{where}: in the stored head, but {at}: rows were removed, or this is an older copy of the database"
            continue
        if head.n < chain.cut_n:
            continue  # retention has removed the row, and its hash with it
        stored = chain.cut_hash if head.n == chain.cut_n else hashes.get((head.lane, head.n))
        if stored != head.hash:
            yield f"{where}: its hash is not that of the stored head: this row or an earlier one was changed"
