"""The last use of each token and of each key of the bus, to the hour.

The times are in a file next to the tokens file, or next to the directory of clients.

A request or a message only sets a value in memory. The file is written when something is used for the first time in an
hour, at most once in two seconds.
"""

import os
from pathlib import Path
from typing import Final

from stepwire_broker.timestamps import parse_rfc3339, rfc3339

HOUR_MS: Final = 3_600_000
DIGITS: Final = 12  # of a digest, as in `stepwire token list`


def uses_file(path: Path) -> Path:
    """The file with the last uses of what this file or directory holds."""
    return path.with_name(f"{path.name}.uses")


class LastUses:
    def __init__(self, file: Path | None) -> None:
        self._file = file  # None: the uses are not recorded
        self._hours: dict[str, int] = {}  # by a word that names what was used
        self._written: dict[str, int] = {}

    def note(self, used: str, now_ms: int) -> None:
        self._hours[used] = now_ms // HOUR_MS

    def write(self) -> None:
        """Write the file if a use is new. Raises OSError."""
        if self._file is None or self._hours == self._written:
            return
        self._written = dict(self._hours)  # also if the file cannot be written, which is then tried in the next hour
        uses = read_uses(self._file)
        uses |= {used: hour * HOUR_MS for used, hour in self._written.items()}
        unfinished = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{used} {rfc3339(at_ms)}\n" for used, at_ms in sorted(uses.items()))
        os.replace(unfinished, self._file)


def read_uses(file: Path) -> dict[str, int]:
    """The times of last use, by the word that names what was used. Lines that cannot be read are left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    times = {words[0]: parse_rfc3339(words[1]) for line in lines if len(words := line.split()) == 2}
    return {used: at_ms for used, at_ms in times.items() if at_ms is not None}
