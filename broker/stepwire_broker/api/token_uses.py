"""The last use of each token, to the hour, in a file next to the tokens file.

A request only sets a value in memory. The file is written when a token is used for the first time in an hour, at most
once in two seconds.
"""

import os
from pathlib import Path
from typing import Final

from stepwire_broker.timestamps import parse_rfc3339, rfc3339

HOUR_MS: Final = 3_600_000
DIGITS: Final = 12  # of a token's digest, as in `stepwire token list`


class TokenUses:
    def __init__(self, file: Path | None) -> None:
        self._file = file  # None: the uses are not recorded
        self._hours: dict[bytes, int] = {}  # by digest
        self._written: dict[bytes, int] = {}

    def note(self, digest: bytes, now_ms: int) -> None:
        self._hours[digest] = now_ms // HOUR_MS

    def write(self) -> None:
        """Write the file if a use is new. Raises OSError."""
        if self._file is None or self._hours == self._written:
            return
        self._written = dict(self._hours)  # also if the file cannot be written, which is then tried in the next hour
        uses = read_uses(self._file)
        uses |= {digest.hex()[:DIGITS]: hour * HOUR_MS for digest, hour in self._written.items()}
        unfinished = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{digits} {rfc3339(at_ms)}\n" for digits, at_ms in sorted(uses.items()))
        os.replace(unfinished, self._file)


def read_uses(file: Path) -> dict[str, int]:
    """The times of last use, by the first digits of the token's digest. Lines that cannot be read are left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    times = {words[0]: parse_rfc3339(words[1]) for line in lines if len(words := line.split()) == 2}
    return {digits: at_ms for digits, at_ms in times.items() if at_ms is not None}
