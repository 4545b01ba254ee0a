"""Who belongs to a program that was started, and how all of them are ended.

A program is started in a session of its own, which is also its process group; whatever it starts is in there too,
unless it leaves on purpose. Its number can be trusted while its first process is there, dead or alive, as we know it by
its start time. When that one is gone, the number may be somebody else's: then only who carries the run's mark in its
environment is of it.
"""

import os
import signal
from collections.abc import Iterable
from typing import Final, NamedTuple

from stepwire_protocol import host

from stepwire_broker.process_state import is_alive

MARK: Final = "STEPWIRE_RUN"  # in the environment of the program and of what it starts


class ProcessGroup(NamedTuple):
    """All that was started with one program."""

    pid: int  # of the first one: the group's number, and the session's
    started: int  # when that one began, in clock ticks since boot
    mark: str


class Member(NamedTuple):
    pid: int
    started: int
    group: ProcessGroup


class NotOurs(Exception):
    """A process that must not be signalled by this user."""

    def __init__(self, member: Member) -> None:
        super().__init__(f"process {member.pid}")
        self.member = member


def members(groups: Iterable[ProcessGroup], *, is_kept: bool = False) -> list[Member]:
    """Who of them is alive: one look at all processes, whatever the number of groups. `is_kept`: there has always been
    somebody in them, so no number has been given away meanwhile."""
    by_number = {group.pid: group for group in groups}
    if not by_number:
        return []
    is_certain: dict[int, bool] = {}
    found = []
    for pid in _pids():
        seen = host.process(pid)
        if seen is None:
            continue
        group = by_number.get(seen.group) or by_number.get(seen.session)
        if group is None or not is_alive(pid, seen):
            continue
        if group.pid not in is_certain:
            first = host.process(group.pid)
            is_certain[group.pid] = is_kept if first is None else first.started == group.started
        if is_certain[group.pid] or _is_marked(pid, group.mark):
            found.append(Member(pid, seen.started, group))
    return found


def tell(member: Member, number: signal.Signals) -> None:
    """Send a signal, to this process and to no later one of the same number. Raises NotOurs."""
    try:
        handle = os.pidfd_open(member.pid)
    except OSError:
        return  # gone
    try:
        seen = host.process(member.pid)
        if seen is not None and seen.started == member.started:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise NotOurs(member) from None
    finally:
        os.close(handle)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's: nothing that we may touch
