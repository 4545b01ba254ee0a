"""The search of a database file and of its log for erased words: a program of its own.

It is a process, because a process that closes a file of its own loses SQLite's locks on that file, and because the
search would take the interpreter from the broker's loop. It reads its orders as JSON from standard input, and writes
one JSON document: see `SearchOrder` and `Found`.
"""

import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from stepwire_broker.store.erasure import PAYLOAD, Replaced
from stepwire_broker.store.needles import WORD, WORD_BYTES_MAX

CHUNK_BYTES: Final = 4 * 1024 * 1024
ROWS_A_READ: Final = 200


class SearchOrder(Struct, frozen=True):
    path: str
    words: list[bytes]
    keys: list[bytes]
    limit_s: float


class Found(Struct, frozen=True):
    """`places`: the number of places with a word that no row holds now. `in_rows`: words that other rows hold too,
    which prove nothing. `is_complete`: False if the time was over first."""

    bytes: int
    places: int
    in_rows: int
    is_complete: bool


def search(order: SearchOrder) -> Found:
    until_s = time.monotonic() + order.limit_s
    words, keys = frozenset(order.words), order.keys
    counts: Counter[bytes] = Counter()
    read = 0
    is_complete = True
    for chunk in _chunks(Path(order.path)):
        counts.update(word for word in WORD.findall(chunk) if word in words)
        for key in keys:
            counts[key] += chunk.count(key)
        read += len(chunk)
        if time.monotonic() > until_s:
            is_complete = False
            break
    found = {word for word, count in counts.items() if count}
    in_rows = _in_rows(Path(order.path), found, until_s) if found else set()
    places = sum(count for word, count in counts.items() if word not in in_rows)
    return Found(read, places, len(in_rows), is_complete)


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of the file and of its log. Chunks overlap, so that no word is cut."""
    for file_path in (path, Path(f"{path}-wal")):
        try:
            with file_path.open("rb", buffering=0) as file:
                rest = b""
                while data := file.read(CHUNK_BYTES):
                    yield rest + data
                    rest = data[-WORD_BYTES_MAX:]
        except FileNotFoundError:
            continue


def _in_rows(path: Path, found: set[bytes], until_s: float) -> set[bytes]:
    """Return the words that payloads of stored rows hold: they belong to tasks that are not erased."""
    in_rows: set[bytes] = set()
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        for table, columns in PAYLOAD.items():
            for column, how in columns.items():
                if how is Replaced.SIZE:
                    continue
                rows = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {column} IS NOT NULL")  # noqa: S608
                while values := rows.fetchmany(ROWS_A_READ):
                    joined = b"\0".join(value for (value,) in values)
                    in_rows.update(word for word in found - in_rows if word in joined)
                    if in_rows == found or time.monotonic() > until_s:
                        return in_rows
    return in_rows


def main() -> None:
    os.nice(5)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=SearchOrder)
    sys.stdout.buffer.write(msgspec.json.encode(search(order)))


if __name__ == "__main__":
    main()
