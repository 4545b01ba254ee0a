"""The process's limit of open files, and the part of it that connections of the bus may use."""

import contextlib
import resource
from typing import Final

RESERVED: Final = 512  # for the database, its log, programs and their pipes


def raise_to_hard_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Return the soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse an unlimited number; the limit then stays as it is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_of_bus(configured: int, open_files: int | None = None) -> int:
    """Return how many connections the bus may keep open: at most `configured`.

    The bus and HTTP each get half of what the reserve leaves of the limit of open files, by default the soft limit of
    this process. A limit that is smaller than twice the reserve leaves a quarter of it to each of them.
    """
    if open_files is None:
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, max((open_files - RESERVED) // 2, open_files // 4)))


def files_for_bus(connections: int) -> int:
    """Return the limit of open files that leaves this number of connections to the bus."""
    return 2 * connections + RESERVED
