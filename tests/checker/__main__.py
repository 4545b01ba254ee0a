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
    parser.add_argument("--still-running", action="store_true", help="some tasks may not have ended yet")
    parser.add_argument("--kept-ms", type=int, help="milliseconds for which the database keeps an ended task")
    parser.add_argument("--json", type=Path, help="write the verdict to this JSON file")
    parser.add_argument("--page", type=Path, help="write the page to this file instead of printing it")
    options = parser.parse_args()
    missing = [path for path in (options.database, *options.ledger) if not path.exists()]
    if missing:
        print(f"no such file: {', '.join(map(str, missing))}", file=sys.stderr)
        return 2
    began = time.monotonic()
    try:
        verdict = judge(
            options.database,
            options.ledger,
            lease_ms=options.lease_ms,
            all_ended=not options.still_running,
            kept_ms=options.kept_ms,
        )
    except (UnreadableLedger, sqlite3.DatabaseError, msgspec.DecodeError) as error:
        print(f"the evidence cannot be read: {error}", file=sys.stderr)
        return 2
    text = page(verdict) + f"\n{verdict.figures['events']} events in {time.monotonic() - began:.2f} s\n"
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(verdict))))
    if options.page is not None:
        options.page.write_text(text)
    else:
        print(text, end="")
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
