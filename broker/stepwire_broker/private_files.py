"""Files that only the user of this process may read: tokens, keys, hashes. Each is written completely or not at all.

The caller names the error to raise, so that each room reports a file in its own words.
"""

import os
from pathlib import Path

from stepwire_broker.errors import BrokerError


def make(path: Path, text: str, error: type[BrokerError]) -> bool:
    """Create a file with mode 0600. Returns False if a file of this name exists, which then stays as it is."""
    unfinished = _unfinished(path, text, error)
    try:
        os.link(unfinished, path)
        _sync_names(path.parent)
    except FileExistsError:
        return False
    except OSError as fault:
        raise error(f"{path} cannot be written: {fault.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def replace(path: Path, text: str, error: type[BrokerError]) -> None:
    """Replace a file by one with mode 0600, or create it."""
    unfinished = _unfinished(path, text, error)
    try:
        os.replace(unfinished, path)
        _sync_names(path.parent)
    except OSError as fault:
        unfinished.unlink(missing_ok=True)
        raise error(f"{path} cannot be written: {fault.strerror}") from None


def move(path: Path, over: Path, error: type[BrokerError]) -> None:
    """Rename a file over another one of the same directory."""
    try:
        os.replace(path, over)
        _sync_names(over.parent)
    except OSError as fault:
        raise error(f"{over} cannot be replaced: {fault.strerror}") from None


def _unfinished(path: Path, text: str, error: type[BrokerError]) -> Path:
    # The name begins with a dot, so that a reader of the directory ignores the file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        unfinished.unlink(missing_ok=True)
        raise error(f"{path} cannot be written: {fault.strerror}") from None
    return unfinished


def _sync_names(directory: Path) -> None:
    """Make a new name survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
