"""Starts programs with fewer rights than the broker: no new privileges, resource limits, private files.

The kernel keeps `no_new_privs` for each thread, and a child inherits that of the thread which starts it. Therefore a
thread of its own gives up its privileges and starts the program. Code between fork and exec is not needed for this: it
is slow in a large process, and not safe in one with threads.
"""

import ctypes
import os
import resource
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from stepwire_broker.core.definitions.settings import ProgramLimits

FILE_CREATION_MASK: Final = 0o077  # only this user may read the files that a program creates
RESOURCES: Final[dict[str, int]] = {
    "memory_bytes": resource.RLIMIT_AS,
    "cpu_s": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "core_bytes": resource.RLIMIT_CORE,
    "file_bytes": resource.RLIMIT_FSIZE,
}
assert tuple(RESOURCES) == ProgramLimits.__struct_fields__

_PR_SET_NO_NEW_PRIVS: Final = 38

T = TypeVar("T")


def start(argv: list[str], **how: Any) -> "subprocess.Popen[bytes]":
    """Start a program that can gain no privileges, as by a set-user-id file. Raises OSError."""
    return _in_new_thread(lambda: _start_without_privileges(argv, how))


def limit(pid: int, limits: ProgramLimits) -> None:
    """Set the limits of a process that waits before its work. Limits can only be lowered. Raises OSError."""
    for name, number in RESOURCES.items():
        wanted = getattr(limits, name)
        if wanted is not None:
            _, hard = resource.prlimit(pid, number)
            lowered = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(pid, number, (lowered, lowered))


def narrowed(limits: ProgramLimits, own: ProgramLimits | None) -> ProgramLimits:
    """The limits of a command: its own, and those of all programs for the others."""
    if own is None:
        return limits
    given = {name: value for name in RESOURCES if (value := getattr(own, name)) is not None}
    return ProgramLimits(**{name: given.get(name, getattr(limits, name)) for name in RESOURCES})


def _start_without_privileges(argv: list[str], how: dict[str, Any]) -> "subprocess.Popen[bytes]":
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return subprocess.Popen(argv, umask=FILE_CREATION_MASK, **how)


def _in_new_thread(call: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="exec start")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


_libc: Final = ctypes.CDLL(None, use_errno=True)
