"""`stepwire serve` with a database writer that a test can stall, fail or kill just before or after a COMMIT.

    STEPWIRE_FAULTS=DIRECTORY python -m tests.system.serve_with_faults serve …

The command is the shipped one, with the writer's fault port in use. Files in the directory select the faults: `stall`
lasts while the file exists; `fsync` fails as a disk does that cannot sync; `kill_before` and `kill_after` hold the
number of groups to write first. Each commit is written to a ledger, `commits-…`, before any other process can know.
"""

import os
import signal
import sqlite3
import time
from functools import partial
from pathlib import Path

import stepwire_broker.engine
from stepwire.__main__ import main
from stepwire_broker.core.model.commit_group import CommitGroup

from .handlers import LEDGERS
from .ledger import Ledger


class FaultsOfFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._commits = Ledger(directory.parent / LEDGERS, f"commits-{os.getpid()}", is_synced=False)

    def before_commit(self, group: CommitGroup) -> None:
        while (self._directory / "stall").exists():
            time.sleep(0.01)
        if (self._directory / "fsync").exists():
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        self._die_if_due("kill_before")

    def after_commit(self, group: CommitGroup) -> None:
        self._commits.write("committed", lane=group.lane, seq=group.seq)
        self._die_if_due("kill_after")

    def _die_if_due(self, fault: str) -> None:
        path = self._directory / fault
        try:
            left = int(path.read_text())
        except (FileNotFoundError, ValueError):
            return
        if left <= 0:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        path.write_text(str(left - 1))


if __name__ == "__main__":
    faults = FaultsOfFiles(Path(os.environ.pop("STEPWIRE_FAULTS")))
    stepwire_broker.engine.Engine = partial(stepwire_broker.engine.Engine, store_faults=faults)  # type: ignore[misc,assignment]
    main()
