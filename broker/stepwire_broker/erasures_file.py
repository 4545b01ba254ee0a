"""`security.erasures_file`: keyed hashes of the erased tasks, outside the database.

A restore of an older backup would bring erased payloads back. It finds the tasks to erase again in this file. A line
holds the time of the erasure and a hash of the task's `uid`, which is the same in every copy of the database. Without
the key, a line tells nothing.

    # stepwire erasures, key 9f2c44d01a7be310
    1789990000000 0f6c…

Lines are appended and synced before the erasure is answered. A line that a crash cut off was not answered, and is
skipped.
"""

import fcntl
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stepwire_broker import private_files
from stepwire_broker.security_key import ERASURES, SecurityKey, SecurityKeyError

_HEAD: Final = "# stepwire erasures, key "
_LINE: Final = re.compile(r"(\d{1,16}) ([0-9a-f]{64})")
_CUT_OFF: Final = re.compile(r"\d{0,16}|\d{1,16} [0-9a-f]{0,63}")


class ErasuresFile:
    """The file of one deployment, read once and then extended. Not for several threads at a time."""

    def __init__(self, path: Path, key: SecurityKey) -> None:
        self.path = path
        self._key = key.for_purpose(ERASURES)
        self._fingerprint = key.fingerprint
        self._known = self._read()

    def __len__(self) -> int:
        return len(self._known)

    def erased_ms(self, uid: str) -> int | None:
        """Return when the task with this `uid` was erased; None if it was not."""
        return self._known.get(self._hash(uid))

    def add(self, erased: Iterable[tuple[str, int]]) -> int:
        """Append the tasks, as uid and time, that the file does not have, and sync. Returns their number. Raises
        SecurityKeyError."""
        new = {digest: at_ms for uid, at_ms in erased if (digest := self._hash(uid)) not in self._known}
        if not new:
            return 0
        if not self.path.exists():
            private_files.make(self.path, f"{_HEAD}{self._fingerprint}\n", SecurityKeyError)
        text = "".join(f"{at_ms} {digest}\n" for digest, at_ms in new.items())
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # brokers may share the file
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    text = f"\n{text}"
                _write_all(descriptor, text.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SecurityKeyError(f"security.erasures_file {self.path} cannot be written: {error.strerror}") from None
        self._known |= new
        return len(new)

    def _hash(self, uid: str) -> str:
        return hmac.digest(self._key, uid.encode(), hashlib.sha256).hex()

    def _read(self) -> dict[str, int]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SecurityKeyError(f"security.erasures_file {self.path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "r", encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
                raise SecurityKeyError(
                    f"security.erasures_file {self.path} can be written by other users: give it to the broker's user, "
                    f"and chmod 600 {self.path}"
                )
            lines = file.read().split("\n")
        if lines[0].removeprefix(_HEAD) != self._fingerprint:
            raise SecurityKeyError(
                f"security.erasures_file {self.path} was written with another key than the one of security.key_file: "
                "put the key file back that belongs to it"
            )
        known: dict[str, int] = {}
        for number, line in enumerate(lines[1:], 2):
            if (match := _LINE.fullmatch(line)) is not None:
                known.setdefault(match[2], int(match[1]))
            elif _CUT_OFF.fullmatch(line) is None:
                raise SecurityKeyError(f"security.erasures_file {self.path}, line {number}: not a line of this file")
        return known


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
