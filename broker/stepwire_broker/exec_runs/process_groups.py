"""The processes that belong to a started program, and signals to them.

A program is started in its own session, which is also its process group. The processes that it starts are in the same
group, unless they leave on purpose. The group's number is reliable while the first process exists, dead or alive,
because its start time is known. Later the number may belong to other processes: then a process is a member only if its
environment contains the run's mark.
"""

import os
import signal
from collections.abc import Iterable
from typing import Final, NamedTuple

from stepwire_protocol import host

from stepwire_broker.errors import BrokerError
from stepwire_broker.process_state import is_alive

MARK: Final = "STEPWIRE_RUN"  # in the environment of the program and of the processes that it starts
_VARIABLE: Final = f"{MARK}=".encode()


class ProcessGroup(NamedTuple):
    """A program and the processes that it started."""

    pid: int  # of the first process: the number of the group and of the session
    started: int  # start of the first process, in clock ticks since boot
    mark: str


class Member(NamedTuple):
    pid: int
    started: int
    group: ProcessGroup


class NotOurs(BrokerError):
    """A process that this user may not signal."""

    def __init__(self, member: Member) -> None:
        super().__init__(f"process {member.pid}")
        self.member = member


def members(groups: Iterable[ProcessGroup], *, is_kept: bool = False) -> list[Member]:
    """Return the live processes of these groups, in one pass over all processes.

    `is_kept`: the groups were never empty, so their numbers cannot have been reused.
    """
    by_number = {group.pid: group for group in groups}
    if not by_number:
        return []
    is_certain: dict[int, bool] = {}
    alive = []
    for pid in _pids():
        process = host.process(pid)
        if process is None:
            continue
        group = by_number.get(process.group) or by_number.get(process.session)
        if group is None or not is_alive(pid, process):
            continue
        if group.pid not in is_certain:
            first = host.process(group.pid)
            is_certain[group.pid] = is_kept if first is None else first.started == group.started
        if is_certain[group.pid] or _is_marked(pid, group.mark):
            alive.append(Member(pid, process.started, group))
    return alive


def strays(groups: Iterable[ProcessGroup]) -> list[Member]:
    """Return the live processes with the mark of one of these runs, also those that have left its session. One pass
    over all processes. A process that has removed the mark from its environment is not found."""
    by_mark = {group.mark.encode(): group for group in groups}
    if not by_mark:
        return []
    first = min(group.started for group in by_mark.values())
    alive = []
    for pid in _pids():
        if not _is_of_this_user(pid):
            continue
        process = host.process(pid)
        if process is None or process.started < first or not is_alive(pid, process):
            continue
        group = by_mark.get(_mark_of(pid))
        if group is not None:
            alive.append(Member(pid, process.started, group))
    return alive


def send_signal(member: Member, number: signal.Signals) -> None:
    """Send a signal to this process, and to no later one with the same pid. Raises NotOurs."""
    try:
        handle = os.pidfd_open(member.pid)
    except OSError:
        return  # gone
    try:
        process = host.process(member.pid)
        if process is not None and process.started == member.started:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise NotOurs(member) from None
    finally:
        os.close(handle)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_of_this_user(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False  # gone


def _is_marked(pid: int, mark: str) -> bool:
    return _mark_of(pid) == mark.encode()


def _mark_of(pid: int) -> bytes:
    """The mark in the environment of the process; empty if it has none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return b""  # gone, or another user's process
    return next((each[len(_VARIABLE) :] for each in variables if each.startswith(_VARIABLE)), b"")
