"""Reads and replaces the files that hold keys or grants, and checks their owner and mode."""

import os
import stat
from pathlib import Path
from typing import Final

from stepwire_broker import private_files

from .key_text import KeyFileError

FILE_BYTES_MAX: Final = 64 * 1024


def read_secret(path: Path) -> str:
    """The text of a file with a secret key. Raises KeyFileError if another user may read or replace it."""
    return _read(path, 0o077, "chmod 600")


def read_public(path: Path) -> str:
    """The text of a file without secrets. Raises KeyFileError if another user may change it."""
    return _read(path, 0o022, "chmod go-w")


def make_directory(path: Path) -> None:
    """Make a directory, and missing parents, for this user only. Raises KeyFileError if others may write to it."""
    try:
        for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
            missing.mkdir(mode=0o700)
        check_directory(path)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be created: {error.strerror}") from None


def check_directory(path: Path) -> None:
    """Raise KeyFileError if another user could add files to this directory."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise KeyFileError(f"{path} is not a directory")
    _check_owner(path, status)
    if status.st_mode & 0o022:
        raise KeyFileError(f"{path} can be written by other users: chmod 700 {path}")


def write_new(path: Path, text: str) -> None:
    """Create a file with mode 0600. Raises KeyFileError if it exists."""
    if not private_files.make(path, text, KeyFileError):
        raise KeyFileError(f"{path} exists already: name another file, or remove it")


def move(path: Path, over: Path) -> None:
    """Rename a file over another, completely or not at all."""
    private_files.move(path, over, KeyFileError)


def replace(path: Path, text: str) -> None:
    """Replace a file, completely or not at all."""
    private_files.replace(path, text, KeyFileError)


def _read(path: Path, forbidden: int, remedy: str) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is not a file")
            _check_owner(path, status)
            if status.st_mode & forbidden:
                text = "can be read or written by" if forbidden & 0o044 else "can be written by"
                raise KeyFileError(f"{path} {text} other users: {remedy} {path}")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise KeyFileError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not UTF-8 text") from None


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(
            f"{path} belongs to user {status.st_uid}: it must belong to user {os.geteuid()}, who runs this, or to root"
        )
