"""Real programs, as shell scripts, and checks on their processes."""

import os
import secrets
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stepwire_broker.core.definitions.settings import ProgramLimits
from stepwire_broker.exec_runs.records import Record, Records
from stepwire_broker.executors.exec.program import Program, ProgramEnded, ProgramStart
from stepwire_broker.executors.exec.sweeping import Sweeper
from stepwire_protocol import host

T = TypeVar("T")

MARK = "of-this-test"
SOON_S = 20.0


def program(records: Records, *argv: str, request: bytes = b"{}", bytes_max: int = 1 << 20, **how: Any) -> Program:
    """A recorded program; a single argument is a shell script."""
    mark = secrets.token_hex(8)
    order = ProgramStart(
        argv=argv if len(argv) > 1 else ("/bin/sh", "-c", *argv),
        cwd=how.get("cwd"),
        environ={"PATH": os.environ["PATH"], "STEPWIRE_RUN": mark},
        request=request,
        stdout_bytes_max=bytes_max,
        limits=how.get("limits", ProgramLimits()),
    )

    def register(pid: int) -> tuple[Record, Path]:
        record = records.record(pid, mark=mark, handler_class="h", ids=(1, 2, 3), program=argv[0])
        return record, records.add(record)

    return Program(order, how.get("register", register), Sweeper().sweep)


async def run(records: Records, *argv: str, **how: Any) -> ProgramEnded:
    return await program(records, *argv, **how).run()


def lives(pid: int) -> bool:
    process = host.process(pid)
    return process is not None and process.state not in "ZX"


def wait_for(check: Callable[[], T | None], what: str) -> T:
    until_s = time.monotonic() + SOON_S
    while not (result := check()):
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        time.sleep(0.005)
    return result


def written(file: Path) -> Callable[[], str | None]:
    """The content of the file, once it ends with a whole line."""

    def check() -> str | None:
        text = file.read_text() if file.exists() else ""
        return text if text.endswith("\n") else None

    return check


def pids(file: Path, many: int) -> Callable[[], list[int] | None]:
    def check() -> list[int] | None:
        numbers = [int(line) for line in (written(file)() or "").split()]
        return numbers if len(numbers) == many else None

    return check


def each_dead(numbers: Iterator[int] | list[int]) -> bool:
    return not any(lives(pid) for pid in numbers)


def elsewhere(do: Callable[[], None]) -> int:
    """Call `do` in a forked process, which exits with 0 when the call returns."""
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
