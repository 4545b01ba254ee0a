"""python -m tests.checker DATABASE --ledger DIRECTORY [--ledger FILE …] [--json FILE] [--page FILE]

Exit code 0: every promise was kept. 1: violations. 2: the evidence cannot be read.
"""

import argparse
import sqlite3
import sys
import time
from pathlib import Path

import msgspec

from .judge import LEASE_MS, as_json, judge, page
from .ledgers import UnreadableLedger


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__.partition("\n")[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--ledger", type=Path, action="append", default=[], help="a ledger, or a directory of them")
    parser.add_argument("--lease-ms", type=int, default=LEASE_MS)
    parser.add_argument("--still-running", action="store_true", help="not everything has had the time that it needs")
    parser.add_argument("--kept-ms", type=int, help="the database removes what ended so long ago")
    parser.add_argument("--json", type=Path, help="write the verdict there")
    parser.add_argument("--page", type=Path, help="write the page there instead of printing it")
    asked = parser.parse_args()
    missing = [path for path in (asked.database, *asked.ledger) if not path.exists()]
    if missing:
        print(f"not there: {', '.join(map(str, missing))}", file=sys.stderr)
        return 2
    began = time.monotonic()
    try:
        verdict = judge(
            asked.database,
            asked.ledger,
            lease_ms=asked.lease_ms,
            all_ended=not asked.still_running,
            kept_ms=asked.kept_ms,
        )
    except (UnreadableLedger, sqlite3.DatabaseError, msgspec.DecodeError) as error:
        print(f"the evidence cannot be read: {error}", file=sys.stderr)
        return 2
    text = page(verdict) + f"\n{verdict.figures['events']} events in {time.monotonic() - began:.2f} s\n"
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(verdict))))
    if asked.page is not None:
        asked.page.write_text(text)
    else:
        print(text, end="")
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
