"""Ends a server and removes its directory when the tests that made it are gone, also after kill -9.

Usage: keeper.py DIRECTORY, with a pipe from the tests as standard input. The end of the pipe is the signal. The program
imports only the standard library, and begins within milliseconds.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0


def processes(directory: Path) -> list[tuple[int, str]]:
    """The servers and poolers of this directory. A number that another program has by now is left alone."""
    found = []
    for file in directory.glob("**/*.pid"):
        try:
            pid = int(file.read_text().split("\n", 1)[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if os.fsencode(directory) in command:
            found.append((pid, file.name))
    return found


def end(directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for pid, name in processes(directory):
        # SIGQUIT is PostgreSQL's immediate stop: it ends the server's other processes and frees its shared memory.
        os.kill(pid, signal.SIGQUIT if name == "postmaster.pid" else signal.SIGKILL)
    while (left := processes(directory)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)


def remove(directory: Path) -> None:
    for line in Path("/proc/mounts").read_text().splitlines():
        point = line.split(" ")[1]
        if Path(point).is_relative_to(directory):
            subprocess.run(["umount", "--lazy", point], check=False)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
    remove(Path(sys.argv[1]))
