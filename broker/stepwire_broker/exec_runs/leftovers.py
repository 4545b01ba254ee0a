"""What an earlier broker process has left running is ended, before anything of it may be handed out again."""

import os
import signal
import time
from pathlib import Path
from typing import Final

import structlog

from .process_groups import Member, NotOurs, members, tell
from .records import UNREADABLE, Record, Records, RunsInUse, RunsRefused

GRACE_S: Final = 0.5  # nobody waits for what they still do: it cannot be told any more
PATIENCE_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.01

log = structlog.get_logger("stepwire.exec")


def end_earlier_runs(directory: str, *, is_used: bool) -> None:
    """Returns when all of them are certainly gone. Raises RunsRefused when that cannot be had.

    Also where programs are not run any more: `is_used` only says whether the directory is made, and whether it is an
    error that another broker has it.
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
        found, unreadable = records.all()
        for path, why in unreadable:
            log.warning("run_record_unreadable", file=str(path), error=why, kept_as=_put_aside(path))
        _end([(path, record) for path, record in found if _is_here(records, record)])
        for path, _ in found:
            path.unlink(missing_ok=True)
    finally:
        records.close()


def _is_here(records: Records, record: Record) -> bool:
    if records.is_visible(record):
        return True
    if records.is_of_this_boot(record):
        # A container that is no more took its processes with it. Of one that lives on we cannot see any.
        log.warning("run_of_another_namespace", pid=record.pid, step_id=record.step_id, program=record.program)
    return False


def _end(found: list[tuple[Path, Record]]) -> None:
    of_mark = {record.mark: (path, record) for path, record in found}
    groups = [record.group for _, record in found]
    begun_s = time.monotonic()
    told: set[Member] = set()
    while left := members(groups):
        waited_s = time.monotonic() - begun_s
        if waited_s > PATIENCE_S:
            raise _stays(left[0], of_mark, "it does not end, though it was killed")
        for member in left:
            number = signal.SIGKILL if waited_s >= GRACE_S else signal.SIGTERM
            if number is signal.SIGTERM and member in told:
                continue
            if member not in told:
                record = of_mark[member.group.mark][1]
                log.warning("earlier_run_ended", pid=member.pid, step_id=record.step_id, program=record.program)
            told.add(member)
            try:
                tell(member, number)
            except NotOurs:
                raise _stays(member, of_mark, "it is another user's now") from None
        time.sleep(LOOK_AGAIN_S)


def _stays(member: Member, of_mark: dict[str, tuple[Path, Record]], why: str) -> RunsRefused:
    path, record = of_mark[member.group.mark]
    return RunsRefused(
        f"process {member.pid} of an earlier run ({record.program}, step {record.step_id}) cannot be ended: {why}. "
        f"Its step must not run again while it lives: end it, or remove {path} if that is no concern"
    )


def _put_aside(path: Path) -> str | None:
    aside = path.with_suffix(UNREADABLE)
    try:
        path.rename(aside)
    except OSError:
        return None
    return str(aside)
