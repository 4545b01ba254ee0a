"""Ends programs that an earlier broker process left running, before their steps can be dispatched again."""

import os
import signal
import time
from pathlib import Path
from typing import Final

import structlog

from .process_groups import Member, NotOurs, ProcessGroup, members, send_signal, strays
from .records import UNREADABLE, Record, Records, RunsInUse, RunsRefused

GRACE_S: Final = 0.5  # between SIGTERM and SIGKILL: results of these programs can no longer be delivered
PATIENCE_S: Final = 10.0
CHECK_EVERY_S: Final = 0.01

log = structlog.get_logger("stepwire.exec")


def end_earlier_runs(directory: str, *, is_used: bool) -> None:
    """End all recorded programs, and wait until they have certainly ended. Raises RunsRefused if one cannot be ended.

    Without `is_used`, no program is configured now: the directory is not made, and another broker may use it.
    """
    if not is_used and not os.path.isdir(directory):
        return
    try:
        records = Records(directory)
    except RunsInUse:
        if is_used:
            raise
        return
    try:
        readable, unreadable = records.all()
        for path, why in unreadable:
            log.warning("run_record_unreadable", file=str(path), error=why, kept_as=_put_aside(path))
        _end([(path, record) for path, record in readable if _is_here(records, record)])
        for path, _ in readable:
            path.unlink(missing_ok=True)
    finally:
        records.close()


def _is_here(records: Records, record: Record) -> bool:
    if records.is_visible(record):
        return True
    if records.is_of_this_boot(record):
        # A container that ended has no processes. The processes of a running container cannot be seen from here.
        log.warning("run_of_another_namespace", pid=record.pid, step_id=record.step_id, program=record.program)
    return False


def _end(recorded: list[tuple[Path, Record]]) -> None:
    by_mark = {record.mark: (path, record) for path, record in recorded}
    groups = [record.group for _, record in recorded]
    begun_s = time.monotonic()
    signalled: set[Member] = set()
    while alive := _alive(groups):
        waited_s = time.monotonic() - begun_s
        if waited_s > PATIENCE_S:
            raise _cannot_end(alive[0], by_mark, "SIGKILL did not end it")
        for member in alive:
            number = signal.SIGKILL if waited_s >= GRACE_S else signal.SIGTERM
            if number is signal.SIGTERM and member in signalled:
                continue
            if member not in signalled:
                record = by_mark[member.group.mark][1]
                log.warning("earlier_run_ended", pid=member.pid, step_id=record.step_id, program=record.program)
            signalled.add(member)
            try:
                send_signal(member, number)
            except NotOurs:
                raise _cannot_end(member, by_mark, "it now belongs to another user") from None
        time.sleep(CHECK_EVERY_S)


def _alive(groups: list[ProcessGroup]) -> list[Member]:
    """The processes of these runs, also those that have left the session of their program."""
    by_pid = {member.pid: member for member in (*strays(groups), *members(groups))}
    return list(by_pid.values())


def _cannot_end(member: Member, by_mark: dict[str, tuple[Path, Record]], why: str) -> RunsRefused:
    path, record = by_mark[member.group.mark]
    return RunsRefused(
        f"process {member.pid} of an earlier run ({record.program}, step {record.step_id}) cannot be ended: {why}. "
        f"The step must not run again while the process lives: end the process, or remove {path} to ignore it"
    )


def _put_aside(path: Path) -> str | None:
    aside = path.with_suffix(UNREADABLE)
    try:
        path.rename(aside)
    except OSError:
        return None
    return str(aside)
