"""The owner and the mode of files that the broker and its commands trust: configuration, tokens, state.

Another user of the host may place a file, or a symbolic link, where a command will look for one.
"""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

ROOT: Final = 0
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def stranger(status: os.stat_result) -> str | None:
    """The name of the owner, unless that is root or the user of this process."""
    if status.st_uid in (os.geteuid(), ROOT):
        return None
    try:
        return pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return f"with the id {status.st_uid}"


def strange_owner(path: Path, descriptor: int) -> str | None:
    """The same for an open file, and for the symbolic link that led to the file, if `path` is one."""
    return stranger(os.fstat(descriptor)) or stranger(path.lstat())


def is_inside(path: Path, directory: Path) -> bool:
    """Whether the file that this path leads to is in the directory. Symbolic links are followed."""
    return path.resolve().is_relative_to(directory.resolve())
