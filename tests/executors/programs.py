"""Real programs, in shell, and what a test wants to know of them."""

import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stepwire_broker.exec_runs.records import Record, Records
from stepwire_broker.executors.exec.program import Program, ProgramEnded, ProgramStart
from stepwire_protocol import host

T = TypeVar("T")

MARK = "of-this-test"
SOON_S = 20.0


def program(records: Records, *argv: str, request: bytes = b"{}", bytes_max: int = 1 << 20, **how: Any) -> Program:
    """A program on record; a single word is a shell script."""
    order = ProgramStart(
        argv=argv if len(argv) > 1 else ("/bin/sh", "-c", *argv),
        cwd=how.get("cwd"),
        environ={"PATH": os.environ["PATH"], "STEPWIRE_RUN": MARK},
        request=request,
        stdout_bytes_max=bytes_max,
    )

    def register(pid: int) -> tuple[Record, Path]:
        record = records.record(pid, mark=MARK, handler_class="h", ids=(1, 2, 3), program=argv[0])
        return record, records.add(record)

    return Program(order, how.get("register", register))


async def run(records: Records, *argv: str, **how: Any) -> ProgramEnded:
    return await program(records, *argv, **how).run()


def lives(pid: int) -> bool:
    found = host.process(pid)
    return found is not None and found.state not in "ZX"


def wait_for(look: Callable[[], T | None], what: str) -> T:
    until_s = time.monotonic() + SOON_S
    while not (found := look()):
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        time.sleep(0.005)
    return found


def written(file: Path) -> Callable[[], str | None]:
    """What is in it, once that is whole lines."""

    def look() -> str | None:
        text = file.read_text() if file.exists() else ""
        return text if text.endswith("\n") else None

    return look


def pids(file: Path, many: int) -> Callable[[], list[int] | None]:
    def look() -> list[int] | None:
        found = [int(line) for line in (written(file)() or "").split()]
        return found if len(found) == many else None

    return look


def each_dead(numbers: Iterator[int] | list[int]) -> bool:
    return not any(lives(pid) for pid in numbers)


def elsewhere(do: Callable[[], None]) -> int:
    """In a process of its own, which ends with 0 when that returns."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid
