"""The secret of `security.key_file`: 32 random bytes, from which the broker derives one key for each purpose.

The first start makes the file. It is in no backup of the database: keyed hashes in a stolen copy of the database, or of
`security.erasures_file`, tell nothing without it.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from stepwire_broker import private_files
from stepwire_broker.core.definitions.settings import SecuritySettings
from stepwire_broker.errors import BrokerError
from stepwire_broker.file_owners import stranger

KEY_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4_096
ERASURES: Final = b"stepwire erasures"
FINGERPRINT: Final = b"stepwire fingerprint"


class SecurityKeyError(BrokerError):
    """The key file, or a file that needs it, cannot be used. The message names the file, the fault and the remedy."""


class SecurityKey:
    """The secret, as keys for single purposes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def for_purpose(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose, hashlib.sha256)

    @property
    def fingerprint(self) -> str:
        """Identifies the key, and does not disclose it."""
        return self.for_purpose(FINGERPRINT)[:8].hex()


def ensure(settings: SecuritySettings) -> SecurityKey:
    """Return the key, and make its file if no file needs an earlier key. Raises SecurityKeyError."""
    path = Path(settings.key_file)
    if not os.path.lexists(path):
        needed_by = Path(settings.erasures_file)
        if needed_by.exists():
            raise _missing(path, needed_by)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SecurityKeyError(f"security.key_file {path} cannot be created: {error.strerror}") from None
        # Another broker may make the file at the same time: the first one wins.
        private_files.make(path, secrets.token_urlsafe(KEY_BYTES) + "\n", SecurityKeyError)
    return read(path)


def existing(settings: SecuritySettings) -> SecurityKey:
    """Return the key, for a command that needs the one the broker used. Raises SecurityKeyError."""
    path = Path(settings.key_file)
    if not os.path.lexists(path):
        raise _missing(path, Path(settings.erasures_file))
    return read(path)


def _missing(path: Path, needed_by: Path) -> SecurityKeyError:
    return SecurityKeyError(
        f"security.key_file {path} is missing, and {needed_by} was written with it: put the key file back, from where "
        f"you keep the broker's configuration. Without it no restore can erase again; to accept that, remove "
        f"{needed_by}, start the broker, and erase the same tasks again after each restore"
    )


def read(path: Path) -> SecurityKey:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecurityKeyError(f"security.key_file {path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        owner = stranger(status)
        if not stat.S_ISREG(status.st_mode):
            raise SecurityKeyError(f"security.key_file {path} is not a regular file")
        if owner is not None:
            raise SecurityKeyError(f"security.key_file {path} belongs to the user {owner}: run this as that user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise SecurityKeyError(f"security.key_file {path} can be read by others: chmod 600 {path}")
        text = os.read(descriptor, _FILE_BYTES_MAX).strip()
    finally:
        os.close(descriptor)
    try:
        secret = base64.b64decode(text + b"=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise SecurityKeyError(
            f"security.key_file {path} holds no key: it must hold {KEY_BYTES} bytes in base64 with - and _, as the "
            "first start writes them. Put the right file back"
        )
    return SecurityKey(secret)
